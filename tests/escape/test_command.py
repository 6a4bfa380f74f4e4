"""`spl escape` as a person meets it: rows, refusals, progress, and nothing left when it is broken off."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from escape import installation, suite
from escape.installation import Installation
from escape.suite import Found
from spl.cli.main import commands
from spl.cli.options import Invocation
from spl.errors import EscapeFailed, EscapeUnfinished

SPL = [sys.executable, "-m", "spl.cli.main", "escape"]
ORDINARY = 23461
SECONDS = 60

ROW = {
    "id": "keyrings.add", "shape": "hosted", "profile": "worker", "layer": "syscalls", "class": "keyrings",
    "expected": "EPERM at add_key", "got": "EPERM at add_key", "ok": True,
}  # fmt: skip
MUTATION = {
    "layer": "network", "name": "the daemon's network", "shape": "hosted", "profile": "worker", "lifted": [],
    "own": ["network.tcp"], "red": ["network.tcp"], "red_before": [], "ok": True,
}  # fmt: skip


def _invoke(*words: str) -> Any:
    return CliRunner().invoke(commands, ["escape", *words], obj=Invocation(), standalone_mode=False)


def test_the_rows_of_a_class_are_printed_and_all_green_is_success() -> None:
    done = subprocess.run(
        [*SPL, "run", "keyrings", "-o", "table"], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["id", "shape", "profile", "layer", "expected", "got", "ok"]
    assert {word for line in lines for word in line.split()} >= {
        "keyrings.add",
        "same-user",
        "hosted",
        "strict",
        "EPERM",
    }
    assert lines[-1].endswith(" 0 red")


def test_an_ordinary_user_tries_the_shape_there_is_for_them(world_readable: Installation) -> None:
    def spl(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*world_readable.command, "-m", "spl.cli.main", "escape", *words],
            capture_output=True, text=True, timeout=SECONDS, env=world_readable.env, cwd="/",
            user=ORDINARY, group=ORDINARY, extra_groups=[],
        )  # fmt: skip

    done = spl("run", "keyrings", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert {row["shape"] for row in json.loads(done.stdout)["rows"]} == {"same-user"}
    refused = spl("run", "--shape", "hosted")
    assert refused.returncode == 2
    assert "needs root" in refused.stderr


@pytest.mark.parametrize(
    "words", [("run", "nonsense"), ("run", "--profile", "nonsense"), ("mutate", "nonsense")]
)
def test_what_there_is_not_is_refused_before_anything_is_tried(words: tuple[str, ...]) -> None:
    done = subprocess.run([*SPL, *words], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2
    assert "there is no 'nonsense'; there are " in done.stderr


def test_a_red_row_fails_and_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    red = {**ROW, "got": "ESCAPED: a key", "ok": False}
    monkeypatch.setattr(suite, "run", lambda *_: Found(rows=[ROW, red]))
    done = _invoke("run", "-o", "table")
    assert isinstance(done.exception, EscapeFailed)
    assert "1 of 2 rows are red: keyrings.add" in done.exception.message
    assert "ESCAPED: a key" in done.output
    assert "2 rows, 1 red" in done.output


def test_a_layer_that_nobody_misses_fails_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        suite, "mutate", lambda *_: Found(mutations=[MUTATION, {**MUTATION, "red": [], "ok": False}])
    )
    done = _invoke("mutate", "-o", "table")
    assert isinstance(done.exception, EscapeFailed)
    assert "network: the daemon's network" in done.exception.message
    monkeypatch.setattr(suite, "mutate", lambda *_: Found(mutations=[MUTATION]))
    assert _invoke("mutate", "-o", "json").exception is None


def test_a_whole_report_is_saved_and_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(suite, "run", lambda *_: Found(hosts={"hosted": {"kernel": "6.1"}}, rows=[ROW]))
    monkeypatch.setattr(suite, "mutate", lambda *_: Found(mutations=[MUTATION]))
    path = tmp_path / "report.json"
    assert _invoke("run", "-o", "json", "--save", str(path)).exception is None
    shown = _invoke("report", str(path), "-o", "table").output
    assert "hosted: kernel 6.1" in shown
    assert "keyrings.add" in shown
    assert "the daemon's network" in shown
    path.write_text("{}")
    assert _invoke("report", str(path)).exception is not None


@pytest.mark.parametrize(("said", "told"), [("no word", "no word"), ("", "it said nothing")])
def test_a_child_that_does_not_come_to_its_end_is_told(
    monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    command = ["sh", "-c", f"echo '{said}' >&2; exit 7"]
    monkeypatch.setattr(installation, "here", lambda: Installation("", command, {}))
    with pytest.raises(EscapeUnfinished, match=f"shape hosted, exit 7: {told}"):
        suite.run(["hosted"], ["worker"], ["keyrings"])


def test_it_shows_how_far_it_is_on_a_terminal_and_leaves_nothing_when_it_is_broken_off() -> None:
    before = _left()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*SPL, "run"], stdout=subprocess.DEVNULL, stderr=theirs, stdin=subprocess.DEVNULL
    )
    os.close(theirs)
    try:
        seen = b""
        while b"network." not in seen:
            piece = os.read(ours, 65536)
            assert piece
            seen += piece
        assert b"hosted" in seen
        assert b"same-user" in seen
        made = _left() - before
        assert made
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # EIO: its end, on a terminal
            while os.read(ours, 65536):
                pass
        assert process.wait(SECONDS) == 130
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    assert not made & _left()


def _left() -> set[str]:
    """Name what victims leave where nobody cleans up: folders, queues and segments."""
    ipc = {
        f"{name} {line.split()[1]}"
        for name in ("shm", "sem", "msg")
        for line in Path(f"/proc/sysvipc/{name}").read_text(encoding="ascii").splitlines()[1:]
    }
    return ipc | {str(path) for path in Path("/tmp").glob("spl-*")}
