"""A real HTTP server that stands in for a provider; a test scripts what it sends, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator


@dataclass(frozen=True)
class Seen:
    """A request that came in."""

    line: str
    headers: dict[str, str]
    body: Any


@dataclass
class Served:
    """Sends the next of its acts to each request, and closes the connection after one that is no whole answer."""

    acts: list[Any]
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection until it ends."""
        self.connections += 1
        # A client that is gone is what some tests are about.
        with contextlib.suppress(ConnectionError):
            while (request := await _request(reader)) is not None:
                self.seen.append(request)
                self.came.set()
                act = self.acts.pop(0)
                if callable(act):
                    await act(reader, writer)
                    break
                writer.write(act)
                await writer.drain()
                if b"content-length" not in act or b"connection: close" in act:
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _request(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    line, *fields = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in fields)}
    return Seen(line, headers, json.loads(await reader.readexactly(int(headers["content-length"]))))


@contextlib.asynccontextmanager
async def serving(*acts: Any, tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    """Give a server that listens on a port of its own."""
    served = Served(list(acts))
    held: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        held.add(task)
        try:
            await served.serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    host, port = server.sockets[0].getsockname()
    served.url = f"{'http' if tls is None else 'https'}://{host}:{port}"
    try:
        yield served
    finally:
        server.close()
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        await server.wait_closed()


def answer(body: Any = "", status: int = 200, **headers: str) -> bytes:
    """Give a whole answer; a body that is not bytes or text is sent as JSON."""
    content = (
        body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    )
    fields = {
        "content-type": "application/json",
        "content-length": str(len(content)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Any\r\n{head}\r\n".encode() + content
