"""An answer without an end, as Server-Sent Events: its head, and the way to its reader."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Send

    from spl.api.watching import Queue

PIECE_BYTES: Final = 64 * 1024
"""Bytes that are written at once: as many lie in the transport's buffer, beside as many again, when a reader stalls."""

_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Endless(Response):
    """A stream of events; what is told stands in those that are made of it."""

    media_type = "text/event-stream"

    def __init__(self) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(_HEADERS)

    @asynccontextmanager
    async def _begun(self, queue: Queue, receive: Receive, send: Send) -> AsyncIterator[Writer]:
        """Send the head and give the way to the reader; the answer is ended when what is done with it is."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        writer = Writer(send, queue)
        leaving = asyncio.create_task(writer.until_gone(receive))
        try:
            yield writer
        finally:
            leaving.cancel()
        await send({"type": "http.response.body", "body": b""})


class Writer:
    """The way to a stream's reader, who may have `gone`."""

    def __init__(self, send: Send, queue: Queue) -> None:
        self.gone = False
        self._send = send
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()

    async def send(self, data: bytes) -> None:
        """Write all of it as the reader takes it."""
        for start in range(0, len(data), PIECE_BYTES):
            if self.gone:
                return
            piece = data[start : start + PIECE_BYTES]
            self._queue.reader_is_slow = True
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            self._queue.reader_is_slow = False
        self._sent_at = self._loop.time()

    def silent_for(self, seconds: float) -> bool:
        """Tell whether nothing has been written for so long."""
        return self._loop.time() >= self._sent_at + seconds

    async def rest(self, seconds: float) -> None:
        """Wait until something comes, or the silence has lasted for so long."""
        await self.rest_until(self._sent_at + seconds)

    async def rest_until(self, moment: float) -> None:
        """Wait until something comes, or until a moment of the event loop's time."""
        try:
            async with asyncio.timeout_at(moment):
                await self._queue.woken.wait()
        except TimeoutError:
            pass

    async def until_gone(self, receive: Receive) -> None:
        """Wait until the reader has gone, and have the stream know of it."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self._queue.woken.set()
