from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import (
    AdmissionCeiling,
    DaemonUnreachable,
    RunFinished,
    RunNotCompleted,
    RunNotFound,
    TokenRevoked,
)
from tests.server import error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Spl
    from tests.server import Daemon, Request

START = "POST /v1/work/loop"
PREVIEW = "POST /v1/work/loop/preview"
ROW = "GET /v1/runs/th_run_1"
WATCH = "GET /v1/threads/th_run_1/watch"
ENGINE = "did:sync:system:engine"


def row(state: str, **more: object) -> dict[str, Any]:
    told = {"object": "run", "thread": "th_run_1", "actor": "did:sync:user:a", "goal": "g", "state": state}
    return {**told, "turns": 2, "narrowed": ["read_file", "search"], "outcome": None, "summary": None, **more}


def record(
    sequence: int, kind: str, *, actor: str = ENGINE, thread: str = "th_run_1", **body: object
) -> dict[str, Any]:
    told = {"object": "record", "id": f"{sequence:064x}", "thread": thread, "actor": actor, "act": "KNOW"}
    return {**told, "sequence": sequence, "body": {"kind": f"core.work.{kind}.v1", **body}}


def outcome(sequence: int, state: str = "done", name: str = "completed") -> dict[str, Any]:
    told = record(sequence, "loop_outcome", outcome=name, state=state)
    told["body"] |= {**ENDED, "outcome": name}
    return told


ENDED = {"turns": 2, "spent_usd": 0.5, "tool_calls_ok": 1, "tool_calls_failed": 0, "ended_at": "later",
         "summary": "All of it.", "outcome": "completed"}  # fmt: skip
STEPS = [
    record(1, "loop", goal="the\x1b[2J goal", transport="sandboxed", tier="trial", ceilings={}),
    record(2, "isolation", layers=[{"layer": "network", "confirmed": True}, {"layer": "uts", "confirmed": True}]),
    record(3, "turn", usage={"input_tokens": 7, "output_tokens": 5}, cost_usd=0.00008, reply={"text": "I note it."}),
    record(4, "tool_call", tool="record_note", call_id="c1", arguments={"text": "\u202ea"}),
    record(5, "tool_verdict", tool="record_note", decision="deny", layer="rule", rule="no-notes", reason="no"),
    record(6, "tool_call", tool="calculate", call_id="c2", arguments={"expression": "6*7"}),
    record(7, "tool_verdict", tool="calculate", decision="allow", layer="allow", rule=None, reason="granted"),
    record(8, "note", actor="did:sync:user:else", text="no step: not the kernel's"),
    record(9, "tool_result", tool="calculate", actor="did:sync:user:a", status="ok", output="42", truncated=False),
    record(10, "observation", tool="calculate", rule="repeated_call", text="again"),
    record(11, "note", text="a note"),
    record(12, "plan", actor="did:sync:user:a", steps=["one"]),
    outcome(13),
]  # fmt: skip
STEPS[0]["body"]["actor"] = "did:sync:user:a"
LINES = [
    r"run        sandboxed, tier trial, for did:sync:user:a: the\x1b[2J goal",
    "isolation  2 of 2 layers confirmed",
    "turn       7 tokens in, 5 out, 0.00008 US dollars: I note it.",
    r'call       record_note {"text": "\u202ea"}',
    "verdict    record_note: deny (layer rule, rule no-notes): no",
    'call       calculate {"expression": "6*7"}',
    "verdict    calculate: allow (layer allow): granted",
    "result     calculate: ok: 42",
    "observed   calculate: repeated_call: again",
    "note       a note",
    'plan       {"steps": ["one"]}',
    "ended      completed, state done: All of it.",
]


def streamed(*records: dict[str, Any]) -> bytes:
    """Give an event stream of records, which ends after them."""
    events = (
        f"id: {each['sequence']}\nevent: record.created\ndata: {json.dumps({'id': each['id'], 'record': each})}\n\n"
        for each in records
    )
    return "".join(events).encode()


