"""What a daemon holds and answers after long use; the figures become docs/soak.md.

`make soak` runs it, in order; by its name it is no part of `make test`, which does a little of each part. Each part
gives the section it came to, and the page is written once all are there: a part that fails leaves the page as it was.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from spl import __version__
from tests.claims import ROOT
from tests.end_to_end import leaks, watchers
from tests.end_to_end import load as loads
from tests.end_to_end.crash import world as crashes
from tests.end_to_end.test_load import check
from tests.fuzz import files as bad_files
from tests.fuzz import http as bad_requests
from tests.records import large

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Json, Shape
    from tests.end_to_end.leaks import Figures

SEED = 1
RUNS, KILLS = 1000, 50
CRASHES = 100
"""Rounds in each shape."""
LOADED_RUNS, LOADED_MEMBERS, LOADED_PLACES = 200, 50, 8
BESIDE_ONE = ((1, 5), (8, 10))
"""Places, and members beside the one that asks without end."""
WATCHERS, TOLD, LARGE = 500, 200, 60
BAD_REQUESTS, BAD_FILES = 10_000, 2000
RECORDS = (1000, 10_000_000)
BYTES_EACH = 1200
"""Of a record on the disk, with its share of the indexes, and as much again while they are made."""

PARTS = ("runs", "crashes", "load", "watchers", "requests", "files", "records", "left")
"""In the order of the page."""

INTRODUCTION = """\
# Soak

What becomes of a daemon in long and in hostile use. `make soak` makes this page, as root and in some twelve minutes,
once every part of it has held what it says must hold.

| | |
|---|---|
"""

LEAKS = """
## Runs, and runs that are killed

What a daemon holds after {runs} sandboxed runs in a row (the verify goal, the echo provider), and {kills} more whose
worker or its monitor was killed by SIGKILL at some moment between its making and its end, in each shape. Everything
but the log's own length and the daemon's memory is what it was before.
"""

LEFT = """
## What the suite leaves to it

