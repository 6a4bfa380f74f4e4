"""A stub in the place of the worker socket: it gives a goal, takes reports, and holds nothing worth having."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from escape.attempt import REPORT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_LIMIT = 1 << 20


class Stub:
    """One goal at a time, by credential: a worker names by it which of those going on it is."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.goals: dict[str, str] = {}
        self.answers: dict[str, dict[str, list[str]]] = {}

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
            return {"goal": self.goals[bearer]}
        said = json.loads(body)
        if said.get("kind") == REPORT:
            self.answers.setdefault(bearer, {}).update(said["body"].get("answers", {}))
        return {}


def _bearer(lines: list[str]) -> str:
    (line,) = (line for line in lines if line.lower().startswith("authorization: bearer "))
    return line.split(" ")[2]
