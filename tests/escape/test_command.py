"""`spl escape` as a person meets it: rows, refusals, progress, and nothing left when it is broken off."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from escape import installation, suite
from escape.attempts import ATTEMPTS
from escape.installation import Installation
from escape.suite import Found
from spl.cli.calling import commands
from spl.cli.options import Invocation
from spl.errors import EscapeFailed, EscapeUnfinished, InvalidBody
from tests.escape.told import MUTATION, ROW

SPL = [sys.executable, "-m", "spl.cli.main", "escape"]
ORDINARY = 23461
SECONDS = 60


def _invoke(*words: str) -> Any:
    return CliRunner().invoke(commands, ["escape", *words], obj=Invocation(), standalone_mode=False)


def test_the_rows_of_a_class_are_printed_and_all_green_is_success() -> None:
    done = subprocess.run(
        [*SPL, "run", "keyrings", "--profile", "worker", "-o", "table"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("hosted: kernel ")
    rows = [line.split() for line in lines if line.startswith("keyrings.")]
    assert ["keyrings.add", "syscalls", "EPERM", "at", "add_key", "green", "everywhere"] in rows
    assert lines[-1].endswith(" 0 red")


def test_a_whole_run_says_what_came_of_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [ROW, {**ROW, "profile": "strict", "layer": "network"}, {**ROW, "id": "abi.x32", "class": "abi"}]
    monkeypatch.setattr(suite, "run", lambda *_: Found(hosts={"same-user": {"kernel": "6.1"}}, rows=rows))
    lines = _invoke("run", "-o", "table").output.splitlines()
    assert ["keyrings", "1", "2", "0", "syscalls,", "network"] in [line.split() for line in lines]
    assert "hosted: not tried, since it needs root" in lines
    assert lines[-1] == "2 attempts, 3 rows, 0 red"


def test_an_ordinary_user_tries_the_shape_there_is_for_them(world_readable: Installation) -> None:
    def spl(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*world_readable.command, "-m", "spl.cli.main", "escape", *words],
            capture_output=True, text=True, timeout=SECONDS, env=world_readable.env, cwd="/",
            user=ORDINARY, group=ORDINARY, extra_groups=[],
        )  # fmt: skip

    done = spl("run", "keyrings", "--profile", "worker", "-o", "json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {row["shape"] for row in said["rows"]} == set(said["hosts"]) == {"same-user"}
    refused = spl("run", "--shape", "hosted")
    assert refused.returncode == 2
    assert "needs root" in refused.stderr


@pytest.mark.parametrize(
    "words", [("run", "nonsense"), ("run", "--profile", "nonsense"), ("mutate", "nonsense")]
)
def test_what_there_is_not_is_refused_before_anything_is_tried(words: tuple[str, ...]) -> None:
    done = subprocess.run([*SPL, *words], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2
    assert "there is no 'nonsense': there are " in done.stderr


def test_a_name_that_is_nearly_one_is_told() -> None:
    done = subprocess.run([*SPL, "run", "mount.bind"], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2
    assert "did you mean mounts.bind" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("run", "--profile", "base", "--shape", "hosted"), ("mutate", "separate_user", "--shape", "same-user")],
)
def test_where_nothing_is_tried_nothing_has_succeeded(words: tuple[str, ...]) -> None:
    done = subprocess.run([*SPL, *words], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == EscapeUnfinished.exit_status
    assert "nothing was " in done.stderr


def test_a_report_that_cannot_be_kept_is_not_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(suite, "run", lambda *_: pytest.fail("it was begun"))
    assert isinstance(_invoke("run", "--save", str(tmp_path / "none" / "r.json")).exception, OSError)
    for words in (("keyrings",), ("--shape", "hosted"), ("--profile", "worker")):
        done = _invoke("run", *words, "--save", str(tmp_path / "r.json"))
        assert isinstance(done.exception, click.UsageError)
    assert not list(tmp_path.iterdir())


def test_a_red_row_fails_and_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    red = {**ROW, "got": "ESCAPED: a key", "ok": False}
    monkeypatch.setattr(suite, "run", lambda *_: Found(rows=[ROW, {**ROW, "shape": "same-user"}, red]))
    done = _invoke("run", "-o", "table")
    assert isinstance(done.exception, EscapeFailed)
    assert "1 of 3 rows are red; got out: keyrings.add" in done.exception.message
    lines = done.output.splitlines()
    assert any("ESCAPED: a key" in line and ATTEMPTS["keyrings.add"].sentence in line for line in lines)
    assert "3 rows, 1 red" in lines[-1]
    other = {**ROW, "got": "EACCES at add_key", "ok": False}
    monkeypatch.setattr(suite, "run", lambda *_: Found(rows=[other]))
    assert "stopped, but not by what must stop it: keyrings.add" in str(_invoke("run").exception)


def test_a_layer_that_nobody_misses_fails_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        suite, "mutate", lambda *_: Found(mutations=[MUTATION, {**MUTATION, "red": {}, "ok": False}])
    )
    done = _invoke("mutate", "-o", "table")
    assert isinstance(done.exception, EscapeFailed)
    assert "network: the daemon's network" in done.exception.message
    monkeypatch.setattr(suite, "mutate", lambda *_: Found(mutations=[MUTATION]))
    assert _invoke("mutate", "-o", "json").exception is None


def test_a_whole_report_is_saved_and_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = {shape: {"kernel": "6.1"} for shape in suite.SHAPES}
    monkeypatch.setattr(suite, "run", lambda *_: Found(hosts=hosts, rows=[{**ROW, "got": "\x1b[31m[red]"}]))
    monkeypatch.setattr(suite, "mutate", lambda *_: Found(mutations=[MUTATION]))
    path = tmp_path / "report.json"
    assert _invoke("run", "-o", "json", "--save", str(path)).exception is None
    shown = _invoke("report", "keyrings", "--file", str(path), "-o", "table").output
    assert "hosted: kernel 6.1" in shown
    assert "\\x1b[31m[red]" in shown
    assert "the daemon's network" in shown


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"rows": [{}]}', '{"rows": 7}', "\x00", json.dumps({"rows": [ROW]})]
)
def test_what_is_no_report_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    done = _invoke("report", "--file", str(path), "-o", "table")
    assert isinstance(done.exception, InvalidBody)
    assert "no report of the escape suite" in str(done.exception)


@pytest.mark.parametrize(("said", "told"), [("no word", "no word"), ("", "it said nothing")])
def test_a_child_that_does_not_come_to_its_end_is_told(
    monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    command = ["sh", "-c", f"echo '{said}' >&2; exit 7"]
    monkeypatch.setattr(installation, "here", lambda: Installation("", command, {}))
    with pytest.raises(EscapeUnfinished, match=f"shape hosted, exit 7: {told}"):
        suite.run(["hosted"], ["worker"], ["keyrings"])


# Its own System V objects: what is left there is the suite's, whatever else this host does.
ALONE = """
import subprocess, sys
started = subprocess.Popen(sys.argv[1:])
print(started.pid, flush=True)
print(started.wait())
print(sum(len(open(f"/proc/sysvipc/{name}").read().splitlines()) - 1 for name in ("shm", "sem", "msg")))
"""


@pytest.mark.parametrize(
    ("number", "status", "shapes"),
    [
        (signal.SIGINT, 130, suite.SHAPES),
        (signal.SIGTERM, 143, ("hosted",)),
        (signal.SIGHUP, 129, ("same-user",)),
    ],
)
def test_it_shows_how_far_it_is_on_a_terminal_and_leaves_nothing_when_it_is_broken_off(
    number: int, status: int, shapes: tuple[str, ...]
) -> None:
    ours, theirs = pty.openpty()
    apart = ["unshare", "--ipc", sys.executable, "-c", ALONE]
    chosen = [word for shape in shapes for word in ("--shape", shape)]
    command = [*apart, *SPL, "run", "limits", "load", *chosen]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    assert process.stdout is not None
    try:
        pid = int(process.stdout.readline())
        seen = b""
        while not re.search(rb"(limits|load)\.", seen) or any(each.encode() not in seen for each in shapes):
            piece = os.read(ours, 65536)
            assert piece
            seen += piece
        pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        assert _folders(pids)
        os.kill(pid, number)
        with contextlib.suppress(OSError):  # EIO: its end, on a terminal
            while os.read(ours, 65536):
                pass
        ended, objects = process.communicate(timeout=SECONDS)[0].split()
        assert (int(ended), int(objects)) == (status, 0)
        assert not _folders(pids)
    finally:
        os.close(ours)
        process.kill()
        process.wait()
        process.stdout.close()


def _folders(pids: list[int]) -> list[Path]:
    """Give the folders that these processes of the suite have made."""
    return [path for pid in pids for path in Path("/tmp").glob(f"spl-{pid}-*")]
