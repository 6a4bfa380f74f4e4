"""Admission: how many sandboxed runs the host's memory carries at once. A slot is taken before a worker is made.

Each run is reckoned at the most its worker can take up, whatever it takes in fact. All that are admitted together
fill at most half of the memory that was available when the daemon started: measured later, its own workers would
count against themselves. A capacity that somebody set goes before that, and counts runs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spl.errors import AdmissionCeiling

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST = 128
"""Without a capacity that was set: half of the uids that hosted workers have by default."""

_RETRY_AFTER_SECONDS = 1
_MIB = 1 << 20


def available_memory(meminfo: str = "/proc/meminfo") -> int:
    """Give the bytes that can be had without swapping, see proc(5); raises `OSError` or `ValueError`."""
    with open(meminfo, encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "MemAvailable" and value.split()[1:] == ["kB"]:
                return int(value.split()[0]) * 1024
    raise ValueError(f"{meminfo} does not say MemAvailable")


class Admission:
    """The slots that are taken; how many there are depends on how much a run's worker can take up, in bytes (`each`).

    `memory` is what was available, in bytes; `fixed` gives the capacity in force that somebody set, or None; `most` is
    what the host can have whatever was set, for one, uids.
    """

    def __init__(self, memory: int, fixed: Callable[[], int | None], *, most: int | None = None) -> None:
        self._memory = memory
        self._fixed = fixed
        self._most = most
        self._taken: list[Slot] = []

    def capacity(self, each: int) -> int:
        """Give how many runs of this size may go on at once when nothing else does."""
        fixed = self._fixed()
        return self._at_most(min(_MOST, self._memory // 2 // each) if fixed is None else fixed)

    def available(self, each: int) -> int:
        """Give how many more runs of this size may be started now."""
        fixed = self._fixed()
        if fixed is not None:
            return max(0, self._at_most(fixed) - len(self._taken))
        left = self._memory // 2 - sum(slot.bytes for slot in self._taken)
        return max(0, min(self._at_most(_MOST) - len(self._taken), left // each))

    def _at_most(self, places: int) -> int:
        return places if self._most is None else min(places, self._most)

    def take(self, each: int) -> Slot:
        """Take a slot for a run of this size; raises `AdmissionCeiling` when there is no room."""
        if not self.available(each):
            raise self.refusal(each)
        slot = Slot(self._taken, each)
        self._taken.append(slot)
        return slot

    def refusal(self, each: int) -> AdmissionCeiling:
        """Give what a run of this size is answered when there is no room for it."""
        capacity = self.capacity(each)
        return AdmissionCeiling(
            self._why(each, capacity),
            admission_capacity=capacity,
            admission_available=0,
            retry_after_secs=_RETRY_AFTER_SECONDS,
            **({} if capacity else {"remedy": "set one with 'spl config set-capacity'"}),
        )

    def _why(self, each: int, capacity: int) -> str:
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

    def __init__(self, taken: list[Slot], size: int) -> None:
        self._taken = taken
        self.bytes = size

    def release(self) -> None:
        """Give the place back."""
        if self in self._taken:
            self._taken.remove(self)
