"""A worker that means harm, with a real credential, in both shapes: each thing it tries is refused by its name."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spl.client import Client
from spl.errors import Unauthenticated
from spl.kernel import names
from spl.worker.doors import ROUTES
from tests.end_to_end import hostile_requests, leaks
from tests.end_to_end.attacked import reports, start, suffer, until, written
from tests.end_to_end.daemon import Shape
from tests.end_to_end.hostile_daemon import HONEST
from tests.end_to_end.test_isolation import ask_as

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escape.installation import Installation
    from tests.end_to_end.daemon import Daemon, Json

ORDINARY = 23457
"""An ordinary uid without a name: nothing of this host belongs to it."""

BYSTANDER = "did:sync:user:bystander"
DOORS = list(ROUTES.values())


@pytest.fixture(scope="module", params=["same-user", "hosted"])
def daemon(request: pytest.FixtureRequest, world_readable: Installation) -> Iterator[Daemon]:
    """Give one daemon of each shape for all that its workers try."""
    uid = ORDINARY if request.param == "same-user" else 0
    environment = {**world_readable.env, **leaks.SETTING, "SPL_RUN_GRACE_SECONDS": "0.3"}
    program = "tests.end_to_end.hostile_daemon"
    shape = Shape(request.param, uid, tuple(world_readable.command), environment, program=program)
    with tempfile.TemporaryDirectory(prefix="spl-") as folder:
        os.chmod(folder, 0o777)
        with shape.daemon(Path(folder, "home")) as running:
            yield running


@pytest.fixture(scope="module")
def untouched(daemon: Daemon) -> dict[str, Any]:
    """Give what the daemon holds with no run going on."""
    suffer(daemon, "nothing")  # what is loaded on first use, and kept
    return leaks.at_rest(daemon)


@pytest.fixture(scope="module", autouse=True)
def bystander(daemon: Daemon, untouched: dict[str, Any]) -> str:
    """Give the thread of another actor's honest run, which is in its first model call while all is tried."""
    daemon.configure(topic="actor_tier", actor=BYSTANDER, tier="team")
    thread = start(daemon, '{"wait": "bystander"}', BYSTANDER)
    daemon.worker_pid(thread)
    return thread


# --- what is not its to do ---


@pytest.mark.claim("K1", "K5", "K7")
def test_no_call_but_the_models_own_is_judged_and_none_is_run_but_once_and_as_allowed(daemon: Daemon) -> None:
    row, told = suffer(daemon, "calls")

    expected = {
        "409 CALL_NOT_IN_REPLY": {
            "before any reply, propose note",
            "before any reply, run note",
            "before any reply, answer for note",
            "propose the conversation's own forged",
            "of an earlier reply, propose note",
            "of an earlier reply, run note",
            "of an earlier reply, answer for sum",
        },
        "409 CALL_NOT_ALLOWED": {
            "run the unproposed note",
            "answer for the unproposed sum",
            "run the denied shell",
            "answer for the denied shell",
            "answer for the kernel's note",
            "have the kernel run its own sum",
        },
        "409 CALL_ALREADY_RUN": {"run again note", "answer for the run note", "answer again for sum"},
        "422 INVALID_BODY": {
            "propose with other arguments note",
            "propose by another name note",
            "answer as another tool for sum",
            "answer as another call for sum",
            "answer with a verdict for sum",
            "answer with no text for sum",
        },
        "200 deny": {"propose shell"},
        "200 allow": {"propose note", "propose again note", "propose sum", "propose last"},
        "200 OK": {"run note", "answer for sum", "answer for last"},
    }
    assert told == {what: answer for answer, all_ in expected.items() for what in all_}
    assert [
        (body["kind"].split(".")[2], body.get("tool"), body.get("decision") or body.get("status"))
        for body in daemon.bodies(row["thread"])[2:-1]
    ] == [
        ("turn", None, None),
        ("tool_call", "bash", None),
        ("tool_verdict", "bash", "deny"),
        ("tool_call", "record_note", None),
        ("tool_verdict", "record_note", "allow"),
        ("note", None, None),
        ("tool_result", "record_note", "ok"),
        ("tool_call", "calculate", None),
        ("tool_verdict", "calculate", "allow"),
        ("tool_result", "calculate", "ok"),
        ("turn", None, None),
        ("tool_call", "calculate", None),
        ("tool_verdict", "calculate", "allow"),
        ("tool_result", "calculate", "error"),
        ("report", None, None),
        ("turn", None, None),
    ]
    assert (row["outcome"], row["tool_calls_ok"], row["tool_calls_failed"]) == ("completed", 2, 2)


