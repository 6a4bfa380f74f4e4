"""Admission: how many sandboxed runs the host's memory carries at once. A slot is taken before a worker is made.

Each run is reckoned at the most its worker can take up, whatever it takes in fact. All that are admitted together
fill at most half of the memory that was available when the daemon started, to the host and to its cgroup: measured
later, its own workers would count against themselves. A capacity that somebody set goes before that, and counts runs
alone.

Nobody is queued: whoever finds no place is told to ask again. A place that comes free is therefore kept for whoever has
been refused one, holds fewer than the one who asks now, or as many and was refused first, and has asked lately. Else
it would go to who asks most often, and one actor could keep all others out for as long as it has runs to start. The
operator waits for nobody.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spl.errors import AdmissionCeiling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST = 128
"""Without a capacity that was set: half of the uids that hosted workers have by default."""

_RETRY_AFTER_SECONDS = 1
_WAITING_SECONDS = 3.0
"""How long after it asked last an actor is taken to come again: it is told to after one second."""

_MIB = 1 << 20


class Admission:
    """The slots that are taken; how many there are depends on how much a run's worker can take up, in bytes (`each`).

    `memory` is what was available, in bytes; `fixed` gives the capacity in force that somebody set, or None; `most` is
    what the host can have whatever was set, for one, uids; `now` is a clock in seconds that never goes back.
    """

    def __init__(
        self,
        memory: int,
        fixed: Callable[[], int | None],
        *,
        most: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._fixed = fixed
        self._most = most
        self._now = now
        self._taken: list[Slot] = []
        self._waiting: dict[str, _Waiting] = {}

    def capacity(self, each: int) -> int:
        """Give how many runs of this size may go on at once when nothing else does."""
        fixed = self._fixed()
        return self._at_most(min(_MOST, self._memory // 2 // each) if fixed is None else fixed)

    def available(self, each: int) -> int:
        """Give how many more runs of this size may be started now."""
        return self._room(each, ())

    def fits(self, sizes: Sequence[int]) -> bool:
        """Tell whether runs of these sizes could all be started now, whoever waits for a place."""
        return not sizes or self._room(sizes[0], sizes[1:]) > 0

    @property
    def taken(self) -> int:
        """How many slots are taken, of any size."""
        return len(self._taken)

    def take(self, each: int, actor: str, *, first: bool = False) -> Slot:
        """Take a slot for a run of this size; with `first` the actor goes before all others.

        Raises `AdmissionCeiling` when there is no room, and has the actor wait for some.
        """
        refusal = self.refusal(each, actor, first=first)
        if refusal is not None:
            self._wait(each, actor, first)
            raise refusal
        self._waiting.pop(actor, None)
        slot = Slot(self._taken, each, actor)
        self._taken.append(slot)
        return slot

    def refusal(self, each: int, actor: str, *, first: bool = False) -> AdmissionCeiling | None:
        """Give what a run of this size would be answered where there is no room for it now."""
        if self._room(each, () if first else self._kept(actor)):
            return None
        capacity, available = self.capacity(each), self.available(each)
        return AdmissionCeiling(
            self._why(each, capacity, available),
            admission_capacity=capacity,
            admission_available=available,
            retry_after_secs=_RETRY_AFTER_SECONDS,
            **({} if capacity else {"remedy": "set one with 'spl config set-capacity'"}),
        )

    def _room(self, each: int, kept: Sequence[int]) -> int:
        """Give how many runs of this size there is room for beside what is taken, and runs of the sizes in `kept`."""
        fixed = self._fixed()
        used = len(self._taken) + len(kept)
        if fixed is not None:
            return max(0, self._at_most(fixed) - used)
        left = self._memory // 2 - sum(slot.bytes for slot in self._taken) - sum(kept)
        return max(0, min(self._at_most(_MOST) - used, left // each))

    def _at_most(self, places: int) -> int:
        return places if self._most is None else min(places, self._most)

    def _kept(self, actor: str) -> list[int]:
        """Give the sizes of the runs that are to be started before another of this actor's."""
        now = self._now()
        for other, waiting in [*self._waiting.items()]:
            if now - waiting.asked > _WAITING_SECONDS:
                del self._waiting[other]
        mine = self._waiting.get(actor)
        rank = True, self._held(actor), now if mine is None else mine.since
        return [
            waiting.bytes
            for other, waiting in self._waiting.items()
            if other != actor and (not waiting.first, self._held(other), waiting.since) < rank
        ]

    def _wait(self, each: int, actor: str, first: bool) -> None:
        now = self._now()
        waiting = self._waiting.setdefault(actor, _Waiting(first, now, now, each))
        waiting.asked, waiting.bytes = now, each

    def _held(self, actor: str) -> int:
        return sum(slot.actor == actor for slot in self._taken)

    def _why(self, each: int, capacity: int, available: int) -> str:
        if available:
            return (
                f"the places that are left for sandboxed runs, {available} of {capacity}, are kept for others who hold "
                "fewer or were refused before"
            )
        if capacity:
            return f"no place is left for a sandboxed run: at most {capacity} of this profile at once"
        if self._fixed() is not None:
            return "the capacity for sandboxed runs is set to 0"
        return (
            f"a sandboxed run of this profile may take {each / _MIB:.0f} MiB, and half of the memory that was "
            f"available is {self._memory / 2 / _MIB:.0f} MiB"
        )


class Slot:
    """One place, given back once however often it is released."""

    def __init__(self, taken: list[Slot], size: int, actor: str) -> None:
        self._taken = taken
        self.bytes = size
        self.actor = actor

    def release(self) -> None:
        """Give the place back."""
        if self in self._taken:
            self._taken.remove(self)


@dataclass
class _Waiting:
    """An actor that was refused at `since`, the first time since it was given a place, and asked last at `asked`."""

    first: bool
    since: float
    asked: float
    bytes: int
