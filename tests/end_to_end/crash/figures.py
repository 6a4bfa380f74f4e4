"""What the rounds came to, and the section of docs/soak.md that says it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

INTRODUCTION = """\
One home on a disk of its own, kept from round to round. In each round the operator and two members write records and
start runs, in process and sandboxed, until one thing happens to their daemon. After it every record that anyone was
told of is there as it was told, every id is that of its content, clocks rise, every run has one anchor, one chain and
one outcome, nothing is left running, every place is free again, and no answer was an error that the fault does not
explain.
"""


@dataclass
class Figures:
    """What the rounds came to."""

    shape: str
    seed: int
    seconds: float = 0.0
    rounds: Counter[str] = field(default_factory=Counter)
    """By fault."""
    records: int = 0
    acknowledged: int = 0
    runs: int = 0
    closed: int = 0
    """Starts that found runs without an outcome."""
    swept: int = 0
    """Starts that found workers of an earlier daemon."""
    refused: Counter[str] = field(default_factory=Counter)
    """By code."""
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By outcome and summary."""


def told(figures: Figures) -> str:
    """Give a section of docs/soak.md: what was done to a daemon how often, and what it came to."""
    rounds = "".join(f"| {fault} | {count} |\n" for fault, count in sorted(figures.rounds.items()))
    refused = ", ".join(f"`{code}` {count}" for code, count in sorted(figures.refused.items()))
    outcomes = Counter[str]()
    for (outcome, _), count in figures.outcomes.items():
        outcomes[outcome] += count
    runs = ", ".join(f"`{outcome}` {count}" for outcome, count in sorted(outcomes.items()))
    return (
        f"\n## Crashes, {figures.shape}\n\n{INTRODUCTION}\n"
        f"| what happened to the daemon | rounds |\n|---|---|\n{rounds}\n"
        f"| what it came to | |\n|---|---|\n"
        f"| rounds, seed | {figures.rounds.total()}, {figures.seed} |\n"
        f"| records in the log | {figures.records} |\n"
        f"| of them acknowledged to a client, or read by one | {figures.acknowledged} |\n"
        f"| of those lost | 0 |\n"
        f"| runs | {figures.runs}: {runs} |\n"
        f"| starts that found runs of a dead daemon, and closed them | {figures.closed} |\n"
        f"| starts that found workers of a dead daemon, and killed them | {figures.swept} |\n"
        f"| answers that were errors | {refused or 'none'} |\n"
    )