@pytest.mark.claim("K5")
def test_it_writes_its_own_words_on_its_own_thread_and_nothing_else(daemon: Daemon) -> None:
    row, told = suffer(daemon, "kinds")

    reserved = dict.fromkeys(hostile_requests.NOT_ITS_OWN, "403 KIND_RESERVED")
    foreign = {f"with a {name}": "422 INVALID_BODY" for name in hostile_requests.FOREIGN_FIELDS}
    assert told == {
        **reserved,
        **foreign,
        "a kind within a kind": "422 INVALID_BODY",
        "a kind that is no text": "422 INVALID_BODY",
        "a body that is no object": "422 INVALID_BODY",
        "100 000 characters": "422 INVALID_BODY",
        "as someone else, in its own words": "200 OK",
    }
    plans = daemon.bodies(row["thread"], names.PLAN)
    assert plans[0] == {"kind": names.PLAN, **hostile_requests.FOREIGN_FIELDS}
    assert len(plans) + len(daemon.bodies(row["thread"], names.REPORT)) == 256
    (note,) = daemon.bodies(row["thread"], "core.work.note.v1")
    assert note["text"] == "422 INVALID_BODY", "the 257th record of its own words was taken"
    assert row["outcome"] == "completed"


@pytest.mark.claim("I8")
def test_it_finds_five_doors_and_none_of_them_open_to_another_bearer(daemon: Daemon) -> None:
    row, told = suffer(daemon, "paths")

    assert told == {
        **dict.fromkeys(hostile_requests.NO_DOORS, "404 NOT_FOUND"),
        **{f"{line} for {no}": "401 UNAUTHENTICATED" for line in DOORS for no in hostile_requests.NO_BEARERS},
    }
    assert row["outcome"] == "completed"


def test_what_cannot_be_read_is_refused_and_what_is_no_http_or_too_much_of_it_is_closed(
    daemon: Daemon,
) -> None:
    row, told = suffer(daemon, "bodies")

    posts = ("infer", "propose", "call", "record")
    assert told == {
        **{f"{door}: {what}": "422 INVALID_BODY" for door in posts for what in hostile_requests.NO_JSON},
        **dict.fromkeys(hostile_requests.NO_HTTP, "400"),
        "a head without end": "431",
        "an unknown encoding": "501",
        **dict.fromkeys(hostile_requests.HUGE, "413 BODY_TOO_LARGE"),
        "garbage behind a request": "200 400",
        "a request in a request's body": "409 CALL_NOT_IN_REPLY 400",
    }
    assert (row["outcome"], row["turns"]) == ("completed", 1)


def test_it_has_eight_connections_and_those_beyond_are_closed_unread(daemon: Daemon) -> None:
    row, told = suffer(daemon, "connects")

    assert told == {"answered": "7"}, "its first connection is the eighth"
    assert row["outcome"] == "completed"


@pytest.mark.claim("T7", "A3")
def test_ten_thousand_requests_keep_nobody_else_from_working_nor_their_run_from_being_stopped(
    daemon: Daemon,
) -> None:
    thread = start(daemon, "floods")
    until(daemon, lambda: asked(daemon, thread))

    honest = daemon.finish(start(daemon, "honest work"))
    assert (honest["outcome"], honest["tool_calls_ok"]) == ("completed", len(HONEST))
    until(daemon, lambda: asked(daemon, thread) >= 10_000)
    assert daemon.request("GET", f"/v1/runs/{thread}")["state"] == "running"
    daemon.request("POST", f"/v1/runs/{thread}/events", {"type": "stop"})

    row = daemon.finish(thread)
    assert (row["outcome"], row["state"]) == ("cancelled", "stopped")
    assert written(daemon, row)[-1]["exit"] == {"signal": "SIGKILL"}


