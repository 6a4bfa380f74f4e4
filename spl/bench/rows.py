"""What is measured, the goals it is held against, and the rows that come of it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Json = dict[str, Any]

MILLION: Final = "10^6"
"""Records of the long log, when all is measured."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A row before it is measured: what it is of, in which unit, and the limit it is held to.

    With a `floor`, the name of what it is divided by, the limit is of that ratio; without, of the value. Without a
    limit it is a figure to know, and no goal.
    """

    what: str
    unit: str
    limit: float | None = None
    floor: str | None = None
    at_least: bool = False

    @property
    def text(self) -> str:
        """The goal as people read it; nothing where there is none."""
        if self.limit is None:
            return ""
        side = "at least" if self.at_least else "at most"
        return f"{side} {self.limit:g} {self.unit if self.floor is None else f'x {self.floor}'}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured: in the row's unit, but for `samples`, their number; `floor` is what it is divided by."""

    value: float
    samples: int
    floor: float | None = None
    p95: float | None = None
    short: str | None = None
    """What keeps the goal from being met whatever the value is."""
    note: str | None = None

    @classmethod
    def of(cls, samples: Sequence[float], *, floor: float | None = None, note: str | None = None) -> Measured:
        """Give the median of samples, with their 95th percentile."""
        return cls(statistics.median(samples), len(samples), floor, percentile(samples, 95), note=note)


F1, F2, F3, F4 = "floor-spawn", "floor-bubblewrap", "floor-interpreter", "floor-answer"

GOALS: Final[Mapping[str, Goal]] = {
    F1: Goal("F1: posix_spawn of true", "ms"),
    F2: Goal("F2: bare bubblewrap, the same namespaces and no filter, with true", "ms"),
    F3: Goal("F3: bare bubblewrap with the interpreter, -I -S -c pass", "ms"),
    F4: Goal("F4: a constant JSON answer of the same server on a unix socket", "ms"),
    "cold-start": Goal(
        "a start: its connection accepted, every layer confirmed, credential written", "ms", 1.6, "F3"
    ),
    "warm-start": Goal("the same of a start that takes a standby worker", "ms", 0.2, "F3"),
    "first-model-call": Goal(
        "from a warm start's connection to its run's first model call at the broker", "ms", 0.5, "F3"
    ),
    "judgment": Goal(
        "a verdict, call and verdict durable first, one confined run proposing", "ms", 2.5, "F4"
    ),
    "judgment-16": Goal(
        "the same with 16 runs proposing at once, the 99th percentile (beyond the 95th, which stands beside it)",
        "ms",
        12,
        "F4",
    ),
    "runs-per-second": Goal(
        "whole sandboxed runs, four at once for each core", "1/s", 0.35, "cores / F3", at_least=True
    ),
    "sandboxed-wall": Goal("a whole sandboxed run, one at a time", "ms", 2, "in process"),
    "worker-memory": Goal("an idle confined worker, its proportional set size", "MiB", 7),
    "daemon-memory": Goal("the daemon at rest, its resident set", "MiB", 90),
    "daemon-wakeups": Goal("the daemon at rest, how often its threads wake", "1/s", 2),
    "watcher": Goal("from a record's append to its event at a watcher", "ms", floor="the append alone"),
    "appends": Goal("durable appends of 16 writers", "1/s", 8, "one writer", at_least=True),
    "thread-page": Goal("a thread's page of 100 records in a log of {many}", "ms", 1.3, "a log of 10^3"),
    "help": Goal("spl --help", "ms", 3, "an interpreter"),
    "daemon-start": Goal(
        "a daemon with a log of {many}, from its start to its first answer", "ms", 1.5, "an empty log"
    ),
}
"""Every row by its name, in the order in which they are shown."""

PHASES: Final[Mapping[str, str]] = {
    "sources": "what the profile shows is looked at again, a uid is leased, the launch is written down",
    "held": "bubblewrap is started, sets the namespaces and mounts up, and holds its child",
    "ready": "limits are set, the interpreter starts, the program probes its confinement and says so",
    "confirmed": "every layer is held against what the process said and what is seen from outside",
}
"""The phases of a launch, in order, and what is done in each."""


def percentile(samples: Sequence[float], percent: int) -> float:
    """Give the smallest sample that so many percent of them do not exceed."""
    return sorted(samples)[max(0, math.ceil(len(samples) * percent / 100) - 1)]


def shown_name(name: str, goal: Goal, many: str) -> str:
    """Give the name under which a row is shown: over another log than the long one it bears that one's length."""
    return name if "{many}" not in goal.what or many == MILLION else f"{name}-{many}"


def row(name: str, goal: Goal, measured: Measured, *, many: str) -> Json:
    """Give a row as the document has it."""
    ratio = None if measured.floor is None else measured.value / measured.floor
    held = measured.value if goal.floor is None else ratio
    met = None
    if held is not None and goal.limit is not None:
        met = (held >= goal.limit if goal.at_least else held <= goal.limit) and measured.short is None
    reason = measured.short or measured.note
    return {
        "name": shown_name(name, goal, many),
        "what": goal.what.format(many=many),
        "value": rounded(measured.value),
        "unit": goal.unit,
        "p95": rounded(measured.p95),
        "samples": measured.samples,
        "floor": rounded(measured.floor),
        "ratio": rounded(ratio),
        "goal": goal.text or None,
        "met": met,
        **({"reason": reason} if reason else {}),
    }


def rounded(value: float | None) -> float | None:
    """Give four digits of a figure: more than that is noise."""
    return None if value is None else float(f"{value:.4g}")
