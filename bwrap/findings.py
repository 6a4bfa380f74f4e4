"""What a layer is made of, and how one is judged: things seen from outside, things tried from inside.

A row is looked at twice: from outside, in `/proc/<pid>` (proc(5)), and from inside, by attempts the process makes
before anything is entrusted to it. An attempt counts only with the answer that proves the layer. Where a call could be
refused for another reason than the layer, one of its kind must still work; and every answer carries the launch's nonce,
so that a process that did nothing cannot look confined.
"""

from __future__ import annotations

import errno
import functools
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bwrap.host import Shape
from bwrap.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bwrap.plan import Plan
    from bwrap.process import Process

WORKS = "works"
"""What an attempt that must succeed is expected to give: any value that is not an errno."""


class Finding(NamedTuple):
    """One thing that was looked at: where, what it must be, what it was."""

    how: str
    expected: str
    observed: str
    confirmed: bool


class Attempt(NamedTuple):
    """One thing the process tries itself: an operation of the self-probe and the answer that proves the layer.

    An answer that depends on the process's numbers is given as a function of it: `expected_of` has them put in.
    """

    name: str
    operation: tuple[object, ...]
    expected: object

    def expected_of(self, process: Process) -> object:
        """Give the answer that proves the layer of this process."""
        return self.expected(process) if callable(self.expected) else self.expected


class Asked(NamedTuple):
    """An attempt as it is asked for among those of all layers: by a `name` of its own, in a `row` of JSON."""

    name: str
    row: str
    attempt: Attempt


def _always(_: Plan) -> bool:
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One row of the table.

    A plan that does not `claim` it has no such layer. What a process `sets_itself` it does before any other attempt.
    """

    name: str
    claim: str
    remedy: str
    outside: Callable[[Process], Iterable[Finding]]
    attempts: Callable[[Plan], Iterable[Attempt]]
    shapes: tuple[Shape, ...] = (Shape.SAME_USER, Shape.HOSTED)
    claimed: Callable[[Plan], bool] = _always
    sets_itself: bool = False

    def asked(self, plan: Plan) -> tuple[Asked, ...]:
        """Give what a process of this plan must attempt for it."""
        # One of them names this process.
        return _asked(self, plan, os.getpid())


# They follow from the plan, and a daemon that is busy starts many workers of one.
@functools.lru_cache(maxsize=512)
def _asked(layer: Layer, plan: Plan, _: int) -> tuple[Asked, ...]:
    named = ((f"{layer.name}: {each.name}", each) for each in layer.attempts(plan))
    return tuple(
        Asked(name, json.dumps([name, *each.operation], separators=(",", ":")), each) for name, each in named
    )


def look(process: Process, layer: Layer) -> list[Finding]:
    """Look at one layer from outside. Nothing raises: what cannot be read is a finding that is not confirmed."""
    findings: list[Finding] = []
    try:
        findings.extend(layer.outside(process))
    except (OSError, ValueError, IndexError, KeyError, RecursionError) as error:
        findings.append(Finding("outside", "readable", f"{type(error).__name__}: {error}", confirmed=False))
    return findings


def judge(process: Process, layer: Layer, results: dict[str, object]) -> list[Finding]:
    """Look at one layer from outside, and hold the process's own results against what each must be."""
    findings = look(process, layer)
    for name, _, attempt in layer.asked(process.plan):
        observed, expected = results.get(name, "not attempted"), attempt.expected_of(process)
        confirmed = _proves(observed, expected)
        findings.append(Finding(f"inside: {attempt.name}", told(expected), told(observed), confirmed))
    return findings


def equal(how: str, expected: object, observed: object) -> Finding:
    """Make the finding that something is exactly as it must be."""
    said = told(expected)
    # What is as it must be is said once: most of what a look finds is.
    confirmed = expected == observed
    return Finding(how, said, said if confirmed else told(observed), confirmed)


def told(value: object) -> str:
    """Say a result as a person reads it: an errno by its name, a list by its items, what is no text escaped."""
    if type(value) is int:
        return errno.errorcode.get(-value, str(value)) if value < 0 else str(value)
    if isinstance(value, list):
        return printable(" ".join(str(each) for each in value)) or "nothing"
    if isinstance(value, dict):
        return ", ".join(f"{name} {told(each)}" for name, each in value.items())
    return printable(str(value))


def _proves(observed: object, expected: object) -> bool:
    if expected == WORKS:
        return type(observed) is int and observed >= 0
    return type(observed) is type(expected) and observed == expected