def asked(daemon: Daemon, thread: str) -> int:
    """Give how many requests a worker that floods has had answered, to the last thousand."""
    return max((report["count"] for report in reports(daemon, thread)), default=0)


# --- credentials ---


@pytest.mark.claim("I14", "I7")
def test_a_credential_is_no_good_to_another_run_nor_another_process_nor_after_its_runs_end(
    daemon: Daemon,
) -> None:
    actor = "did:sync:user:lender"
    daemon.configure(topic="actor_tier", actor=actor, tier="paid")
    lender = start(daemon, "lends lent", actor)
    credential = until(
        daemon, lambda: next((str(each["credential"]) for each in reports(daemon, lender)), "")
    )
    refuse_outsiders(daemon, credential)
    # Of the same actor, so that it may read what the other has written, and while the other goes on.
    refuse_another_run(daemon, actor, lender, credential)
    row = daemon.finish(lender)
    assert reports(daemon, lender)[-1]["told"] == {"its own": "200 OK"}, "it was good to its own worker"
    assert row["outcome"] == "completed"
    written(daemon, row)

    refuse_outsiders(daemon, credential)
    refuse_another_run(daemon, actor, lender, credential)


def refuse_outsiders(daemon: Daemon, credential: str) -> None:
    """Have processes that are no worker use a credential, of the daemon's own user and of another."""
    path = os.path.realpath(daemon.home / "run" / "spl-worker.sock")
    own = os.lstat(daemon.home).st_uid
    for line in DOORS:
        bearer = f"Authorization: Bearer {credential}"
        request = f"{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}\r\n\r\n"
        answer = ask_as(own, path, request)
        assert answer.startswith("HTTP/1.1 401 "), line
        assert '"UNAUTHENTICATED"' in answer
        assert ask_as(0 if own else ORDINARY, path, request) == ""
    with pytest.raises(Unauthenticated):
        Client(("127.0.0.1", daemon.port), bearer=credential).request("GET", "/v1/runs")


def refuse_another_run(daemon: Daemon, actor: str, lender: str, credential: str) -> None:
    """Have another worker read a credential on the thread it was published on, and use it."""
    row = daemon.finish(start(daemon, f"borrows lent {lender}", actor))
    (report,) = reports(daemon, row["thread"])
    assert report["borrowed"] == credential
    assert report["told"] == dict.fromkeys(DOORS, "401 UNAUTHENTICATED")
    assert row["outcome"] == "completed"
    written(daemon, row)


# --- ends ---


@pytest.mark.claim("K6")
@pytest.mark.parametrize(
    ("goal", "outcome", "exit_", "summary"),
    [
        ("leaves", "failed", {"code": 0}, "The loop ended before the model's first reply."),
        ("drops", "failed", {"code": 0}, "The loop ended with calls of the last reply unanswered."),
        ("exits 137", "failed", None, "The loop ended with"),
        ("exits 1", "failed", {"code": 1}, "The loop ended with code 1."),
        ("lies", "completed", {"code": 0}, "It is 43."),
    ],
)
def test_an_end_is_what_the_kernel_saw_of_it(
    daemon: Daemon, goal: str, outcome: str, exit_: Json | None, summary: str
) -> None:
    row, _ = suffer(daemon, goal)

    said = daemon.bodies(row["thread"])[-1]
    # Linux 6.15 and later tell a status of 137 from the SIGKILL it stands for in a shell.
    assert said["exit"] == exit_ or (exit_ is None and said["exit"] in ({"code": 137}, {"signal": "SIGKILL"}))
    assert row["outcome"] == outcome
    assert row["summary"].startswith(summary)
    assert (said["success"], said["evidence"]) == (outcome == "completed", "worker")


