"""What is wrong turns red, all the way from inside the confined process to the exit status."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import escape
from spl.errors import EscapeFailed, EscapeUnfinished

MORE = """
import os as _os
import select as _select
from escape.attempt import Attempt, Wall
from escape.inside import call, calls_work, stopped

def _lame(world): call("ptrace", 0, 0, 0, 0)
def _breaks(world): raise KeyError("broken")
def _blocks(world):
    while True:
        _select.poll().poll()
def _leaves(world): _os._exit(0)

_WALLS = [Wall("syscalls", "EPERM at ptrace", "killed by SIGKILL")]
ATTEMPTS = (
    *ATTEMPTS,
    *(
        Attempt(
            f"keyrings.{name}", "is here to be red", chain,
            control=control, walls=_WALLS, escape="somebody is out", alone=alone,
        )
        for name, chain, control, alone in (
            ("sound", lambda world: str(call("ptrace", 0, 0, 0, 0)), calls_work, False),
            ("out", lambda world: "the other side", calls_work, False),
            ("other", lambda world: stopped("EACCES at ptrace"), calls_work, False),
            ("uncontrolled", lambda world: stopped("EPERM at ptrace"), _lame, False),
            ("broken", _breaks, calls_work, False),
            ("gone", _leaves, calls_work, True),
            ("stuck", _blocks, calls_work, True),
        )
    ),
)
"""


def _altered(folder: Path, changes: dict[str, str]) -> dict[str, str]:
    """Give the environment of a suite with lines added to some of its files."""
    shutil.copytree(Path(str(escape.__file__)).parent, folder / "escape")
    for name, lines in changes.items():
        with open(folder / "escape" / name, "a", encoding="utf-8") as file:
            file.write(f"\n{lines}\n")
    root = str(Path(str(escape.__file__)).parent.parent)
    return {**os.environ, "PYTHONPATH": f"{folder}:{root}"}


def _run(folder: Path, changes: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "spl.cli.main", "escape", *words, "--shape", "hosted", "-o", "json"],
        capture_output=True, text=True, timeout=110, env=_altered(folder, changes),
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    folder = tmp_path_factory.mktemp("red")
    changes = {"attempts/keyrings.py": MORE, "instance.py": "_RUN_SECONDS = 5.0"}
    done = _run(folder, changes, "run", "keyrings", "--profile", "worker")
    rows = {row["id"]: row for row in json.loads(done.stdout)["rows"]}
    return done.returncode, rows, done.stderr


@pytest.mark.claim("E1", "E2")
@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("sound", "EPERM at ptrace"),
        ("out", "ESCAPED: the other side"),
        ("other", "EACCES at ptrace"),
        ("uncontrolled", "the control failed: EPERM at ptrace"),
        ("broken", "broke down: KeyError: 'broken'"),
        ("gone", "ended by itself with 0"),
    ],
)
def test_an_attempt_that_is_not_stopped_as_it_must_be_is_a_red_row(
    done: tuple[int, dict[str, Any], str], name: str, got: str
) -> None:
    row = done[1][f"keyrings.{name}"]
    assert (row["got"], row["ok"]) == (got, name == "sound")


def test_one_that_never_ends_is_stopped_and_red(done: tuple[int, dict[str, Any], str]) -> None:
    # It is killed by the stop of its run: even where that is what is expected of it, it was not stopped by itself.
    row = done[1]["keyrings.stuck"]
    assert (row["got"], row["ok"]) == ("stopped, since it did not end", False)


def test_the_command_fails_and_says_which_got_out_and_which_were_stopped_otherwise(
    done: tuple[int, dict[str, Any], str],
) -> None:
    assert done[0] == EscapeFailed.exit_status
    assert "got out: keyrings.out;" in done[2]
    assert "stopped, but not by what must stop it: keyrings.broken, keyrings.gone, keyrings.other" in done[2]


@pytest.mark.claim("E1")
def test_a_run_of_another_program_than_the_sealed_one_is_no_row(tmp_path: Path) -> None:
    changes = """
from spl.transports.image import seal as _seal
_assemble = assemble
def assemble(*words, image=None):
    return _assemble(*words, image=_seal)
"""
    done = _run(tmp_path, {"instance.py": changes}, "run", "keyrings", "--profile", "worker")
    assert done.returncode == EscapeUnfinished.exit_status
    assert "which was to be a neighbour" in done.stderr or "told nothing" in done.stderr


@pytest.mark.claim("E1", "E3")
def test_a_run_under_another_profile_than_its_rows_would_say_is_no_row(tmp_path: Path) -> None:
    changes = """
async def _nothing(self, name):
    pass
Instance.set_profile = _nothing
"""
    done = _run(tmp_path, {"instance.py": changes}, "run", "keyrings", "--profile", "strict")
    assert done.returncode == EscapeUnfinished.exit_status
    assert "not confined as its rows would say" in done.stderr


@pytest.mark.claim("E2")
def test_a_layer_that_is_not_taken_away_and_one_without_which_nothing_starts_are_not_noticed(
    tmp_path: Path,
) -> None:
    changes = """
REMOVALS = (
    Removal("keyrings", "nothing", Change()),
    Removal("network", "nothing", Change()),
    Removal("network", "an option that bubblewrap does not know", Change(options=lambda said, _: [*said, "--bogus"])),
    Removal("network", "no masks", Change(options=_without("--unshare-net")), ("syscalls", "landlock"), ()),
    Removal("network", "what is not red", Change(options=_without("--unshare-net")), rows=("network.tcp",)),
)
"""
    done = _run(tmp_path, {"weakened.py": changes}, "mutate", "network")
    found = {each["name"]: each for each in json.loads(done.stdout)["mutations"]}
    assert {name: each["ok"] for name, each in found.items()} == dict.fromkeys(found, False)
    assert not found["nothing"]["red"]
    assert found["an option that bubblewrap does not know"]["unmade"]
    assert found["no masks"]["red_before"]
    assert done.returncode == EscapeFailed.exit_status
