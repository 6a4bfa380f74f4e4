"""A thousand runs and fifty killed ones, in each shape; the figures become docs/soak.md.

`make soak` runs it; by its name it is no part of `make test`, which does a tenth of it in test_leaks.py.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING

import pytest

from spl import __version__
from tests.claims import ROOT
from tests.end_to_end import leaks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape
    from tests.end_to_end.leaks import Figures

RUNS, KILLS = 1000, 50

INTRODUCTION = """\
# Soak

What a daemon holds after {runs} sandboxed runs in a row (the verify goal, the echo provider), and {kills} more whose
worker or its monitor was killed by SIGKILL at some moment between its making and its end, in each shape. Everything
but the log's own length and the daemon's memory must be what it was before: the run of `make soak` that wrote this
page fails otherwise.

| | |
|---|---|
"""


@pytest.mark.timeout(1800)
def test_after_a_thousand_runs_and_fifty_that_were_killed_everything_is_as_it_was(
    same_user: Shape, hosted: Shape, home: Path
) -> None:
    found: dict[str, Figures] = {}
    for shape in (same_user, hosted):
        with shape.daemon(home.with_name(shape.name), **leaks.SETTING) as daemon:
            figures = found[shape.name] = leaks.soak(daemon, RUNS, KILLS, seed=1)
        assert figures.leaked() == {}
    (ROOT / "docs" / "soak.md").write_text(page(found), encoding="utf-8")


def page(found: dict[str, Figures]) -> str:
    """Give the text of docs/soak.md."""
    receipt = next(iter(found.values())).receipt
    kernel = re.match(r"[0-9.]+", os.uname().release)
    facts = {
        "spl": __version__,
        "kernel": f"{kernel[0] if kernel else 'unknown'}, {os.uname().machine}",
        "bubblewrap": receipt["bubblewrap"]["version"],
        "libseccomp": _libseccomp(),
        "Python of the worker": receipt["interpreter"]["version"],
        "profile": f"`{receipt['profile']}`, `{receipt['profile_digest']}`",
        "filter": f"`{receipt['filter_digest']}`",
        "worker's program": f"`{receipt['image_digest']}`",
    }
    rows = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    return INTRODUCTION.format(runs=RUNS, kills=KILLS) + rows + "".join(map(_part, found.items()))


def _part(of: tuple[str, Figures]) -> str:
    name, figures = of
    counts = "".join(
        f"| {kind} | {was.total()} | {figures.after[kind].total()} |\n"
        for kind, was in figures.before.items()
    )
    before, after = (f"{kib / 1024:.1f} MiB" for kib in figures.memory)
    killed = figures.killed
    return (
        f"\n## {name}\n\n{figures.done} runs ended `completed`. Of those meant to be killed, {killed['starting']} "
        f"were still being made (the start was\nrefused), {killed['running']} had begun (`failed`, by SIGKILL), "
        f"and {killed['ended before']} more had ended before the kill came.\n\n"
        f"| held | before | after |\n|---|---|---|\n{counts}| the daemon's memory | {before} | {after} |\n"
    )


def _libseccomp() -> str:
    class Version(ctypes.Structure):
        _fields_ = (("major", ctypes.c_uint), ("minor", ctypes.c_uint), ("micro", ctypes.c_uint))

    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_version.restype = ctypes.POINTER(Version)
    said = library.seccomp_version().contents
    return f"{said.major}.{said.minor}.{said.micro}"