@pytest.mark.claim("K6")
def test_who_goes_on_with_a_call_unanswered_has_failed_and_who_goes_on_after_that_is_killed(
    daemon: Daemon,
) -> None:
    row, told = suffer(daemon, "skips")

    assert told == {
        **dict.fromkeys(("skip", "skip again"), "failed"),
        **{f"propose {call}": "200 stop" for call in ("note", "sum")},
        **{
            f"{does} {call}": "409 CALL_NOT_ALLOWED"
            for does in ("run", "answer for")
            for call in ("note", "sum")
        },
    }
    assert (row["outcome"], row["turns"], row["tool_calls_ok"]) == ("failed", 1, 0)
    assert row["summary"] == "The loop went on without an answer to the call 'note'."
    assert daemon.bodies(row["thread"])[-1]["exit"] == {"signal": "SIGKILL"}


@pytest.mark.claim("K6")
def test_who_goes_on_after_its_turns_are_used_is_killed(daemon: Daemon) -> None:
    row, told = suffer(daemon, "outlasts", max_turns=1)

    assert told == {"turn": "max_turns"}
    assert (row["outcome"], row["turns"], row["tool_calls_ok"]) == ("max_turns", 1, 1)
    assert daemon.bodies(row["thread"])[-1]["exit"] == {"signal": "SIGKILL"}


def test_who_says_half_a_request_keeps_nobody_else_waiting_and_ends_at_its_wall_clock(daemon: Daemon) -> None:
    thread = start(daemon, "stalls", wall_clock_secs=1)
    assert daemon.finish(start(daemon, "honest work"))["outcome"] == "completed"

    row = daemon.finish(thread)
    said = written(daemon, row)[-1]
    assert (row["outcome"], said["budget_kind"]) == ("budget_exhausted", "wall_clock")
    assert (row["turns"], said["exit"]) == (0, {"signal": "SIGKILL"})


@pytest.mark.claim("K6")
def test_a_success_that_was_claimed_is_none_while_its_worker_stays(daemon: Daemon) -> None:
    row, _ = suffer(daemon, "stays", wall_clock_secs=1)

    assert row["outcome"] == "budget_exhausted"
    assert daemon.bodies(row["thread"])[-1]["budget_kind"] == "wall_clock"


@pytest.mark.claim("K6")
def test_a_success_that_was_claimed_is_none_when_its_worker_was_killed(daemon: Daemon) -> None:
    thread = start(daemon, "stays")
    until(daemon, lambda: reports(daemon, thread))
    os.kill(daemon.worker_pid(thread), signal.SIGKILL)

    row = daemon.finish(thread)
    assert (row["outcome"], row["turns"]) == ("failed", 1)
    assert written(daemon, row)[-1]["exit"] == {"signal": "SIGKILL"}


# --- what is there afterwards ---


@pytest.mark.claim("A3")
def test_after_all_of_them_a_bystander_is_undisturbed_and_nothing_is_left(
    daemon: Daemon, untouched: dict[str, Any], bystander: str
) -> None:
    assert daemon.request("GET", f"/v1/runs/{bystander}")["state"] == "running"
    assert len(daemon.bodies(bystander)) == 2
    daemon.finish(start(daemon, '{"release": "bystander"}'))

    row = daemon.finish(bystander)
    assert (row["outcome"], row["turns"], row["tool_calls_ok"]) == ("completed", 2, len(HONEST))
    assert [body["kind"].split(".")[2] for body in written(daemon, row)[2:]] == [
        *("turn", "tool_call", "tool_verdict", "note", "tool_result"),
        *("tool_call", "tool_verdict", "tool_result", "turn", "loop_outcome"),
    ]
    # Of processes, uids, files and the daemon's own descriptors; a connection may have been closing when it began.
    after = leaks.settled(daemon, untouched)
    assert {name: found - untouched[name] for name, found in after.items() if found - untouched[name]} == {}
    work_loop = daemon.request("GET", "/v1/engine/health")["work_loop"]
    assert work_loop["admission_available"] == work_loop["admission_capacity"]
    assert daemon.process.poll() is None
    assert not [line for line in daemon.log.lines if '"level": "error"' in line or "Traceback" in line]
