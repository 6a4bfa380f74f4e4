"""Whole runs a second, on a daemon that has as many to make as it takes at once."""

from __future__ import annotations

import statistics
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from spl.bench import floors, host
from spl.bench.rows import F3, Measured, percentile
from spl.errors import SplError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spl.bench.apparatus import Apparatus
    from spl.bench.processes import Daemon

_OF_A_STRETCH: Final = 6
"""How many times as many runs as go on at once are made in one stretch."""


def measure(bench: Apparatus) -> dict[str, Measured]:
    """Measure the runs a second, by the rates between so many ends as there are runs at once."""
    daemon, size = bench.daemon, bench.size
    daemon.set_transport("sandboxed")
    at_once = max(1, min(4 * host.cores(), daemon.room()))
    interpreter: list[float] = []
    rates: list[float] = []
    for _ in bench.times("whole runs", size.stretches):
        interpreter += [floors.spawned(bench.floors[F3]) for _ in range(8)]
        rates += _rates(sorted(_saturated(daemon, at_once, _OF_A_STRETCH * at_once)), at_once)
        daemon.settle()
    floor = host.cores() / statistics.median(interpreter) * 1e3
    slow = percentile(rates, 5)
    found = Measured(statistics.median(rates), len(rates), floor, slow, note=f"{at_once} at once")
    return {"runs-per-second": found}


def _rates(ends: Sequence[int], at_once: int) -> list[float]:
    """Give the ends a second while the host is full, for each `at_once` of them."""
    # Until the first there is no end yet, and when nobody starts more the host is not full any more.
    full = ends[: 1 - at_once or None]
    return [at_once / (last - first) * 1e9 for first, last in pairwise(full[::at_once])]


def _saturated(daemon: Daemon, at_once: int, number: int) -> list[int]:
    """Have runs made, so many at once; gives when each ended."""
    left, ends, lock = iter(range(number)), [], threading.Lock()
    failed: list[SplError] = []

    def work() -> None:
        try:
            while not failed:
                with lock:
                    if next(left, None) is None:
                        return
                ended = daemon.ends.wait(daemon.start())
                with lock:
                    ends.append(ended)
        except SplError as error:
            failed.append(error)

    # Broken off, it does not wait for them: each ends with the daemon.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return ends
