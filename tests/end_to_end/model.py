"""The model of a real daemon, played by a test: it sees what a model would and answers when it likes, or never."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape

Json = dict[str, Any]


@dataclass
class Asked:
    """One model call, in flight until it is answered."""

    connection: socket.socket
    messages: list[Json]
    tools: list[str]

    @property
    def shown(self) -> str:
        """What the last message says: of a call, what the model is shown of it."""
        return str(self.messages[-1]["content"])

    def answer(self, reply: Json) -> None:
        """Give a reply, in the form of a script's."""
        with self.connection:
            self.connection.sendall(json.dumps(reply).encode() + b"\n")

    def wait_until_broken_off(self) -> None:
        """Wait until the daemon has given up on an answer."""
        with self.connection:
            assert self.connection.recv(1) == b""


class Model:
    """Listens where a daemon that is `played` asks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(SECONDS)
        self._socket.bind(str(path))
        path.chmod(0o666)
        self._socket.listen()

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    def daemon(
        self, shape: Shape, home: Path, *, prefix: Sequence[str] = (), **environment: str
    ) -> AbstractContextManager[Daemon]:
        """Run a daemon whose model this is; when it stops, nobody answers any more, and its runs wait for nobody."""
        played = replace(shape, program="tests.end_to_end.played")
        given = {"SPL_DRAIN_SECONDS": "0", **environment}
        return played.daemon(home, "--provider", f"script:{self._path}", prefix=prefix, **given)

    def asked(self) -> Asked:
        """Wait for the next model call."""
        connection, _ = self._socket.accept()
        connection.settimeout(SECONDS)
        with connection.makefile("rb") as lines:
            request = json.loads(lines.readline())
        return Asked(connection, request["messages"], [tool["name"] for tool in request["tools"]])
