"""Admission: how many sandboxed runs the host's memory carries at once. A slot is taken before a worker is made."""

from __future__ import annotations

from spl.errors import AdmissionCeiling

_MOST = 16
_RETRY_AFTER_SECONDS = 1


def from_memory(total_bytes: int, each_bytes: int) -> int:
    """Give a capacity at which every worker at its own memory limit fills at most half of the host; 1 to 16."""
    return max(1, min(_MOST, total_bytes // 2 // each_bytes))


class Admission:
    """The slots; `capacity` and `available` are what health reports."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.available = capacity

    def take(self) -> Slot:
        """Take a slot; raises `AdmissionCeiling` when none is free."""
        if self.available <= 0:
            raise AdmissionCeiling(
                f"all {self.capacity} places for sandboxed runs are taken",
                admission_capacity=self.capacity,
                admission_available=self.available,
                retry_after_secs=_RETRY_AFTER_SECONDS,
            )
        self.available -= 1
        return Slot(self)


class Slot:
    """One place, given back once however often it is released."""

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission

    def release(self) -> None:
        """Give the place back."""
        if self._admission is not None:
            self._admission.available += 1
            self._admission = None
