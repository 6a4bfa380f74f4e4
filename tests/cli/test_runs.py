from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import AdmissionCeiling, RunFinished, RunNotCompleted, RunNotFound
from tests.server import error

if TYPE_CHECKING:
    from tests.cli.conftest import Spl
    from tests.server import Daemon, Request

START = "POST /v1/work/loop"
PREVIEW = "POST /v1/work/loop/preview"
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
    daemon.routes[ROW] = row("stopped_short", outcome="max_turns", summary="three\x1b[2J turns.")
    ended = spl("run", "the goal", "-o", "table")
    assert ended.returncode == RunNotCompleted.exit_status
    assert "stopped_short" in ended.stdout
    assert ended.stderr == (
        "spl: RUN_NOT_COMPLETED: the run th_run_1 ended stopped_short, outcome max_turns: three\\x1b[2J turns; "
        "'spl why th_run_1' tells how it came to that\n"
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


def test_a_preview_says_what_a_start_would_be_and_starts_nothing(spl: Spl, daemon: Daemon) -> None:
    told = {"object": "preview", "goal": "g", "transport": "sandboxed", "would_start": True, "refusals": []}
    daemon.routes[PREVIEW] = told
    ended = spl("run", "--preview", "g", "--max-turns", "3")
    assert (ended.returncode, json.loads(ended.stdout), ended.stderr) == (0, told, "")
    assert (daemon.asked(), daemon.requests[0].body) == ([PREVIEW], {"goal": "g", "max_turns": 3})


def test_a_preview_of_a_start_that_would_be_refused_ends_as_the_start_would(spl: Spl, daemon: Daemon) -> None:
    refusals = [
        error(503, "ADMISSION_CEILING", "4 of 4\x1b[2J runs are live"),
        error(503, "ISOLATION_UNAVAILABLE", "x"),
    ]
    daemon.routes[PREVIEW] = {"object": "preview", "would_start": False, "refusals": refusals}
    ended = spl("run", "--preview", "g", "-o", "json")
    assert ended.returncode == AdmissionCeiling.exit_status
    assert len(json.loads(ended.stdout)["refusals"]) == 2
    said, document = ended.stderr.splitlines()
    assert said.startswith(r"spl: ADMISSION_CEILING: 4 of 4\x1b[2J runs are live; ")
    assert json.loads(document)["code"] == "ADMISSION_CEILING"
    table = spl("run", "--preview", "g", "-o", "table").stdout
    assert r"ADMISSION_CEILING: 4 of 4\x1b[2J runs are live, ISOLATION_UNAVAILABLE: x" in table


def test_a_run_is_told_to_stop(spl: Spl, daemon: Daemon) -> None:
    taken = {"object": "event", "type": "stop", "thread": "th_run_1"}
    daemon.routes["POST /v1/runs/th_run_1/events"] = taken
    ended = spl("runs", "stop", "th_run_1")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, taken)
    assert daemon.requests[0].body == {"type": "stop"}


@pytest.mark.parametrize("kind", [RunFinished, RunNotFound])
def test_what_is_no_run_that_goes_on_cannot_be_stopped(
    spl: Spl, daemon: Daemon, kind: type[RunFinished | RunNotFound]
) -> None:
    daemon.routes["POST /v1/runs/th_run_1/events"] = error(kind.status, kind.code, "no")
    ended = spl("runs", "stop", "th_run_1")
    assert (ended.returncode, ended.stdout) == (kind.exit_status, "")


def test_an_interrupt_ends_the_waiting_and_says_how_to_stop_the_run(
    daemon: Daemon, environ: dict[str, str]
) -> None:
    asked = threading.Event()
    told = row("running", thread="th_run_\x1b[2J")

    def going_on(request: Request) -> Any:
        asked.set()
        return told

    watched = "GET /v1/runs/th_run_%1B%5B2J"
    daemon.routes |= {START: told, watched: going_on}
    command = [sys.executable, "-m", "spl.cli.main", "run", "g"]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert asked.wait(30)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (130, "")
    assert r"spl: run: the run goes on; 'spl runs stop th_run_\x1b[2J' stops it" in stderr
    assert "\x1b" not in stderr
    assert set(daemon.asked()) == {START, watched}
