from __future__ import annotations

import select
import threading
from typing import TYPE_CHECKING

import pytest

from spl.client import Client
from spl.console import feeds as feeds_module
from spl.console.actions import StopRun
from spl.console.events import Link, Linked
from spl.console.feeds import MOST_WAITING, Done, Fault, Feeds, Inbox, overview
from spl.console.opened import Opened
from spl.console.state import State, apply
from spl.console.watching import frame, once
from spl.errors import DaemonUnreachable, RunFinished
from tests.console import made
from tests.server import error

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.console.conftest import Scripted
    from tests.server import Request

SECONDS = 20


def until(feeds: Feeds, state: State, holds: Callable[[], object], did: list[Done] | None = None) -> None:
    """Take in what comes until something holds; what was done meanwhile is put into `did`."""
    while not holds():
        ready, _, _ = select.select([feeds.inbox.descriptor], [], [], SECONDS)
        assert ready, f"nothing comes any more: {state}"
        for item in feeds.inbox.take():
            if isinstance(item, Fault):
                raise item.error
            if not isinstance(item, Done):
                apply(state, item)
            elif did is not None:
                did.append(item)


def test_what_was_is_read_and_what_comes_is_told(scripted: Scripted) -> None:
    scripted.rows = [made.row(turns=1, spent_usd=0.1)]
    state = State()
    with Feeds(scripted.client) as feeds:
        scripted.records.send("heartbeat", {"sequence": 10}, 10)
        scripted.record(made.turn(1))
        scripted.record(made.turn(2))
        scripted.engine.send("engine.health", made.health(version="9"))
        until(feeds, state, lambda: state.records.is_ == "open" and state.health.get("version") == "9")
        until(feeds, state, lambda: state.runs["th_run_a"].turns == 2)
    assert state.runs["th_run_a"].spent_usd == pytest.approx(0.2)
    (watched,) = [each for each in scripted.daemon.requests if each.path == "/v1/watch"]
    assert watched.headers["last-event-id"] == "10"


def test_after_a_restart_all_is_read_anew_and_nothing_is_doubled(scripted: Scripted) -> None:
    scripted.rows = [made.row()]
    state = State()
    with Feeds(scripted.client) as feeds:
        scripted.record(made.turn(1))
        until(feeds, state, lambda: state.runs and state.runs["th_run_a"].turns == 1)
        scripted.rows = [made.row(turns=1, spent_usd=0.1), made.row("th_run_b")]
        scripted.records.send("server_shutdown", {"retry_after_ms": 0})
        scripted.records.end()
        until(feeds, state, lambda: state.records == Link("gone", "the daemon stops"))
        assert state.runs["th_run_a"].turns == 1
        scripted.records.send("heartbeat", {"sequence": 12}, 12)
        scripted.record(made.turn(1))
        scripted.record(made.turn(2))
        until(feeds, state, lambda: state.records.is_ == "open" and state.runs["th_run_a"].turns == 2)
    assert sorted(state.runs) == ["th_run_a", "th_run_b"]
    assert state.runs["th_run_a"].spent_usd == pytest.approx(0.2)


def test_a_daemon_that_does_not_answer_is_tried_until_it_does(scripted: Scripted) -> None:
    state = State()
    health = scripted.daemon.routes.pop("GET /v1/engine/health")
    with Feeds(scripted.client) as feeds:
        until(feeds, state, lambda: state.records.is_ == "failing")
        scripted.daemon.routes["GET /v1/engine/health"] = health
        scripted.records.send("heartbeat", {"sequence": 12}, 12)
        until(feeds, state, lambda: state.records.is_ == "open")


def test_nobody_there_is_said_in_the_words_of_the_client() -> None:
    state = State()
    with Feeds(Client("/nowhere/spl.sock")) as feeds:
        until(feeds, state, lambda: state.records.is_ == "gone" and state.engine.is_ == "gone")
    assert "/nowhere/spl.sock" in state.records.said


