"""`spl bench` on this host, for real: no time is asserted, only what is said of it and what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from spl.bench import suite
from spl.bench.apparatus import QUICK
from spl.bench.rows import GOALS
from spl.bench.verdicts import at_once
from spl.cli.calling import commands
from spl.cli.options import Invocation
from spl.errors import HostRefused
from spl.home import Home

if TYPE_CHECKING:
    from collections.abc import Sequence

SPL = [sys.executable, "-m", "spl.cli.main", "bench"]
SECONDS = 60

_WARM = ("warm-start", "first-model-call")

WIRE = {"name", "value", "unit", "floor", "ratio", "goal", "met"}
"""What the contract says of a row."""


def _invoke(*words: str) -> Any:
    return CliRunner().invoke(commands, ["bench", *words], obj=Invocation(), standalone_mode=False)


def test_rows_are_measured_with_their_floors_and_nothing_is_left(place: Path) -> None:
    only = ["cold-start", *_WARM, "judgment", "watcher"]
    words = ["--quick", "--json", *(word for name in only for word in ("--only", name))]
    done = subprocess.run([*SPL, *words], capture_output=True, text=True, timeout=SECONDS)

    document = json.loads(done.stdout)
    rows = {row["name"]: row for row in document["rows"]}
    assert list(rows) == ["floor-interpreter", "floor-answer", *only]
    assert all(row.keys() >= WIRE for row in rows.values())
    assert (rows["watcher"]["goal"], rows["watcher"]["met"]) == (None, None)
    assert rows["watcher"]["value"] >= rows["watcher"]["floor"] > 0
    starts = [(name, "floor-interpreter") for name in ("cold-start", *_WARM)]
    for name, floor in (*starts, ("judgment", "floor-answer")):
        assert rows[name]["floor"] == rows[floor]["value"] > 0
        assert rows[name]["p95"] >= rows[name]["value"] > 0
        assert rows[name]["ratio"] == pytest.approx(rows[name]["value"] / rows[name]["floor"], rel=0.01)
    assert document["quick"]
    assert document["command"] == " ".join(["spl bench --quick", *(f"--only {name}" for name in only)])
    assert document["comparison"] == []
    assert document["host"].keys() >= {
        "kernel",
        "processor",
        "cores",
        "memory_bytes",
        "python",
        "bubblewrap",
        "load",
    }
    assert [part["name"] for part in document["phases"]][:4] == ["sources", "held", "ready", "confirmed"]
    assert document["carries"]["workers"] > 0
    # Whatever this host is like now: what is said, and how it ends, are the same.
    missed = [row["name"] for row in rows.values() if row["met"] is False]
    assert done.returncode == bool(missed), done.stderr
    assert [line.split()[4] for line in done.stderr.splitlines() if "is missed" in line] == missed
    assert os.listdir(place) == []


def test_a_goal_that_is_missed_is_told_and_ends_with_1_and_one_that_is_met_is_not(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    document: dict[str, Any] = {}

    def measured(only: Sequence[str], *, heard: Any, **_: object) -> dict[str, Any]:
        goals = {**GOALS, "help": replace(GOALS["help"], limit=0)}
        document.update(run(only, size=replace(QUICK, starts=1), goals=goals, heard=heard))
        return document

    run = suite.run
    monkeypatch.setattr(suite, "run", measured)
    done = _invoke("--only", "help", "-o", "table")
    assert (done.exception, done.return_value) == (None, 1)
    assert re.search(
        r"the goal of help is missed: [0-9.]+ times its floor, and it should be at most 0 x ", done.stderr
    )
    assert re.search(r"(?m)^help .* NO$", done.stdout)
    assert "This host carries" in done.stdout

    document["rows"][0]["met"] = True
    monkeypatch.setattr(suite, "run", lambda *_, **__: document)
    done = _invoke("--only", "help", "-o", "table")
    assert (done.exception, done.return_value, done.stderr) == (None, None, "")
    assert re.search(r"(?m)^help .* yes$", done.stdout)


def test_a_row_that_there_is_not_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suite, "run", lambda *_, **__: pytest.fail("it was begun"))
    error = _invoke("--only", "cold-starts").exception
    assert isinstance(error, click.UsageError)
    assert "did you mean cold-start" in error.message


def test_a_daemon_that_cannot_be_had_is_an_error_that_says_why(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = place / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    with pytest.raises(HostRefused, match=r"cannot be had \(exit 1\).* takes 1[0-9]{2} bytes"):
        suite.run(["help"], size=QUICK)
    assert os.listdir(deep) == []


def test_a_folder_for_what_is_thrown_away_that_is_not_there_is_an_error_and_no_other_is_taken(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(place / "missing"))
    with pytest.raises(FileNotFoundError, match="missing"):
        suite.run(["help"], size=QUICK)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_broken_off_it_leaves_no_process_and_no_folder(place: Path, number: int, status: int) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*SPL, "--quick", "--only", "cold-start"], stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    try:
        seen = b""
        # Once a sample is there, both daemons serve and runs are made.
        while not re.search(rb"[1-9]/12", seen):
            piece = os.read(ours, 65536)
            assert piece
            seen += piece
        (folder,) = place.iterdir()
        sockets = [
            os.path.dirname(Home(folder / name).bound_worker_socket(hosted=True)) for name in ("home", "cold")
        ]
        running = _started_in(folder)
        assert len(running) >= 2
        os.kill(process.pid, number)
        with contextlib.suppress(OSError):  # EIO: its end, on a terminal
            while os.read(ours, 65536):
                pass
        assert process.wait(SECONDS) == status
        assert _started_in(folder) == []
        assert [path for path in (folder, *map(Path, sockets)) if path.exists()] == []
    finally:
        os.close(ours)
        process.kill()
        process.wait()


def _started_in(folder: Path) -> list[int]:
    """Give the pids of the processes whose command names a folder."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
    return found


def test_only_what_every_run_proposed_at_once_counts() -> None:
    early = {"took": [10_000_000] * 4, "began": 0, "ended": 40_000_000}
    late = {"took": [10_000_000] * 4, "began": 15_000_000, "ended": 55_000_000}
    assert at_once([early, late]) == [[10.0, 10.0], [10.0, 10.0]]
    with pytest.raises(HostRefused, match="did not propose at once"):
        at_once([early, {**late, "began": 41_000_000, "ended": 81_000_000}])


def test_a_quick_row_is_known_by_the_name_under_which_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(only: Sequence[str], **_: object) -> None:
        asked.extend(only)
        raise HostRefused("nothing is measured")

    monkeypatch.setattr(suite, "run", run)
    with pytest.raises(HostRefused):
        raise _invoke("--quick", "--only", "thread-page-10^4", "--only", "thread-page").exception
    assert asked == ["thread-page", "thread-page"]
