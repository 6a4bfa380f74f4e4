"""How far the log, its threads and their actors have come: what the next record is numbered by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spl.records.queries import COUNT, HEAD

if TYPE_CHECKING:
    import sqlite3

_KEPT: Final = 10_000
"""How many actors on threads are kept in mind: a few megabytes, and more than are at work at once."""


class Place(NamedTuple):
    """Where a record goes: in the log, and on its thread."""

    sequence: int
    ordinal: int


class Heads:
    """The ends of a log, in the mind of the one who writes it: each is read once, and then follows what is written.

    They are no more than a guess: they run ahead of the log while a group is made up, and fall behind it when another
    program writes to it. Each record is written with the sequence that they give it. So a guess that was wrong is a
    sequence that is taken, which the log refuses; whoever is refused must `forget` all of them.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._last: int | None = None
        self._ordinals: dict[str, int] = {}
        self._clocks: dict[tuple[str, str], int | None] = {}
        self._taken: list[tuple[str, str, int | None]] = []

    def forget(self) -> None:
        """Have all be read from the log again."""
        self._last = None
        self._ordinals.clear()
        self._clocks.clear()

    def shorten(self) -> None:
        """Forget all when that is too many to keep; never while what they are ahead by is still to be written."""
        if len(self._clocks) > _KEPT:
            self.forget()

    def begin(self) -> None:
        """Begin what `back` undoes."""
        self._taken.clear()

    def back(self) -> None:
        """Give back the places taken since `begin`."""
        for thread, actor, clock in reversed(self._taken):
            self._clocks[thread, actor] = clock
            self._ordinals[thread] -= 1
        if self._last is not None:
            self._last -= len(self._taken)
        self._taken.clear()

    def highest(self, thread: str, actor: str) -> int | None:
        """Give an actor's highest clock on a thread, None without any; may raise `sqlite3.Error`."""
        key = thread, actor
        # Before all else: whatever another program writes after this takes the sequence that comes next.
        self._end()
        if key not in self._clocks:
            clock, ordinal = self._connection.execute(HEAD, (thread, actor, thread)).fetchone()
            self._clocks[key] = clock
            # Another actor's records on it may be ahead of the log.
            self._ordinals.setdefault(thread, ordinal)
        return self._clocks[key]

    def take(self, thread: str, actor: str, clock: int) -> Place:
        """Take the place of the record that comes next, once `highest` was asked."""
        key = thread, actor
        self._taken.append((thread, actor, self._clocks[key]))
        self._clocks[key] = clock
        self._last = self._end() + 1
        self._ordinals[thread] += 1
        return Place(self._last, self._ordinals[thread])

    def _end(self) -> int:
        """Give the last sequence; may raise `sqlite3.Error`."""
        if self._last is None:
            last: int = self._connection.execute(COUNT).fetchone()[0]
            self._last = last
        return self._last
