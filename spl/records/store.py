"""What a log must do, whatever keeps it: the protocol that SQLite stands behind, and others later."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spl.records.filter import Search
    from spl.records.record import Draft, Record


class Appended(NamedTuple):
    """A record as the log holds it, and whether this append was the one that wrote it."""

    record: Record
    created: bool


class ThreadRow(NamedTuple):
    """One thread in a listing: how many records it has, and where it begins and ends."""

    thread: str
    records: int
    first_sequence: int
    last_sequence: int


class Plan(NamedTuple):
    """How a store goes about a search: the filter in its own language, the fields it looks up, and each step."""

    sql: str
    indexed: list[str]
    steps: list[str]


class Matches(NamedTuple):
    """What a search has found, whether there is more, and the plan where it was asked for."""

    records: list[Record]
    has_more: bool
    plan: Plan | None


class Store(Protocol):
    """A log of records: appended, read and watched, never changed.

    Every method belongs to the event loop the store was opened in. Each raises StoreUnavailable when the log
    cannot be reached, is out of space or is closed; nothing has been acknowledged then.

    A thread belongs to whom its first record says, and to nobody else: the `actor` in the body of a run's anchor
    (`core.work.loop.v1`), the record's own actor otherwise.
    """

    failing: str | None
    """Why the last append could not be written, None when it could be."""

    async def append(self, drafts: Sequence[Draft]) -> list[Appended]:
        """Write all of the drafts or none; they are durable when this returns, one result each, in order.

        A record that is there already is given back as it is stored, not created. Clocks rise strictly for
        an actor on a thread; one left out becomes the highest so far plus one, the first being 1. A caller
        that is cancelled while it waits does not take its records back.
        Raises IngestFailed for a draft that `check` refuses, a clock already used with another content
        (`DuplicateClock` in the message), and a clock below the highest (`ClockNotRising`).
        """
        ...

    async def get(self, id: str) -> Record | None:  # noqa: A002 - the field's own name
        """Give the record with this id, or None."""
        ...

    async def select(
        self,
        *,
        thread: str | None = None,
        actor: str | None = None,
        kind: str | None = None,
        owner: str | None = None,
        since: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        most_bytes: int | None = None,
    ) -> list[Record]:
        """Give at most `limit` records with a sequence above `since` that match all given, in sequence order.

        With `owner` only the records on threads that belong to it are given, whoever wrote them. With
        `newest_first` the order is turned round, and the limit keeps the newest. With `most_bytes` it ends after the
        record that brings the bodies to so many characters: then only an empty answer says that there are no more.
        """
        ...

    async def search(
        self,
        asked: Search,
        *,
        owner: str | None = None,
        most_bytes: int | None = None,
        seconds: float | None = None,
        explain: bool = False,
    ) -> Matches:
        """Give the records that a search is for: as `sort` says, those it leaves open in sequence order.

        See `select` for `owner` and `most_bytes`, which here leaves `has_more` to tell whether there are more. One
        search goes on at a time. Raises QueryExceeded when it takes over `seconds`.
        """
        ...

    async def threads(self, *, owner: str | None = None, since: int = 0, limit: int = 100) -> list[ThreadRow]:
        """Give at most `limit` threads whose first sequence is above `since`, in the order they began.

        With `owner` only those that belong to it are given.
        """
        ...

    async def owner(self, thread: str) -> str | None:
        """Give the actor that a thread belongs to, or None where no record has begun it."""
        ...

    async def unfinished(self, opening_kind: str, closing_kind: str) -> list[Record]:
        """Give the records of one kind whose thread has no record of the other, in sequence order."""
        ...

    async def count(self) -> int:
        """Give how many records the log holds."""
        ...

    async def answers(self) -> None:
        """Return once what writes the log has come round to this; a log that cannot be written is no hindrance.

        Never returns where that has stopped, or hangs.
        """
        ...

    def subscribe(self, callback: Callable[[Record], None]) -> Callable[[], None]:
        """Have each newly created record told to `callback`; give the function that ends it.

        The callback runs in the event loop, in sequence order, once the record is durable and before the
        append that wrote it returns. Subscribing first and reading after misses nothing.
        """
        ...

    async def close(self) -> None:
        """Write what is queued, then let go of the log; closing again does nothing."""
        ...
