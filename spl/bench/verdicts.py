"""Verdicts, as long as the confined worker waits for each, with the floor between them."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Final

from spl.bench.apparatus import MS
from spl.bench.inside import REPORT
from spl.bench.processes import CALLS, CONSTANT
from spl.bench.rows import F4, Measured, percentile
from spl.errors import HostRefused
from spl.worker.doors import Doors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spl.bench.apparatus import Apparatus
    from spl.bench.processes import Helper

Json = dict[str, Any]

_AT_ONCE: Final = 16
_STARTED_SECONDS: Final = 3.0
"""In which all of them are started."""
_STARVED: Final = 2.0
"""How many times as long as all others a run may wait for its verdicts before it is said to starve."""


def measure(bench: Apparatus) -> dict[str, Measured]:
    """Measure the floor F4, the verdicts of one run, and those of 16 at once."""
    helper = bench.verdicts
    floor: list[float] = []
    alone: list[float] = []
    together: list[list[float]] = []
    rates: list[list[float]] = []
    constant = Doors(f"{helper.home}/run/{CONSTANT}", "none")
    for done in bench.times("verdicts", bench.size.rounds):
        floor += _answers(constant)
        alone += [each / MS for each in _verdicts(helper, 1, 0)[0]["took"]]
        rates += helper.ask("append", folder=f"{bench.folder}/commits-{done}", rounds=1)
    for _ in bench.times("verdicts of 16 at once", bench.size.bursts if "judgment-16" in bench.chosen else 0):
        floor += _answers(constant)
        together += at_once(_verdicts(helper, _AT_ONCE, _STARTED_SECONDS))
    constant.close()
    answer = statistics.median(floor)
    note = f"one durable append by itself takes {1000 / statistics.median(one for one, _ in rates):.3g} ms"
    found = {F4: Measured.of(floor), "judgment": Measured.of(alone, floor=answer, note=note)}
    return found | ({"judgment-16": _of_all(together, answer)} if together else {})


def _answers(constant: Doors) -> list[float]:
    """Give the milliseconds of as many constant answers as a run has verdicts."""
    took = []
    for _ in range(CALLS):
        asked = time.monotonic_ns()
        constant.perform("run", {})
        took.append((time.monotonic_ns() - asked) / MS)
    return took


def _of_all(runs: Sequence[Sequence[float]], floor: float) -> Measured:
    """Give the 99th percentile of the verdicts of runs that proposed at once, and whether one of them starved."""
    everyone = [each for run in runs for each in run]
    middle = statistics.median(everyone)
    slowest = max(map(statistics.median, runs)) / middle
    said = f"the median of all is {middle:.3g} ms, and that of the slowest run {slowest:.2f} times as much"
    return Measured(
        percentile(everyone, 99),
        len(everyone),
        floor,
        percentile(everyone, 95),
        short=said if slowest > _STARVED else None,
        note=said,
    )


def _verdicts(helper: Helper, runs: int, after: float) -> list[Json]:
    """Have runs propose, all from `after` seconds on; gives what each reported."""
    goal = f'{{"at": {time.monotonic_ns() + int(after * 1e9)}}}'
    threads = [helper.start(goal) for _ in range(runs)]
    for thread in threads:
        helper.ends.wait(thread)
    found = []
    for thread in threads:
        query = {"thread": thread, "kind": REPORT, "limit": 1}
        told = helper.client.request("GET", "/v1/records", query=query)["data"]
        if not told:
            raise HostRefused(f"the run {thread}, whose verdicts were to be timed, told nothing")
        found.append(told[0]["body"])
    return found


def at_once(reports: Sequence[Json]) -> list[list[float]]:
    """Give, of each run, the milliseconds of the verdicts it asked for while every other one did as well."""
    first, last = max(each["began"] for each in reports), min(each["ended"] for each in reports)
    found = []
    for report in reports:
        at, kept = report["began"], []
        for each in report["took"]:
            if at >= first and at + each <= last:
                kept.append(each / MS)
            at += each
        found.append(kept)
    if not all(found):
        raise HostRefused(
            "the runs whose verdicts were to be timed did not propose at once: is the host very busy?"
        )
    return found