`make test` takes away each layer in one of the shapes, and makes tests to which the shape is no matter in one of them,
so that it comes to its end soon. {passed} further tests, which are those in the other shape, passed here.
"""

_found: dict[str, str] = {}
_receipt: Json = {}


@pytest.mark.timeout(1800)
def test_after_a_thousand_runs_and_fifty_that_were_killed_everything_is_as_it_was(
    same_user: Shape, hosted: Shape, home: Path
) -> None:
    found: dict[str, Figures] = {}
    for shape in (same_user, hosted):
        with shape.daemon(home.with_name(shape.name), **leaks.SETTING) as daemon:
            figures = found[shape.name] = leaks.soak(daemon, RUNS, KILLS, SEED)
        assert figures.leaked() == {}
        _receipt.update(figures.receipt)
    _found["runs"] = LEAKS.format(runs=RUNS, kills=KILLS) + "".join(map(_leaks, found.items()))


@pytest.mark.timeout(1800)
def test_no_crash_loses_what_was_acknowledged_or_leaves_anything_behind(
    same_user: Shape, hosted: Shape, home: Path
) -> None:
    told = []
    for shape in (same_user, hosted):
        folder = home.with_name(shape.name)
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        figures = crashes.rounds(shape, folder / "home", CRASHES, SEED)
        assert figures.rounds.keys() == {*crashes.EACH}
        told.append(crashes.told(figures))
    _found["crashes"] = "\n\n".join(map(str.strip, told))


@pytest.mark.timeout(900)
def test_two_hundred_runs_of_fifty_members_all_get_through_and_one_that_asks_without_end_keeps_nobody_out(
    same_user: Shape, hosted: Shape, home: Path
) -> None:
    found = {}
    for shape in (same_user, hosted):
        with shape.daemon(home.with_name(shape.name), **leaks.SETTING) as daemon:
            figures = loads.load(daemon, LOADED_MEMBERS, LOADED_RUNS, LOADED_PLACES)
            check(figures, LOADED_RUNS)
        with shape.daemon(home.with_name(f"{shape.name}-crowd"), **leaks.SETTING) as daemon:
            found[shape.name] = (
                figures,
                [loads.crowd(daemon, members, places) for places, members in BESIDE_ONE],
            )
    _found["load"] = loads.told(found)


@pytest.mark.timeout(900)
def test_five_hundred_watchers_are_told_everything_and_as_many_that_take_nothing_hold_little(
    hosted: Shape, home: Path
) -> None:
    with hosted.daemon(home) as daemon:
        _found["watchers"] = watchers.told(watchers.watch(daemon, WATCHERS, TOLD, LARGE))


@pytest.mark.timeout(900)
def test_no_bad_request_comes_to_a_fault(hosted: Shape, home: Path) -> None:
    # Streams that are left open say so soon.
    with hosted.daemon(home, SPL_HEARTBEAT_SECONDS="1", **leaks.SETTING) as daemon:
        figures = bad_requests.rounds(daemon, BAD_REQUESTS, SEED)
    assert figures.grown() == {}
    _found["requests"] = "## Bad input\n" + bad_requests.told(figures)


@pytest.mark.timeout(900)
def test_no_bad_file_comes_to_a_fault() -> None:
    figures = bad_files.rounds(BAD_FILES, SEED)
    assert figures.findings == []
    _found["files"] = "#" + bad_files.told(figures)


@pytest.mark.timeout(1800)
def test_ten_million_records_are_served_as_a_thousand_are(hosted: Shape, home: Path) -> None:
    needed = max(RECORDS) * BYTES_EACH
    assert shutil.disk_usage(home.parent).free > needed, (
        f"a log of {max(RECORDS)} records needs {needed} bytes"
    )
    found = {}
    for number in RECORDS:
        home.mkdir(mode=0o700)
        large.fill(home / "hub.db", number, processes=os.cpu_count() or 1)
        found[number] = asyncio.run(large.measure(home / "hub.db")) | _served(hosted, home)
        shutil.rmtree(home)
    _found["records"] = large.told(found)


@pytest.mark.timeout(900)
def test_what_the_suite_leaves_to_it_passes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--soak", "-p", "no:cacheprovider", str(ROOT / "tests")],
        cwd=ROOT, env={**os.environ, "CI": "1"}, capture_output=True, text=True, timeout=850,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout.splitlines()[-1])
    assert passed is not None, done.stdout
    _found["left"] = LEFT.format(passed=passed[1])


def test_the_page_is_written() -> None:
    missing = [part for part in PARTS if part not in _found]
    assert not missing, f"docs/soak.md is left as it was: there is nothing to tell of {', '.join(missing)}"
    (ROOT / "docs" / "soak.md").write_text(page(_receipt, _found), encoding="utf-8")


def page(receipt: Json, found: dict[str, str]) -> str:
    """Give the text of docs/soak.md: what it was made on, as a run's receipt says it, and each part's section."""
    kernel = re.match(r"[0-9.]+", os.uname().release)
    facts = {
        "spl": __version__,
        "kernel": f"{kernel[0] if kernel else 'unknown'}, {os.uname().machine}",
        "processors": os.cpu_count(),
        "bubblewrap": receipt["bubblewrap"]["version"],
        "libseccomp": _libseccomp(),
        "Python of the worker": receipt["interpreter"]["version"],
        "profile": f"`{receipt['profile']}`, `{receipt['profile_digest']}`",
        "filter": f"`{receipt['filter_digest']}`",
        "worker's program": f"`{receipt['image_digest']}`",
    }
    rows = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    return INTRODUCTION + rows + "".join(f"\n{found[part].strip()}\n" for part in PARTS)


def _leaks(of: tuple[str, Figures]) -> str:
    name, figures = of
    counts = "".join(
        f"| {kind} | {was.total()} | {figures.after[kind].total()} |\n"
        for kind, was in figures.before.items()
    )
    before, after = (f"{kib / 1024:.1f} MiB" for kib in figures.memory)
    killed = figures.killed
    return (
        f"\n### {name}\n\n{figures.done} runs ended `completed`. Of those meant to be killed, {killed['starting']} "
        f"were still being made (the start was\nrefused), {killed['running']} had begun (`failed`, by SIGKILL), "
        f"and {killed['ended before']} more had ended before the kill came.\n\n"
        f"| held | before | after |\n|---|---|---|\n{counts}| the daemon's memory | {before} | {after} |\n"
    )


def _served(shape: Shape, home: Path) -> dict[str, float]:
    """Give what a daemon over a log takes to be there, in milliseconds, and what it holds then, in MiB."""
    began = time.perf_counter()
    with shape.daemon(home, SPL_BACKUPS_KEPT="0") as daemon:
        assert daemon.request("GET", "/v1/engine/health")["status"] == "ok"
        return {
            "the daemon's start to its first answer, without a backup": 1000 * (time.perf_counter() - began),
            "the daemon's memory, MiB": leaks.memory(daemon) / 1024,
        }


def _libseccomp() -> str:
    class Version(ctypes.Structure):
        _fields_ = (("major", ctypes.c_uint), ("minor", ctypes.c_uint), ("micro", ctypes.c_uint))

    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_version.restype = ctypes.POINTER(Version)
    said = library.seccomp_version().contents
    return f"{said.major}.{said.minor}.{said.micro}"
