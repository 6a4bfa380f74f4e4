"""A real HTTP server that stands in for the daemon; a test scripts its answers."""

from __future__ import annotations

import json
import queue
import socketserver
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Request:
    """What came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Daemon:
    """Answers a request with what `routes` has for "METHOD path": a document, or a function of the request.

    A document with a `status` of its own is sent with that status; bytes are sent as the body they are, and
    the pieces of an iterator as they come.
    """

    routes: dict[str, Any] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    def start(self, where: str | tuple[str, int]) -> tuple[str, int]:
        """Listen on a unix socket or a TCP address; give the address."""
        kind = _Unix if isinstance(where, str) else _Tcp
        self._server = kind(where, _handler(self))  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        address: tuple[str, int] = self._server.server_address  # type: ignore[assignment]
        return address

    def stop(self) -> None:
        """End the server and wait for it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def asked(self) -> list[str]:
        """Give what was asked for, in order."""
        return [f"{request.method} {request.path}" for request in self.requests]


class Stream:
    """An event stream that a test feeds; each connection to its route takes on where the one before ended."""

    def __init__(self) -> None:
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def send(self, name: str, data: dict[str, Any], position: int | None = None) -> None:
        """Send an event."""
        head = "" if position is None else f"id: {position}\n"
        self._pieces.put(f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode())

    def end(self) -> None:
        """End the connection that is open, or the next one."""
        self._pieces.put(None)

    def __call__(self, request: Request) -> Iterator[bytes]:
        """Answer a request with what is sent until the end."""
        return iter(self._pieces.get, None)


class _Unix(socketserver.ThreadingUnixStreamServer):
    daemon_threads = False


class _Tcp(socketserver.ThreadingTCPServer):
    daemon_threads = False


def _handler(daemon: Daemon) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            parts = urlsplit(self.path)
            request = Request(
                self.command,
                parts.path,
                {name: values[-1] for name, values in parse_qs(parts.query).items()},
                {name.lower(): value for name, value in self.headers.items()},
                json.loads(raw) if raw else None,
            )
            daemon.requests.append(request)
            missing = {"status": 404, "object": "error", "code": "NOT_FOUND", "message": "no such route"}
            document: Any = daemon.routes.get(f"{request.method} {request.path}", missing)
            if callable(document):
                document = _call(document, request)
            if isinstance(document, Iterator):
                self._stream(document)
                return
            status, body = 200, document
            if isinstance(document, dict):
                status = document.get("status", 200) if document.get("object") == "error" else 200
                body = json.dumps(document).encode()
            self.send_response(status)
            # What is no document is an event stream, or pretends to be one.
            kind = "application/json" if isinstance(document, dict) else "text/event-stream"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            # Who asked may have gone: a command that was interrupted, or gave up.
            with suppress(BrokenPipeError, ConnectionResetError):
                self.end_headers()
                self.wfile.write(body)

        def _stream(self, pieces: Iterator[bytes]) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - http.server's own names

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


def _call(answer: Callable[[Request], Any], request: Request) -> Any:
    return answer(request)


def error(status: int, code: str, message: str, **fields: object) -> dict[str, object]:
    """Give an error document."""
    return {"object": "error", "status": status, "type": "x", "code": code, "message": message, **fields}
