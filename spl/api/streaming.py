"""One event stream: the log from where its watcher left off, then what becomes durable, without a gap or a repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spl.api import events
from spl.api.endless import PIECE_BYTES, Endless
from spl.errors import InvalidBody, Lagged, SplError
from spl.kernel.principals import RECORDS_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Receive, Scope, Send

    from spl.api.endless import Writer
    from spl.api.watching import Queue, Watching
    from spl.kernel.principals import Principal

_PAGE_RECORDS: Final = 256
_PAGE_BYTES: Final = 128 * 1024
"""Characters of records after which a page of the log ends: a stream holds one while its reader takes nothing."""


class EventStream(Endless):
    """The records of a thread, or of all threads, that a principal may read, as Server-Sent Events without an end.

    It begins after the sequence `position` and leaves out records whose clock is at or below `since_clock`. `judge`
    gives who the bearer is now, and raises when it is nobody any more; `turn` is held whenever the log is read.
    """

    def __init__(
        self,
        watching: Watching,
        principal: Principal,
        judge: Callable[[], Principal],
        turn: Callable[[], AbstractAsyncContextManager[None]],
        *,
        thread: str | None,
        position: int,
        since_clock: int | None,
    ) -> None:
        super().__init__()
        self._watching = watching
        self._principal = principal
        self._sees = principal.sees
        self._judge = judge
        self._turn = turn
        self._thread = thread
        self._position = position
        self._since_clock = since_clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end; raises, before anything is sent, what refuses it."""
        del scope
        await self._refuse_beyond_the_log()
        with self._watching.watched(self._principal, self._thread) as queue:
            async with self._begun(queue, receive, send) as writer:
                await self._tell(queue, writer)

    async def _refuse_beyond_the_log(self) -> None:
        # The hub is told a little after a record can be read.
        if self._position > self._watching.last and self._position > (
            last := await self._watching.store.count()
        ):
            raise InvalidBody(
                f"the position {self._position} is beyond the log, whose last record is {last}: it is another "
                "log's, or this one was restored from an earlier backup",
                remedy="begin anew, without a Last-Event-ID and without 'since'",
            )

    async def _tell(self, queue: Queue, writer: Writer) -> None:
        try:
            await self._send(writer, events.heartbeat(self._position))
            while await self._catch_up(queue, writer) and await self._follow(queue, writer):
                pass
            if queue.lagged:
                raise Lagged("this stream's reader takes less than comes")
            if self._watching.stopping:
                await self._send(writer, events.shutdown())
        except SplError as error:
            await writer.send(events.failed(error))

    async def _catch_up(self, queue: Queue, writer: Writer) -> bool:
        """Send what the log holds; tells whether the stream goes on, its queue open from where the log was read to."""
        while not self._ends(writer):
            # What becomes durable from here on is in the queue, and what was before is found by the reading.
            queue.open()
            offered = self._watching.last
            page = await self._page()
            if not page:
                self._position = max(self._position, offered)
                if not queue.broken:
                    return True
            queue.close()
            for position, frames in _batches(page):
                if self._ends(writer):
                    return False
                if frames:
                    await self._send(writer, frames)
                self._position = position
            if writer.silent_for(self._watching.heartbeat):
                await self._send(writer, events.heartbeat(self._position))
        return False

    async def _follow(self, queue: Queue, writer: Writer) -> bool:
        """Send what comes; tells whether the stream goes on, by reading the log where its queue broke."""
        while not writer.gone:
            queue.woken.clear()
            frames = await self._taken(queue)
            if frames:
                await self._send(writer, frames)
            if queue.broken:
                return not queue.lagged
            if frames:
                continue
            if queue.is_empty:
                if self._watching.stopping:
                    return False
                # All up to there has been offered, and what was for this stream is sent.
                self._position = max(self._position, self._watching.last)
            if writer.silent_for(self._watching.heartbeat):
                await self._send(writer, events.heartbeat(self._position))
            elif queue.is_empty:
                await writer.rest(self._watching.heartbeat)
        return False

    async def _taken(self, queue: Queue) -> bytes:
        """Take the next events off the queue, about as many as are written at once; gives those for this stream."""
        frames: list[bytes] = []
        size = 0
        while size < PIECE_BYTES and (next_ := queue.take()) is not None:
            # What the last page of the log held is in the queue too when it came while that was read.
            if next_.sequence <= self._position:
                continue
            self._position = next_.sequence
            if not self._wants(next_.clock):
                continue
            if self._sees is None or await self._watching.owner(next_.thread) == self._sees:
                frames.append(next_.frame)
                size += len(next_.frame)
        return b"".join(frames)

    async def _page(self) -> list[tuple[int, bytes]]:
        """Read the next records; gives each one's sequence and event, which is empty for one that is left out."""
        async with self._turn():
            records = await self._watching.store.select(
                thread=self._thread,
                owner=self._sees,
                since=self._position,
                limit=_PAGE_RECORDS,
                most_bytes=_PAGE_BYTES,
            )
            return [
                (each.sequence, events.created(each) if self._wants(each.clock) else b"") for each in records
            ]

    def _ends(self, writer: Writer) -> bool:
        return writer.gone or self._watching.stopping

    def _wants(self, clock: int) -> bool:
        return self._since_clock is None or clock > self._since_clock

    async def _send(self, writer: Writer, frames: bytes) -> None:
        """Send events, unless the bearer has become nobody; raises what is wrong with it."""
        self._judge().require(RECORDS_READ)
        await writer.send(frames)


def _batches(page: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Give events joined to about as much as is written at once, each with the sequence of its last."""
    frames: list[bytes] = []
    size = 0
    for sequence, frame in page:
        frames.append(frame)
        size += len(frame)
        if size >= PIECE_BYTES or sequence == page[-1][0]:
            yield sequence, b"".join(frames)
            frames, size = [], 0