def test_a_run_is_followed_until_its_outcome_which_completes_its_row(spl: Spl, daemon: Daemon) -> None:
    daemon.routes |= {START: row("running"), WATCH: streamed(*STEPS)}
    ended = spl("run", "the goal")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == row("done", **ENDED)
    assert daemon.asked() == [START, WATCH]
    assert daemon.requests[0].body == {"goal": "the goal"}


def test_a_run_that_does_not_complete_fails_with_its_outcome_after_its_row(spl: Spl, daemon: Daemon) -> None:
    end = outcome(2, "stopped_short", "max_turns")
    end["body"]["summary"] = "three\x1b[2J turns."
    daemon.routes |= {START: row("running"), WATCH: streamed(STEPS[0], end)}
    ended = spl("run", "the goal", "-o", "table")
    assert ended.returncode == RunNotCompleted.exit_status
    assert "stopped_short" in ended.stdout
    assert ended.stderr == (
        "spl: RUN_NOT_COMPLETED: the run th_run_1 ended stopped_short, outcome max_turns: three\\x1b[2J turns; "
        "'spl why th_run_1' tells how it came to that\n"
    )
    assert "\x1b" not in ended.stdout + ended.stderr


def test_a_run_streams_its_own_records_and_its_row_last(spl: Spl, daemon: Daemon) -> None:
    daemon.routes |= {START: row("running"), WATCH: streamed(*STEPS)}
    ended = spl("run", "the goal", "-o", "stream-json")
    *records, last = map(json.loads, ended.stdout.splitlines())
    assert records == [step for step in STEPS if step["sequence"] != 8]
    assert (last, ended.stderr) == (row("done", **ENDED), "")


def test_a_persons_terminal_shows_the_steps_beside_the_row(daemon: Daemon, environ: dict[str, str]) -> None:
    daemon.routes |= {START: row("running"), WATCH: streamed(*STEPS)}
    assert on_terminal(environ, "run", "g") == LINES
    assert on_terminal(environ, "run", "g", "-o", "json") == []


