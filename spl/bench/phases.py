"""Where a launch spends its time: the steps of `bwrap.launch` with the clock read between them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bwrap.launch import Launch
from bwrap.ledger import Ledger
from spl.bench.rows import PHASES

if TYPE_CHECKING:
    from bwrap.confined import Confined
    from bwrap.plan import Plan
    from bwrap.process import Process
    from bwrap.receipt import Confirmed
    from bwrap.sealed import Sealed


class Stamped(Ledger):
    """A ledger that says when it was written to, which is between two phases."""

    def __init__(self, folder: str, **given: Any) -> None:
        super().__init__(folder, **given)
        self.stamps: dict[str, int] = {}

    def begin(self, nonce: str, uid: int | None = None) -> None:
        """Write a launch down, and when that was done."""
        super().begin(nonce, uid)
        self.stamps["sources"] = time.monotonic_ns()

    def add(self, nonce: str, process: Process) -> None:
        """Write a worker down, and when it was held."""
        self.stamps["held"] = time.monotonic_ns()
        super().add(nonce, process)


class Timed(Launch):
    """A launch that says how long each of its phases took."""

    def __init__(self, plan: Plan, image: Sealed, ledger: Stamped) -> None:
        super().__init__(plan, image, ledger)
        self._stamps = ledger.stamps

    def confirm(self, process: Process, answer: bytes) -> tuple[Confirmed, ...]:
        """Confirm every layer; see `Launch.confirm`."""
        self._stamps["ready"] = time.monotonic_ns()
        confirmed = super().confirm(process, answer)
        self._stamps["confirmed"] = time.monotonic_ns()
        return confirmed


async def launch(plan: Plan, image: Sealed, ledger: Stamped, *, seconds: float) -> tuple[Confined, list[int]]:
    """Start a process as `bwrap.launch.launch` does; gives it and the nanoseconds of each of `PHASES`."""
    last = time.monotonic_ns()
    confined = await Timed(plan, image, ledger).within(seconds)
    took = []
    for phase in PHASES:
        took.append(ledger.stamps[phase] - last)
        last = ledger.stamps[phase]
    return confined, took
