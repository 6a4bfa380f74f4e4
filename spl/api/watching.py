"""The hub: what becomes durable is told to every event stream that is open, through a bounded queue each."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from spl.api import events
from spl.errors import WatchersExceeded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spl.kernel.principals import Principal
    from spl.records.record import Record
    from spl.records.store import Store

MOST: Final = 768
"""Streams in all: three quarters of what a listener carries, so that there is room for requests beside them."""

MOST_EACH: Final = 64
"""Streams of one member, each of which may hold a record of the largest size while its reader takes nothing; and those
that are kept for the operator, whom no number of members keeps from watching."""

MOST_EVENTS: Final = 256
MOST_BYTES: Final = 1 << 20
"""Bytes of the events in one queue. They are shared among all that wait for them, but a member may have as many queues
as streams, each with others: what has no room here is read from the log."""

_RETRY_AFTER_SECONDS: Final = 5
_OWNERS: Final = 4096
_WOKEN_AT_ONCE: Final = 16


class Created(NamedTuple):
    """A new record as it is told: its event, made once for all, and what decides whom it is for."""

    sequence: int
    thread: str
    clock: int
    frame: bytes


class Queue:
    """What has come for one stream and was not taken yet.

    It is filled only while it is open. One that would pass its bounds lets go of all it has and is closed: `broken` is
    true from then on, until it is opened again. `lagged` says that this was while its reader took nothing.
    """

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.reader_is_slow = False
        self.lagged = False
        self.broken = True
        self._events: deque[Created] = deque()
        self._size = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self._events

    def open(self) -> None:
        """Begin to take what comes, and nothing that came before."""
        self.close()
        self.broken = False

    def close(self) -> None:
        """Let go of what there is and take nothing more."""
        self.broken = True
        self._events.clear()
        self._size = 0

    def offer(self, created: Created) -> None:
        """Take an event, or break."""
        self._size += len(created.frame)
        if len(self._events) == MOST_EVENTS or self._size > MOST_BYTES:
            self.lagged = self.lagged or self.reader_is_slow
            self.close()
        else:
            self._events.append(created)

    def take(self) -> Created | None:
        """Give the next event, None where there is none."""
        if not self._events:
            return None
        created = self._events.popleft()
        self._size -= len(created.frame)
        return created


class Watching:
    """Every open event stream of a daemon, behind one subscription to its log.

    `heartbeat` is after how many seconds of silence a stream says that it is there; `most` how many streams there may
    be in all, and `most_each` how many of one member's.
    """

    def __init__(self, store: Store, *, heartbeat: float, most: int, most_each: int) -> None:
        self.store = store
        self.heartbeat = heartbeat
        self.stopping = False
        self.last = 0
        """The sequence up to which every record has been offered."""
        self._most, self._most_each = most, most_each
        self._held: Counter[str | None] = Counter()
        self._queues: dict[str | None, set[Queue]] = {}
        self._open: set[Queue] = set()
        self._owners: dict[str, str] = {}
        self._to_wake: dict[Queue, None] = {}

    @classmethod
    async def follow(
        cls, store: Store, *, heartbeat: float, most: int = MOST, most_each: int = MOST_EACH
    ) -> Self:
        """Watch a log from now on."""
        watching = cls(store, heartbeat=heartbeat, most=most, most_each=most_each)
        store.subscribe(watching._tell)
        watching.last = max(watching.last, await store.count())
        return watching

    @property
    def open(self) -> int:
        """How many streams there are."""
        return self._held.total()

    @contextmanager
    def watched(self, principal: Principal, thread: str | None) -> Iterator[Queue]:
        """Give the queue of a new stream over a thread, or over all of them; raises `WatchersExceeded`."""
        with self.held(principal) as queue:
            queues = self._queues.setdefault(thread, set())
            queues.add(queue)
            try:
                yield queue
            finally:
                queues.discard(queue)
                if not queues and self._queues.get(thread) is queues:
                    del self._queues[thread]

    @contextmanager
    def held(self, principal: Principal) -> Iterator[Queue]:
        """Give a new stream its place, with a queue that no record comes to; raises `WatchersExceeded`."""
        who = principal.sees
        if self.open >= self._most:
            raise _exceeded(f"{self.open} event streams are open, as many as the daemon carries")
        if who is not None and self.open >= self._most - self._most_each:
            raise _exceeded(
                f"{self.open} event streams are open, and the daemon keeps the rest for the operator"
            )
        if who is not None and self._held[who] >= self._most_each:
            raise _exceeded(f"{who} has {self._held[who]} event streams open, as many as a member may have")
        queue = Queue()
        self._open.add(queue)
        self._held[who] += 1
        try:
            yield queue
        finally:
            self._open.discard(queue)
            self._held[who] -= 1
            if not self._held[who]:
                del self._held[who]

    async def owner(self, thread: str) -> str | None:
        """Give whom a thread belongs to, which never changes once it has been begun."""
        owner = self._owners.get(thread)
        if owner is None:
            owner = await self.store.owner(thread)
            if owner is not None:
                if len(self._owners) >= _OWNERS:
                    del self._owners[next(iter(self._owners))]
                self._owners[thread] = owner
        return owner

    def stop(self) -> None:
        """Have every stream told that the daemon stops, after all that has come, and end."""
        self.stopping = True
        for queue in self._open:
            queue.woken.set()

    def _tell(self, record: Record) -> None:
        self.last = record.sequence
        queues = [
            queue
            for each in (None, record.thread)
            for queue in self._queues.get(each, ())
            if not queue.broken
        ]
        if not queues:
            return
        created = Created(record.sequence, record.thread, record.clock, events.created(record))
        waking = bool(self._to_wake)
        for queue in queues:
            queue.offer(created)
            if not queue.woken.is_set():
                self._to_wake[queue] = None
        if not waking:
            self._wake()

    def _wake(self) -> None:
        # A few at a time: five hundred writes in one turn of the loop would keep every run's verdict waiting.
        for queue in tuple(itertools.islice(self._to_wake, _WOKEN_AT_ONCE)):
            del self._to_wake[queue]
            queue.woken.set()
        if self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake)


def _exceeded(message: str) -> WatchersExceeded:
    return WatchersExceeded(message, retry_after_secs=_RETRY_AFTER_SECONDS)
