from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.console import made

if TYPE_CHECKING:
    from tests.cli.conftest import Spl
    from tests.server import Daemon


@pytest.fixture
def watched(daemon: Daemon) -> Daemon:
    """Give a daemon with a run of somebody who means no good."""
    engine = (
        b'event: engine.health\ndata: {"version":"1.2.3"}\n\nevent: engine.workers\ndata: {"workers":[]}\n\n'
    )
    rows = [
        made.row(
            "th_run_5ca1ab1e", actor="did:sync:user:\x1b[2J\u202e", state="done", goal="[red]\x1b]0;x\x07"
        )
    ]
    nothing = {"object": "list", "data": [], "has_more": False}
    daemon.routes |= {
        "GET /v1/engine/health": made.health(),
        "GET /v1/engine/watch": engine,
        "GET /v1/runs": {"object": "list", "data": rows, "has_more": False},
        "POST /v1/records/query": nothing,
        "GET /v1/rules": nothing,
    }
    return daemon


@pytest.mark.parametrize("arguments", [["--once"], [], ["--no-color"]])
def test_where_there_is_no_terminal_it_prints_one_plain_frame(
    spl: Spl, watched: Daemon, arguments: list[str]
) -> None:
    frame = spl("console", *arguments, TERM="xterm-256color")
    assert (frame.returncode, frame.stderr) == (0, "")
    assert "\x1b" not in frame.stdout
    assert "\u202e" not in frame.stdout
    assert "5ca1ab1e  done" in frame.stdout
    assert r"user:\x1b[2J\u202e" in frame.stdout
    assert r"[red]\x1b]0;x\x07" in frame.stdout


def test_a_plain_frame_is_as_wide_as_columns_says(spl: Spl, watched: Daemon) -> None:
    frame = spl("console", "--once", COLUMNS="50").stdout
    assert 40 < max(map(len, frame.splitlines())) <= 50
    assert max(map(len, spl("console", "--once", COLUMNS="wide").stdout.splitlines())) > 100


def test_as_json_it_is_a_document_of_what_is_known(spl: Spl, watched: Daemon) -> None:
    printed = spl("console", "--once", "-o", "json").stdout
    assert printed.isascii()
    told = json.loads(printed)
    assert (told["object"], told["health"]["version"]) == ("console", "1.2.3")
    assert [(run["thread"], run["state"], run["last_verdict"]) for run in told["runs"]] == [
        ("th_run_5ca1ab1e", "done", None)
    ]
    assert told["rules"] == []


def test_a_daemon_that_does_not_answer_is_the_usual_error(spl: Spl) -> None:
    ended = spl("console", "--once")
    assert (ended.returncode, ended.stdout) == (16, "")
    assert "DAEMON_UNREACHABLE" in ended.stderr
