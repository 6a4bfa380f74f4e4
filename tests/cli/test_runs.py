from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import AdmissionCeiling, RunNotCompleted, RunNotFound
from tests.server import error

if TYPE_CHECKING:
    from tests.cli.conftest import Spl
    from tests.server import Daemon, Request

START = "POST /v1/work/loop"
ROW = "GET /v1/runs/th_run_1"


def row(state: str, **more: object) -> dict[str, Any]:
    told = {"object": "run", "thread": "th_run_1", "actor": "did:sync:user:a", "goal": "g", "state": state}
    return {**told, "turns": 2, "narrowed": ["read_file", "search"], "outcome": None, "summary": None, **more}


def test_a_run_is_watched_until_it_is_done(spl: Spl, daemon: Daemon) -> None:
    states = iter(["running", "running", "done"])
    daemon.routes[START] = row("running")
    daemon.routes[ROW] = lambda request: row(next(states))
    ended = spl("run", "the goal")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == row("done")
    assert daemon.asked() == [START, ROW, ROW, ROW]
    assert daemon.requests[0].body == {"goal": "the goal"}


def test_a_run_that_does_not_complete_fails_with_its_outcome_after_its_row(spl: Spl, daemon: Daemon) -> None:
    daemon.routes[START] = row("running")
    daemon.routes[ROW] = row("stopped_short", outcome="max_turns", summary="three\x1b[2J turns")
    ended = spl("run", "the goal", "-o", "table")
    assert ended.returncode == RunNotCompleted.exit_status
    assert "stopped_short" in ended.stdout
    assert ended.stderr.startswith(
        "spl: RUN_NOT_COMPLETED: the run th_run_1 ended stopped_short, outcome max_turns: three\\x1b[2J turns; "
    )
    assert "\x1b" not in ended.stdout + ended.stderr


def test_every_option_of_run_reaches_the_daemon(spl: Spl, daemon: Daemon) -> None:
    daemon.routes[START] = row("done")
    spl("run", "g", "--actor", "did:sync:agent:x", "--model", "m", "--max-turns", "3", "--budget-usd", "0.05",
        "--wall-clock-secs", "60", "--forbid", "a", "--forbid", "b", "--tool", "c", "--tool", "d")  # fmt: skip
    assert daemon.requests[0].body == {
        "goal": "g", "actor": "did:sync:agent:x", "model": "m", "max_turns": 3, "budget_usd": 0.05,
        "wall_clock_secs": 60, "forbidden_tools": ["a", "b"], "tools": ["c", "d"],
    }  # fmt: skip


def test_a_start_that_is_refused_ends_with_the_refusal(spl: Spl, daemon: Daemon) -> None:
    daemon.routes[START] = error(503, "ADMISSION_CEILING", "4 of 4 runs are live")
    ended = spl("run", "g")
    assert (ended.returncode, ended.stdout) == (AdmissionCeiling.exit_status, "")
    assert "4 of 4 runs are live" in ended.stderr


def test_runs_are_listed_as_asked_for(spl: Spl, daemon: Daemon) -> None:
    listing = {"object": "list", "data": [row("done", goal="x" * 70 + "[b]")], "has_more": False}
    daemon.routes["GET /v1/runs"] = listing
    ended = spl("runs", "list", "--state", "done", "--actor", "did:sync:user:a", "--limit", "5")
    assert json.loads(ended.stdout) == listing
    assert daemon.requests[0].query == {"state": "done", "actor": "did:sync:user:a", "limit": "5"}
    head, line = spl("runs", "list", "-o", "table").stdout.splitlines()
    assert head.split() == ["thread", "actor", "state", "transport", "turns", "spent_usd", "goal"]
    assert line.split() == ["th_run_1", "did:sync:user:a", "done", "2", "x" * 59 + "…"]


def test_a_run_is_shown_by_its_thread(spl: Spl, daemon: Daemon) -> None:
    daemon.routes[ROW] = row("done", goal="[bold]\u202e:smile:")
    assert json.loads(spl("runs", "show", "th_run_1").stdout) == daemon.routes[ROW]
    shown = dict(line.split(maxsplit=1) for line in spl("runs", "show", "th_run_1", "-o", "table").stdout.splitlines()
                 if len(line.split()) > 1)  # fmt: skip
    assert shown["goal"].strip() == r"[bold]\u202e:smile:"
    assert shown["narrowed"].strip() == "read_file, search"


@pytest.mark.parametrize("thread", ["th_none", "../../health", "a/b?c#d", ""])
def test_a_thread_without_a_run_is_not_found_and_stays_one_segment(
    spl: Spl, daemon: Daemon, thread: str
) -> None:
    def refuse(request: Request) -> Any:
        return error(404, "RUN_NOT_FOUND", "no run has this thread")

    quoted = thread.replace("/", "%2F").replace("?", "%3F").replace("#", "%23")
    daemon.routes[f"GET /v1/runs/{quoted}"] = refuse
    assert spl("runs", "show", thread).returncode == RunNotFound.exit_status