def test_a_member_is_refused_the_engine_once_and_still_has_its_own_runs(scripted: Scripted) -> None:
    refused = error(403, "SCOPE_DENIED", "the token lacks the scope admin")
    scripted.daemon.routes |= {
        "GET /v1/engine/watch": refused,
        "GET /v1/profiles": refused,
        "GET /v1/rules": refused,
    }
    scripted.rows = [made.row()]
    state = State()
    with Feeds(scripted.client) as feeds:
        scripted.records.send("heartbeat", {"sequence": 10}, 10)
        feeds.ask("rules")
        until(feeds, state, lambda: state.engine.is_ == "refused" and state.records.is_ == "open")
        until(feeds, state, lambda: state.not_allowed == {"rules", "profiles"})
        feeds._engine.join(SECONDS)
        assert not feeds._engine._thread.is_alive()
    assert "SCOPE_DENIED" in state.engine.said
    assert list(state.runs) == ["th_run_a"]
    assert scripted.daemon.asked().count("GET /v1/engine/watch") == 1


def test_a_stream_that_ends_with_an_error_says_which(scripted: Scripted) -> None:
    state = State()
    with Feeds(scripted.client) as feeds:
        scripted.records.send("error", error(401, "TOKEN_REVOKED", "the token was revoked"))
        scripted.records.end()
        until(feeds, state, lambda: "TOKEN_REVOKED" in state.records.said)
    assert state.records.is_ == "failing"
    assert "revoked" in state.records.said


def test_an_opened_run_is_told_from_its_beginning_and_shutting_it_ends_its_stream(scripted: Scripted) -> None:
    state = State(opened=Opened("th_run_a"))
    with Feeds(scripted.client) as feeds:
        feeds.open("th_run_a")
        scripted.run.send("record.created", {"record": made.anchor()}, 1)
        until(feeds, state, lambda: state.opened and state.opened.entries)
        run = feeds._run
        assert run is not None
        feeds.shut()
        run.join(SECONDS)
        assert not run._thread.is_alive()


def test_a_thread_that_is_another_s_is_refused_in_words(scripted: Scripted) -> None:
    state = State(opened=Opened("th_run_b"))
    with Feeds(scripted.client) as feeds:
        feeds.open("th_run_b")
        until(feeds, state, lambda: state.opened and "NOT_FOUND" in state.opened.refused)


def test_leaving_ends_every_feed_whatever_it_waits_for(scripted: Scripted) -> None:
    with Feeds(scripted.client) as feeds:
        feeds.open("th_run_a")
        scripted.records.send("heartbeat", {"sequence": 10}, 10)
        until(feeds, State(), lambda: "GET /v1/watch" in scripted.daemon.asked())
        all_ = [feeds._records, feeds._engine, feeds._run]
    for feed in all_:
        assert feed is not None
        feed.join(SECONDS)
        assert not feed._thread.is_alive()


def test_an_action_is_done_with_one_request_and_what_became_of_it_is_told(scripted: Scripted) -> None:
    stop = StopRun("th_run_a", "ann")
    scripted.daemon.routes["POST /v1/runs/th_run_a/events"] = {"object": "run"}
    with Feeds(scripted.client) as feeds:
        state = State()
        feeds.perform(stop)
        did: list[Done] = []
        until(feeds, state, lambda: did, did)
        assert (did[0].action, did[0].error) == (stop, None)
        scripted.daemon.routes["POST /v1/runs/th_run_a/events"] = error(409, "RUN_FINISHED", "it has ended")
        feeds.perform(stop)
        did.clear()
        until(feeds, state, lambda: did, did)
        assert isinstance(did[0].error, RunFinished)
    posted = [each.body for each in scripted.daemon.requests if each.path.endswith("/events")]
    assert posted == [{"type": "stop"}] * 2


def test_a_feed_that_has_more_than_is_taken_waits_and_is_let_go_at_the_end() -> None:
    inbox = Inbox()
    for _ in range(MOST_WAITING):
        assert inbox.put(Linked("records", Link()))
    put: list[bool] = []
    waiting = threading.Thread(target=lambda: put.append(inbox.put(Linked("records", Link()))))
    waiting.start()
    assert len(inbox.take()) == MOST_WAITING
    waiting.join(SECONDS)
    assert put == [True]
    for _ in range(MOST_WAITING - 1):
        inbox.put(Linked("records", Link()))
    last = threading.Thread(target=lambda: put.append(inbox.put(Linked("records", Link()))))
    last.start()
    inbox.close()
    last.join(SECONDS)
    assert put == [True, False]


