"""A worker socket whose answers a test scripts, and the worker's sealed program in a file."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from bwrap.host import examine_python
from spl.transports.image import seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass
class Answer:
    """What the server does with one request: the bytes it sends, and whether it closes after them."""

    raw: bytes = b""
    close: bool = False
    read_body: bool = True


def plain(answer: object, status: int = 200) -> Answer:
    body = json.dumps(answer).encode()
    head = (
        f"HTTP/1.1 {status} Whatever\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return Answer(head.encode() + body)


def chunked(answer: object, size: int = 7) -> Answer:
    body = json.dumps(answer).encode()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%X;note=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return Answer(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n"
    )


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass
class DoorServer:
    """Serves one connection after another on a unix socket, from a list of answers."""

    path: str
    answers: list[Answer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, connection.makefile("rb") as stream:
                while True:
                    line = stream.readline().decode().strip()
                    if not line or not self._answer(connection, stream, line):
                        break
            self.closed.set()

    def _answer(self, connection: socket.socket, stream: Any, line: str) -> bool:
        headers = {}
        while header := stream.readline().decode().strip():
            name, _, value = header.partition(": ")
            headers[name.lower()] = value
        answer = self.answers.pop(0)
        body = stream.read(int(headers.get("content-length", 0))) if answer.read_body else b""
        self.requests.append(Request(line, headers, body, self.connections))
        connection.sendall(answer.raw)
        return not answer.close


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DoorServer]:
    server = DoorServer(str(tmp_path / "w.sock"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a file that holds what is sealed for this interpreter."""
    path = tmp_path_factory.mktemp("image") / "worker.pyc"
    sealed = seal(examine_python(sys.executable))
    with os.fdopen(sealed.open(), "rb") as content:
        path.write_bytes(content.read())
    sealed.close()
    return path


@pytest.fixture
def start(image: Path, server: DoorServer) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Give a function that starts the worker with some attempts; what still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*attempts: list[object]) -> subprocess.Popen[bytes]:
        specification = json.dumps({"socket": server.path, "attempts": attempts})
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(image), "nonce-1", specification],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
