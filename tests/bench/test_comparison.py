"""What a person would use instead is run where it is, told of where it is not, and leaves nothing behind."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from spl.bench import comparison, floors, suite
from spl.bench.apparatus import QUICK
from tests.end_to_end.daemon import wait_until_gone

if TYPE_CHECKING:
    from pathlib import Path

_WORKS = """#!/bin/sh
touch "$HOME/left" "$TMPDIR/left"
sleep 600 >/dev/null 2>&1 &
echo $! >>"$0.pids"
[ "$1" = --version ] && { echo "jail version 1.2"; exit; }
shift
exec "$@"
"""
_FAILS = """#!/bin/sh
[ "$1" = --version ] && exit 2
echo "first this" >&2
printf 'no namespaces here%0300d\n' 0 >&2
exit 3
"""


def test_each_tool_is_timed_or_says_why_not_and_nothing_of_it_stays(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("works", _WORKS), ("fails", _FAILS)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    own = tmp_path / "home"
    own.mkdir()
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(
        comparison, "OTHERS", {"works": ("--",), "fails": ("--quiet", "--"), "absent": ("--",)}
    )
    monkeypatch.setattr(comparison, "_QUICK_ROUNDS", 2)
    document = suite.run(["help"], size=replace(QUICK, starts=1), compare=True)

    assert document["command"] == "spl bench --compare --only help"
    rows = {(row["name"], row["command"].split()[-1]): row for row in document["comparison"]}
    assert rows["bubblewrap", "true"]["ratio"] == rows["bubblewrap", "pass"]["ratio"] == 1
    for word in ("true", "pass"):
        works, fails, absent = (rows[name, word] for name in ("works", "fails", "absent"))
        assert (works["version"], works["samples"]) == ("1.2", 2)
        assert works["p95"] >= works["value"] > 0
        assert (fails["version"], fails["value"], fails["samples"]) == (None, None, 0)
        assert fails["reason"] == f"it ended with 3: {'no namespaces here'.ljust(200, '0')}"
        assert (absent["value"], absent["reason"]) == (None, "not installed")
        assert rows["spl", word]["value"] > 0
    assert rows["works", "true"]["command"] == "works -- true"
    assert rows["spl", "start"]["ratio"] > 0
    assert os.listdir(place) == os.listdir(own) == []
    # Asked its version once, then for each of the two commands tried once and timed twice.
    pids = [*map(int, (tmp_path / "works.pids").read_text().split())]
    assert len(pids) == 1 + 2 * (1 + 2)
    for pid in pids:
        wait_until_gone(pid)


def test_a_command_that_is_broken_off_while_it_is_timed_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = tmp_path / "pid"
    os.mkfifo(running)
    told: list[int] = []

    def interrupted(*_: object) -> None:
        told.append(int(running.read_text()))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "waitid", interrupted)
    with pytest.raises(KeyboardInterrupt):
        floors.spawned(["/bin/sh", "-c", f"echo $$ >{running}; exec sleep 600"], quiet=True)
    with pytest.raises(ProcessLookupError):
        os.kill(told[0], 0)
