"""Starts and whole runs, one at a time, with the floors between them."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from spl.bench import floors
from spl.bench.apparatus import MS
from spl.bench.rows import F1, F2, F3, PHASES, Measured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spl.bench.apparatus import Apparatus
    from spl.bench.processes import Daemon, Helper

Json = dict[str, Any]

_IN_A_ROW: Final = 10


@dataclass
class Starts:
    """Starts of one helper's daemon, in milliseconds."""

    helper: Helper
    seen: list[float] = field(default_factory=list)
    """From accepted to the credential written, in the daemon."""
    read: list[float] = field(default_factory=list)
    """How much of that had gone until the application had the request."""
    outside: list[float] = field(default_factory=list)
    """From the client's request, on a connection of its own, to its answer."""
    called: list[float] = field(default_factory=list)
    """From accepted to the run's first model call at the broker."""

    def make(self) -> None:
        """Have one run made, once the daemon's standby workers are ready, and see it to its end."""
        self.helper.settle()
        began = time.monotonic_ns()
        thread = self.helper.start()
        answered = time.monotonic_ns()
        self.helper.ends.wait(thread)
        (start,) = self.helper.ask("starts")
        self.seen.append((start["entrusted"] - start["accepted"]) / MS)
        self.read.append((start["asked"] - start["accepted"]) / MS)
        self.outside.append((answered - began) / MS)
        self.called.append((start["called"] - start["accepted"]) / MS)
        # What is measured next is not to stand beside a standby worker being made.
        self.helper.settle()

    @property
    def note(self) -> str:
        """What the row of a start does not say."""
        return (
            f"{statistics.median(self.read):.2g} ms of it until the request is read; "
            f"a client on a connection of its own waits {statistics.median(self.outside):.3g} ms"
        )


def measure(bench: Apparatus) -> dict[str, Measured]:
    """Measure the floors F1 to F3, starts with and without standby workers, and whole runs."""
    took: dict[str, list[float]] = {name: [] for name in (*bench.floors, "sandboxed", "in process")}
    launches: list[list[int]] = []
    cold = Starts(bench.cold)
    warm = Starts(bench.warm)
    for kind in (cold, warm):
        # The first of a daemon finds less in memory.
        Starts(kind.helper).make()
    for transport in ("sandboxed", "in_process"):
        _whole(bench.daemon, transport)
    for _ in bench.times("starts", bench.size.samples):
        for name, command in bench.floors.items():
            took[name].append(floors.spawned(command))
        for kind in (cold, warm):
            kind.make()
        launches.append(bench.cold.ask("launch"))
        took["sandboxed"].append(_whole(bench.daemon, "sandboxed"))
        took["in process"].append(_whole(bench.daemon, "in_process"))
    floor = statistics.median(took[F3])
    found = {name: Measured.of(took[name]) for name in (F1, F2, F3)}
    found["cold-start"] = Measured.of(cold.seen, floor=floor, note=cold.note)
    found["warm-start"] = Measured.of(warm.seen, floor=floor, note=warm.note)
    also = f"without a standby worker {statistics.median(cold.called):.3g} ms"
    found["first-model-call"] = Measured.of(warm.called, floor=floor, note=also)
    found["sandboxed-wall"] = Measured.of(
        took["sandboxed"],
        floor=statistics.median(took["in process"]),
        note=f"{_in_a_row(bench.daemon):.3g} ms each of {_IN_A_ROW} with nothing between them",
    )
    bench.phases = _phases(found["cold-start"].value, launches)
    return found


def _whole(daemon: Daemon, transport: str) -> float:
    """Have one run made on a daemon at rest; gives the milliseconds from its request to its end."""
    daemon.set_transport(transport)
    daemon.settle()
    began = time.monotonic_ns()
    took = (daemon.ends.wait(daemon.start()) - began) / MS
    daemon.settle()
    return took


def _in_a_row(daemon: Daemon) -> float:
    """Have runs made one straight after the other; gives the milliseconds of each of them, by the mean."""
    daemon.set_transport("sandboxed")
    daemon.settle()
    began = time.monotonic_ns()
    ended = began
    for _ in range(_IN_A_ROW):
        ended = daemon.ends.wait(daemon.start())
    daemon.settle()
    return (ended - began) / MS / _IN_A_ROW


def _phases(whole: float, launches: Sequence[Sequence[int]]) -> list[Json]:
    """Give the parts of a cold start, the median of each; what is not of the launch is the kernel's and the API's."""
    medians = [statistics.median(each) / MS for each in zip(*launches, strict=True)]
    parts = [*zip(PHASES, PHASES.values(), medians, strict=True)]
    rest = "the request, the terms, the plan, the anchor and receipt made durable, the credential"
    parts.append(("around the launch", rest, max(0.0, whole - sum(medians))))
    return [
        {"name": name, "what": what, "value": round(value, 2), "unit": "ms"} for name, what, value in parts
    ]
