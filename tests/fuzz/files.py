"""Bad input in files and expressions: made from a seed, judged in a child process, counted by class and outcome.

A child, since a native library that is given the wrong thing ends the process: then the input it was at is found, and
kept in seeds/. So is one that a child does not come back from.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.claims import ROOT
from tests.fuzz import files_exported as exported
from tests.fuzz import files_expressions, files_json
from tests.fuzz import files_judged as judged
from tests.fuzz import files_made as made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEEDS = Path(__file__).parent / "seeds"

CLASSES: dict[str, tuple[Callable[[Random], bytes], Callable[[bytes], str]]] = {
    "profiles": (made.profile, judged.profile),
    "config": (made.config, judged.config),
    "variables": (made.variables, judged.variables),
    "cel": (files_expressions.expression, judged.expression),
    "bodies": (files_json.bodies, judged.bodies),
    "scripts": (files_json.script, judged.script),
    "json": (files_json.document, judged.document),
    "exports": (exported.export, exported.export_judged),
    "logs": (exported.log, exported.log_judged),
}
"""What makes an input of each class, and what judges it."""

_PATIENCE = 60
"""Seconds for one input, then it counts as one that the child did not come back from: some take a second by design."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An input whose outcome may not be, and what that was."""

    kind: str
    seed: int
    index: int
    said: str

    def input(self) -> bytes:
        """Give the input itself."""
        return _made(self.kind, self.seed, self.index)


@dataclass(slots=True)
class Figures:
    """How many inputs of each class came to which outcome, and those that may not be.

    `grown` is by how many KiB the resident memory of a child grew over the second half of its inputs.
    """

    seed: int
    number: int
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    grown: dict[str, int] = field(default_factory=dict)


def rounds(number: int, seed: int) -> Figures:
    """Make and judge so many inputs of each class."""
    figures = Figures(seed, number)
    for kind in CLASSES:
        counts = figures.counts[kind] = Counter()
        resident, first = [], 0
        while first < number:
            rows, ended = _judged_by_a_child(kind, seed, first, number)
            if first + len(rows) < number:
                rows.append({"outcome": "ended the process", "broken": ended})
            for row in rows:
                counts[row["outcome"]] += 1
                if "broken" in row:
                    figures.findings.append(Finding(kind, seed, first, row["broken"]))
                resident.append(row.get("resident", 0))
                first += 1
        figures.grown[kind] = resident[-1] - resident[len(resident) // 2]
    return figures


def told(figures: Figures) -> str:
    """Give a section of Markdown that tells what was counted."""
    rows = [
        f"| {kind} | {outcome} | {times} |"
        for kind, counts in figures.counts.items()
        for outcome, times in counts.most_common()
    ]
    found = [f"- {each.kind} {each.seed}:{each.index}: `{each.said}`" for each in figures.findings]
    return "\n".join(
        [
            "## Files and expressions",
            "",
            f"{figures.number} inputs of each class, from seed {figures.seed}; {len(found)} came to what may not be.",
            "",
            "| class | outcome | inputs |",
            "|---|---|---|",
            *rows,
            *(["", *found] if found else []),
            "",
        ]
    )


def seeds() -> Iterator[tuple[str, Path]]:
    """Give each input that is kept, with its class."""
    return ((path.parent.name, path) for path in sorted(SEEDS.glob("*/*")) if path.parent.name in CLASSES)


def _made(kind: str, seed: int, index: int) -> bytes:
    return CLASSES[kind][0](Random(f"{kind} {seed} {index}"))


def _judged_by_a_child(kind: str, seed: int, first: int, last: int) -> tuple[list[dict[str, Any]], str]:
    """Give what a child says of each input from one to another, and how it ended if that was before the last."""
    command = [sys.executable, "-m", "tests.fuzz.files", kind, str(seed), str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return rows, f"status {done.returncode}: {done.stderr.strip()[-300:]}"


def _judge(kind: str, seed: int, first: int, last: int) -> None:
    """Say a line of each input on standard output, as soon as it is judged."""
    for index in range(first, last):
        # Left to its default action, the signal ends the process within a native library as well.
        signal.alarm(_PATIENCE)
        row: dict[str, object] = {}
        try:
            row["outcome"] = CLASSES[kind][1](_made(kind, seed, index))
        except Exception as error:  # noqa: BLE001 - whatever comes is what is looked for
            where = traceback.extract_tb(error.__traceback__)[-1]
            row["outcome"] = "may not be"
            row["broken"] = f"{type(error).__name__}: {error}"[:300] + f" ({where.filename}:{where.lineno})"
        row["resident"] = _resident()
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    signal.alarm(0)


def _resident() -> int:
    """Give this process's resident memory in KiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    _judge(sys.argv[1], *map(int, sys.argv[2:]))
