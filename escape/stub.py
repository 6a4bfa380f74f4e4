"""A stub in the place of the worker socket: it gives a goal, takes reports, and holds nothing worth having."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from escape.attempt import REPORT
from escape.judge import told_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from bwrap.confined import Confined

    Answers = dict[str, list[str]]

_LIMIT = 1 << 20
_SECONDS = 30.0


class Stub:
    """A goal for each worker that it is given, by credential: a worker names by it which it is."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._goals: dict[str, str] = {}
        self._answers: dict[str, dict[str, list[str]]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def listening(cls, path: str) -> AsyncIterator[Stub]:
        """Listen at a path, for any user."""
        stub = cls(path)
        server = await asyncio.start_unix_server(stub._serve, path, limit=_LIMIT)
        os.chmod(path, 0o666)
        try:
            yield stub
        finally:
            server.close()

    async def have(
        self, confined: Confined, ids: Sequence[str], world: dict[str, Any]
    ) -> tuple[Answers, str]:
        """Have a confined process make attempts; gives its answers, and how it ended."""
        credential = secrets.token_hex(16)
        self._goals[credential] = json.dumps({"attempts": list(ids), "world": world})
        confined.entrust(json.dumps({"credential": credential}).encode() + b"\n")
        ended = await confined.stop("it took too long", grace=_SECONDS)
        del self._goals[credential]
        return self._answers.pop(credential, {}), told_end(ended.wire())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Whatever a worker that means harm says here, it is not answered; the suite goes by what was told.
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")
                fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                body = await reader.readexactly(min(int(fields.get("content-length", "0")), _LIMIT))
                said = self._answer(lines[0], _bearer(lines), body)
                answer = json.dumps(said).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        writer.close()

    def _answer(self, line: str, bearer: str, body: bytes) -> dict[str, Any]:
        if line.startswith("GET "):
            return {"goal": self._goals[bearer]}
        said = json.loads(body)
        if said.get("kind") == REPORT:
            self._answers.setdefault(bearer, {}).update(said["body"].get("answers", {}))
        return {}


def _bearer(lines: list[str]) -> str:
    (line,) = (line for line in lines if line.lower().startswith("authorization: bearer "))
    return line.split(" ")[2]