def test_an_answer_of_another_form_is_no_daemon_s_and_tried_again(scripted: Scripted) -> None:
    scripted.daemon.routes["GET /v1/engine/health"] = {"object": "health"}
    scripted.daemon.routes["GET /v1/runs"] = {"object": "list", "data": 5}
    state = State()
    with Feeds(scripted.client) as feeds:
        until(feeds, state, lambda: state.records.is_ == "gone" and "is no daemon" in state.records.said)
        scripted.daemon.routes["GET /v1/engine/health"] = made.health()
        scripted.records.send("heartbeat", {"sequence": 12}, 12)
        until(feeds, state, lambda: state.records.is_ == "open")
    assert state.runs == {}


def test_a_run_that_goes_on_is_known_however_many_are_newer(scripted: Scripted) -> None:
    def runs(request: Request) -> made.Json:
        old = made.row("th_run_old")
        rows = [old] if request.query.get("state") == "running" else [made.row("th_run_new", state="done")]
        return {"object": "list", "data": rows, "has_more": True}

    scripted.daemon.routes["GET /v1/runs"] = runs
    _, listed = overview(scripted.client)
    state = State()
    apply(state, listed)
    assert sorted(state.runs) == ["th_run_new", "th_run_old"]
    assert state.has_older


def test_an_error_that_nobody_foresaw_is_told_and_not_printed_by_a_thread(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(client: Client, what: str) -> None:
        del client, what
        raise ZeroDivisionError

    monkeypatch.setattr(feeds_module, "listed", fails)
    with Feeds(scripted.client) as feeds:
        faults: list[object] = []
        while not faults:
            assert select.select([feeds.inbox.descriptor], [], [], SECONDS)[0]
            faults += [item.error for item in feeds.inbox.take() if isinstance(item, Fault)]
    assert isinstance(faults[0], ZeroDivisionError)


def test_the_health_is_read_anew_for_whom_the_engine_does_not_tell_it(scripted: Scripted) -> None:
    state = State()
    scripted.daemon.routes["GET /v1/engine/health"] = made.health(version="4")
    apply(state, Linked("engine", Link("refused", "SCOPE_DENIED")))
    with Feeds(scripted.client) as feeds:
        until(feeds, state, lambda: state.health)
        scripted.daemon.routes["GET /v1/engine/health"] = made.health(version="5")
        assert feeds.ask("health")
        until(feeds, state, lambda: state.health["version"] == "5")


def test_runs_are_asked_for_a_few_at_a_time(scripted: Scripted) -> None:
    held = threading.Event()

    def row(request: Request) -> made.Json:
        assert held.wait(SECONDS)
        return made.row(request.path.rsplit("/", 1)[-1])

    threads = [f"th_run_{number}" for number in range(20)]
    scripted.daemon.routes |= {f"GET /v1/runs/{thread}": row for thread in threads}
    state = State()
    with Feeds(scripted.client) as feeds:
        assert 0 < sum(feeds.row(thread) for thread in threads) < len(threads)
        held.set()
        until(feeds, state, lambda: "th_run_0" in state.runs)


def test_one_frame_has_the_runs_the_rules_and_the_workers(scripted: Scripted) -> None:
    scripted.rows = [made.row(state="done"), made.row("th_run_b")]
    scripted.engine.send("engine.health", made.health())
    workers = [{"thread": "th_run_b", "pid": 7, "memory_bytes": 1, "cpu_seconds": 0.1}]
    scripted.engine.send("engine.workers", {"workers": workers})
    state = once(scripted.client)
    scripted.engine.end()
    assert state.workers["th_run_b"].pid == 7
    seen = frame(state, 160)
    assert "2 of 2 rows" in seen
    assert seen.isascii() or all(each.isprintable() or each == "\n" for each in seen)
    assert "\x1b" not in seen


def test_one_frame_of_a_daemon_that_is_not_there_is_the_usual_error() -> None:
    with pytest.raises(DaemonUnreachable):
        once(Client("/nowhere/spl.sock"))