def on_terminal(environ: dict[str, str], *arguments: str) -> list[str]:
    """Run a command whose standard error is a terminal; gives the lines that it shows there."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as screen:
        command = [sys.executable, "-m", "spl.cli.main", *arguments]
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        shown = b""
        # EIO is how the last of a terminal's users is seen to have gone.
        with contextlib.suppress(OSError):
            while piece := screen.read(65536):
                shown += piece
        assert process.wait(30) == 0
    return shown.decode().splitlines()


def test_a_detached_run_is_told_of_at_once_and_not_waited_for(spl: Spl, daemon: Daemon) -> None:
    daemon.routes[START] = row("running")
    ended = spl("run", "--detach", "g")
    assert (ended.returncode, json.loads(ended.stdout), daemon.asked()) == (0, row("running"), [START])
    refused = spl("run", "--detach", "--preview", "g")
    assert (refused.returncode, len(daemon.requests)) == (2, 1)


def test_a_run_is_followed_over_a_daemon_that_stops_and_starts_again(spl: Spl, daemon: Daemon) -> None:
    answers = [
        error(429, "WATCHERS_EXCEEDED", "too many"),
        streamed(*STEPS[:3]) + b'event: server_shutdown\ndata: {"retry_after_ms":1000}\n\n',
        error(503, "STORE_UNAVAILABLE", "not yet"),
        streamed(outcome(4, "stopped_short", "failed")),
    ]
    daemon.routes |= {START: row("running"), WATCH: lambda _: answers.pop(0)}
    daemon.routes[f"GET /v1/records/{STEPS[2]['id']}"] = STEPS[2]
    ended = spl("run", "g", "-o", "stream-json")
    assert [json.loads(line).get("sequence") for line in ended.stdout.splitlines()] == [1, 2, 3, 4, None]
    assert ended.stderr.count("the stream has broken off; waiting for the daemon") == 2
    assert "ended stopped_short, outcome failed" in ended.stderr
    asked = [request.headers.get("last-event-id") for request in daemon.requests if "/watch" in request.path]
    assert asked == [None, None, "3", "3"]


def test_a_run_whose_daemon_does_not_come_back_is_named(spl: Spl, daemon: Daemon) -> None:
    gone = error(503, "DAEMON_UNREACHABLE", "nobody")
    answers = [streamed(*STEPS[:3]), gone]
    daemon.routes |= {START: row("running"), WATCH: lambda _: answers.pop(0)}
    daemon.routes[f"GET /v1/records/{STEPS[2]['id']}"] = STEPS[2]
    ended = spl("run", "g", "--patience-secs", "0", "-o", "json")
    assert (ended.returncode, ended.stdout) == (DaemonUnreachable.exit_status, "")
    *_, said, document = ended.stderr.splitlines()
    assert said.startswith(
        "spl: DAEMON_UNREACHABLE: the run th_run_1 was started, and how it goes cannot be told: "
    )
    assert json.loads(document)["thread"] == "th_run_1"


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


@pytest.fixture
def interrupted(daemon: Daemon, environ: dict[str, str]) -> Iterator[Interrupted]:
    """Give a run that goes on until the test has it end, and the command that waits for it."""
    found = Interrupted()
    daemon.routes |= {
        START: row("running", thread="th_run_\x1b[2J"),
        "GET /v1/threads/th_run_%1B%5B2J/watch": found.watched,
        "POST /v1/runs/th_run_%1B%5B2J/events": found.told_to_stop,
    }
    command = [sys.executable, "-m", "spl.cli.main", "run", "g"]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as found.process:
        yield found
        found.over.set()


class Interrupted:
    """What the command asks for, and how the daemon answers."""

    process: subprocess.Popen[Any]

    def __init__(self) -> None:
        self.asked, self.stopping, self.over = threading.Event(), threading.Event(), threading.Event()
        self.end = outcome(2, "stopped", "cancelled")
        self.answer: Any = {"object": "event", "type": "stop"}

    def watched(self, _: Request) -> Any:
        self.asked.set()
        assert self.over.wait(30)
        return streamed(self.end)

    def told_to_stop(self, _: Request) -> Any:
        self.stopping.set()
        return self.answer

    def interrupt(self, until: threading.Event) -> None:
        assert until.wait(30)
        self.process.send_signal(signal.SIGINT)


def test_an_interrupt_stops_the_run_and_waits_for_its_end(interrupted: Interrupted) -> None:
    interrupted.interrupt(interrupted.asked)
    assert interrupted.stopping.wait(30)
    interrupted.over.set()
    stdout, stderr = interrupted.process.communicate(timeout=30)
    assert (interrupted.process.returncode, json.loads(stdout)["outcome"]) == (130, "cancelled")
    assert stderr == "spl: run: stopping th_run_\\x1b[2J; interrupt again to leave it\n"


def test_a_run_that_ended_before_the_stop_came_ends_as_it_did(interrupted: Interrupted) -> None:
    interrupted.answer = error(409, "RUN_FINISHED", "it has ended")
    interrupted.end = outcome(2)
    interrupted.interrupt(interrupted.asked)
    assert interrupted.stopping.wait(30)
    interrupted.over.set()
    stdout, stderr = interrupted.process.communicate(timeout=30)
    assert (interrupted.process.returncode, json.loads(stdout)["state"]) == (0, "done")
    assert stderr.endswith("spl: run: it was not stopped: it has ended\n")


def test_a_second_interrupt_leaves_the_run_and_says_how_to_stop_it(interrupted: Interrupted) -> None:
    interrupted.interrupt(interrupted.asked)
    interrupted.interrupt(interrupted.stopping)
    stdout, stderr = interrupted.process.communicate(timeout=30)
    assert (interrupted.process.returncode, stdout) == (130, "")
    assert r"spl: run: the run goes on to its next step; 'spl runs stop th_run_\x1b[2J' stops it" in stderr
    assert "\x1b" not in stderr


@pytest.mark.parametrize("more", [(), ("--detach",)], ids=["waited for", "detached"])
def test_an_interrupt_before_the_start_is_answered_stops_the_run_that_begins(
    daemon: Daemon, environ: dict[str, str], more: tuple[str, ...]
) -> None:
    seen, answered = Interrupted(), threading.Event()

    def start(_: Request) -> Any:
        seen.asked.set()
        assert answered.wait(30)
        return row("running")

    daemon.routes |= {START: start, WATCH: seen.watched, "POST /v1/runs/th_run_1/events": seen.told_to_stop}
    command = [sys.executable, "-m", "spl.cli.main", "run", "g", *more]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as seen.process:
        seen.interrupt(seen.asked)
        assert seen.process.stderr is not None
        said = seen.process.stderr.readline()
        answered.set()
        seen.over.set()
        stdout, _ = seen.process.communicate(timeout=30)
    assert "its start has been asked for, and it is stopped once that is answered" in said
    assert seen.stopping.is_set()
    assert (seen.process.returncode, json.loads(stdout)["thread"]) == (130, "th_run_1")


def test_who_started_it_deaf_to_interrupts_is_left_so(daemon: Daemon, environ: dict[str, str]) -> None:
    seen = Interrupted()
    daemon.routes |= {
        START: row("running"),
        WATCH: seen.watched,
        "POST /v1/runs/th_run_1/events": seen.told_to_stop,
    }
    # As nohup and a shell's background jobs are.
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "spl.cli.main", "run", "g"]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as seen.process:
        seen.interrupt(seen.asked)
        seen.end = outcome(2)
        seen.over.set()
        stderr = seen.process.communicate(timeout=30)[1]
    assert (seen.process.returncode, stderr, seen.stopping.is_set()) == (0, b"", False)


def test_the_steps_of_a_run_are_followed_to_its_outcome(spl: Spl, daemon: Daemon) -> None:
    daemon.routes |= {ROW: row("running"), WATCH: streamed(*STEPS, record(14, "note", text="after its end"))}
    tailed = spl("runs", "tail", "th_run_1", "-o", "table")
    assert (tailed.returncode, tailed.stderr, tailed.stdout.splitlines()) == (0, "", LINES)
    for output in ("json", "stream-json"):
        told = spl("runs", "tail", "th_run_1", "-o", output).stdout.splitlines()
        assert [json.loads(line)["sequence"] for line in told] == [*range(1, 8), *range(9, 14)]


def test_the_steps_of_all_runs_are_followed_from_the_oldest_that_goes_on(spl: Spl, daemon: Daemon) -> None:
    other = record(21, "note", thread="th_run_2", text="mine")
    end = b'event: error\ndata: {"object":"error","code":"TOKEN_REVOKED","message":"no more"}\n\n'
    listing: dict[str, Any] = {"object": "list", "data": [row("running", sequence=5)], "has_more": False}
    daemon.routes |= {
        "GET /v1/runs": listing,
        "GET /v1/engine/health": {"records": 40},
        "GET /v1/watch": streamed(*STEPS[-2:], other) + end,
    }
    tailed = spl("runs", "tail", "-o", "table")
    assert tailed.stdout.splitlines() == [f"th_run_1  {line}" for line in LINES[-2:]] + [
        "th_run_2  note       mine"
    ]
    assert tailed.returncode == TokenRevoked.exit_status
    assert daemon.requests[0].query == {"state": "running", "limit": "1"}
    listing["data"] = []
    spl("runs", "tail")
    spl("runs", "tail", "--since", "0")
    asked = [
        request.headers.get("last-event-id") for request in daemon.requests if request.path == "/v1/watch"
    ]
    assert asked == ["4", "40", "0"]


def test_a_thread_without_a_run_is_not_followed(spl: Spl, daemon: Daemon) -> None:
    daemon.routes[ROW] = error(404, "RUN_NOT_FOUND", "no run has this thread")
    assert spl("runs", "tail", "th_run_1").returncode == RunNotFound.exit_status
    assert daemon.asked() == [ROW]


def test_runs_are_listed_one_a_line_as_they_stand(spl: Spl, daemon: Daemon) -> None:
    rows = [row("done"), row("running")]
    daemon.routes["GET /v1/runs"] = {"object": "list", "data": rows, "has_more": False}
    told = spl("runs", "list", "-o", "stream-json")
    assert [json.loads(line) for line in told.stdout.splitlines()] == rows


def test_a_state_that_there_is_not_is_refused_with_those_that_there_are(spl: Spl) -> None:
    refused = spl("runs", "list", "--state", "ended")
    assert refused.returncode == 2
    assert "'running', 'done', 'stopped', 'stopped_short'" in refused.stderr
