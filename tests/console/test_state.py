from __future__ import annotations

import json
from typing import Any

import pytest

from spl.console.events import Link, Linked, Listed, OpenedRecord, Recorded, Reopened, Row, Runs, Told
from spl.console.opened import MOST_ENTRIES, Opened
from spl.console.state import MOST_LINES, MOST_RUNS, State, apply, document
from spl.console.text import PAGE
from tests.console import made


def run(state: State, thread: str = "th_run_a") -> Any:
    return state.runs[thread]


def log(state: State, event: str, timestamp: str, number: int = 1) -> None:
    line = {"event": event, "timestamp": timestamp, "level": "info"}
    apply(state, Told("log", {"number": number, "line": line}))


def test_a_run_is_folded_from_its_records() -> None:
    state = made.known(
        made.anchor(),
        made.receipt("syscalls"),
        made.turn(1),
        made.verdict("deny", "rule", "no-bash"),
        made.turn(2),
    )
    assert (run(state).turns, run(state).max_turns, run(state).pid) == (2, 5, 4711)
    assert run(state).spent_usd == pytest.approx(0.2)
    assert run(state).verdict == ("deny", "rule", "no-bash", "bash")
    assert run(state).is_going
    apply(state, Recorded(made.outcome(state="stopped", outcome="cancelled", spent_usd=0.3)))
    assert (run(state).state, run(state).outcome, run(state).spent_usd) == ("stopped", "cancelled", 0.3)


def test_a_turn_that_the_listing_had_counted_is_not_counted_twice() -> None:
    state = made.known(
        made.anchor(), made.turn(1), made.turn(2), made.turn(3), rows=[made.row(turns=2, spent_usd=0.2)]
    )
    assert run(state).turns == 3
    assert run(state).spent_usd == pytest.approx(0.3)


def test_what_another_than_the_engine_writes_on_a_runs_thread_changes_nothing_of_its_row() -> None:
    lies = [made.outcome(), made.turn(4), made.verdict("allow", "allow")]
    state = made.known(made.anchor(), *({**each, "actor": "did:sync:user:mallory"} for each in lies))
    assert (run(state).state, run(state).turns, run(state).verdict) == ("running", 0, None)


def test_reading_the_runs_anew_replaces_them_and_doubles_nothing() -> None:
    state = made.known(made.anchor(), made.turn(1), made.verdict("deny", "clamp"), made.refusal())
    apply(state, Runs([made.row(turns=1, spent_usd=0.1)], [], [made.refusal()], []))
    assert list(state.runs) == ["th_run_a"]
    assert run(state).spent_usd == pytest.approx(0.1)
    assert run(state).verdict[1] == "clamp"
    assert len(state.refusals) == 1


def test_the_newest_verdict_is_the_last_one_of_a_run_that_was_listed() -> None:
    state = State()
    newest_first = [made.verdict("stop", "stop"), made.verdict("allow", "allow")]
    apply(state, Runs([made.row()], newest_first, [], []))
    assert run(state).verdict.decision == "stop"


def test_a_refused_start_is_a_row_of_its_own_with_its_layer_and_its_remedy() -> None:
    state = made.known(made.refusal("cgroup"))
    (row,) = state.refusals.values()
    assert (row.state, row.verdict.layer if row.verdict else None) == ("refused", "cgroup")
    assert ("remedy", "mount one") in row.refusal


def test_a_run_older_than_those_that_were_listed_is_asked_for_by_its_thread() -> None:
    state = made.known(made.turn(7, thread="th_run_old"))
    assert list(state.unknown) == ["th_run_old"]
    apply(state, Row(made.row("th_run_old", turns=7)))
    assert run(state, "th_run_old").turns == 7


def test_a_run_that_ends_while_it_is_asked_for_is_asked_for_again() -> None:
    state = made.known(made.turn(7, thread="th_run_old"))
    # It is being asked for.
    state.unknown.clear()
    apply(state, Recorded(made.outcome(thread="th_run_old")))
    apply(state, Row(made.row("th_run_old", turns=7)))
    assert list(state.unknown) == ["th_run_old"]


def test_a_row_that_is_read_again_keeps_the_last_verdict() -> None:
    state = made.known(made.verdict("deny", "clamp"), rows=[made.row()])
    apply(state, Row(made.row(turns=7)))
    assert run(state).verdict[1] == "clamp"


def test_a_stream_that_says_that_it_is_open_still_makes_nothing_old() -> None:
    state = made.known()
    apply(state, Linked("records", Link("open")))
    assert state.rules_are_old
    state.rules_are_old = False
    apply(state, Linked("records", Link("open")))
    assert not state.rules_are_old


def test_of_two_rules_whose_names_begin_alike_each_is_another() -> None:
    state = State()
    rules = [{"name": "x" * 100 + end, "action": "deny", "priority": 1, "enabled": True} for end in "ab"]
    apply(state, Listed("rules", rules))
    assert len({rule.key for rule in state.rules or ()}) == 2


@pytest.mark.parametrize("said", [None, 5, "no", [5], [[]], {"a": 1}])
def test_what_is_no_listing_is_taken_in_as_nothing(said: Any) -> None:
    state = made.known()
    apply(state, Runs(said, said, said, said))
    apply(state, Listed("rules", said))
    apply(state, Listed("profiles", said))
    apply(state, Told("workers", {"workers": said}))
    assert document(state)["runs"] == []


def test_a_document_that_is_nested_deep_is_taken_in_up_to_a_depth() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = {"a": [deep]}
    state = made.known(made.anchor(goal=deep))
    apply(state, Told("health", {"deep": deep}))
    assert "nested too deep" in run(state).goal
    assert len(repr(state.health)) < 1000


def test_the_layers_of_the_newest_receipt_are_known_with_what_was_found() -> None:
    state = made.known(made.anchor(), made.receipt("syscalls"))
    assert state.layers["syscalls"].told() == (
        "claims syscalls", "inside: ptrace: expected EPERM, observed EPERM",
    )  # fmt: skip
    apply(state, Runs([], [], [], [{**made.receipt("lies"), "actor": "did:sync:user:mallory"}]))
    assert "lies" not in state.layers


def test_a_verdict_by_a_rule_and_a_record_of_the_configuration_make_the_rules_old() -> None:
    for record in (
        made.verdict("deny", "rule", "no-bash"),
        {"thread": "th_engine_config", "actor": "x", "body": {}},
    ):
        state = made.known(made.anchor())
        state.rules_are_old = False
        apply(state, Recorded(record))
        assert state.rules_are_old


def test_runs_are_kept_up_to_a_number_and_those_that_go_on_longest() -> None:
    state = made.known(made.anchor("th_run_first"))
    for number in range(MOST_RUNS + 10):
        apply(state, Row(made.row(f"th_run_{number}", state="done")))
    assert len(state.runs) == MOST_RUNS
    assert "th_run_first" in state.runs
    assert "th_run_0" not in state.runs
    assert state.has_older


def test_lines_of_the_log_are_kept_up_to_a_number() -> None:
    state = State()
    for number in range(MOST_LINES + 5):
        log(state, f"line {number}", "2027-01-15T08:00:00Z", number)
    assert len(state.log) == MOST_LINES
    assert list(state.log.values())[-1].text == f"line {MOST_LINES + 4}"


def test_a_log_told_anew_is_not_doubled_and_that_of_the_next_daemon_goes_on() -> None:
    state = State()
    apply(state, Linked("engine", Link("open")))
    log(state, "begun", "2027-01-15T08:00:00Z")
    log(state, "stopping", "2027-01-15T08:00:01Z")
    apply(state, Linked("engine", Link("gone", "no daemon")))
    apply(state, Linked("engine", Link("open")))
    log(state, "begun", "2027-01-15T08:00:00Z")
    log(state, "stopping", "2027-01-15T08:00:01Z")
    log(state, "begun again", "2027-01-15T08:00:02Z")
    assert [line.text for line in state.log.values()] == ["begun", "stopping", "begun again"]


def test_the_log_goes_on_though_the_clock_went_back_between_two_daemons() -> None:
    state = State()
    log(state, "stopping", "2027-01-15T08:00:00Z", number=9)
    apply(state, Linked("engine", Link("gone", "no daemon")))
    apply(state, Linked("engine", Link("open")))
    log(state, "begun again", "2027-01-15T07:00:00Z", number=1)
    assert [line.text for line in state.log.values()] == ["stopping", "begun again"]


def test_a_run_that_acts_makes_the_health_old_where_the_engine_does_not_tell_of_it() -> None:
    state = made.known(made.anchor())
    apply(state, Recorded(made.turn(1)))
    assert not state.health_is_old
    apply(state, Linked("engine", Link("refused", "SCOPE_DENIED")))
    apply(state, Recorded(made.turn(2)))
    assert state.health_is_old


def test_a_field_of_a_log_line_cannot_be_taken_for_another() -> None:
    state = State()
    line = {"event": "run ended", "goal": "none  actor=root", "state": "done"}
    apply(state, Told("log", {"number": 1, "line": line}))
    (told,) = state.log.values()
    assert told.fields == ('goal="none  actor=root"', "state=done")


def test_of_a_daemon_that_is_gone_all_stays_known_but_its_workers() -> None:
    state = made.known(made.anchor())
    apply(
        state,
        Told(
            "workers", {"workers": [{"thread": "th_run_a", "pid": 9, "memory_bytes": 1, "cpu_seconds": 0.5}]}
        ),
    )
    assert state.workers["th_run_a"].pid == 9
    apply(state, Linked("engine", Link("gone", "")))
    assert state.workers == {}
    assert state.runs
    assert state.health


def test_the_engines_own_word_goes_before_what_was_read_beside_the_runs() -> None:
    state = State()
    apply(state, Told("overview", made.health(version="1")))
    assert state.health["version"] == "1"
    apply(state, Linked("engine", Link("open")))
    apply(state, Told("health", made.health(version="3")))
    apply(state, Told("overview", made.health(version="2")))
    assert state.health["version"] == "3"


def test_a_listing_that_is_not_allowed_says_so_and_keeps_nothing() -> None:
    state = State()
    apply(state, Listed("rules", None))
    assert state.rules is None
    assert state.not_allowed == {"rules"}


def opened(*records: dict[str, Any]) -> Opened:
    state = State(opened=Opened("th_run_a"))
    for record in records:
        apply(state, OpenedRecord("th_run_a", record))
    assert state.opened is not None
    return state.opened


def test_the_timeline_tells_turns_calls_verdicts_results_observations_and_the_outcome() -> None:
    told = opened(
        made.anchor(),
        made.receipt("syscalls", "network"),
        made.turn(1),
        made.record("tool_call", tool="bash", arguments={"command": "ls"}),
        made.verdict("deny", "rule", "no-bash"),
        made.record("tool_result", actor="did:sync:user:ann", status="ok", output="42"),
        made.record("observation", rule="repeats", text="again"),
        made.record("note", text="noted"),
        made.record("plan", actor="did:sync:user:ann", steps=["one"]),
        made.outcome(),
    )
    assert [(entry.what, entry.text) for entry in told.entries] == [
        ("begun", "sandboxed, profile worker: count"),
        ("confirmed", "2 of 2 layers, pid 4711, uid 60001"),
        ("reply", "tokens 10 in 2 out, $0.10: I see"),
        ("call", 'bash {"command": "ls"}'),
        ("deny", "bash by layer rule, rule no-bash: because"),
        ("result", "ok: 42"),
        ("observed", "repeats: again"),
        ("note", "noted"),
        ("plan", '{"steps": ["one"]}'),
        ("ended", 'completed, done, exit {"code": 0}: done'),
    ]
    assert [layer.name for layer in told.layers] == ["syscalls", "network"]
    assert told.exit == '{"code": 0}'


def test_a_verdict_that_a_member_wrote_on_the_thread_is_a_record_and_no_verdict() -> None:
    told = opened(made.anchor(), {**made.verdict("allow", "allow"), "actor": "did:sync:user:mallory"})
    assert told.entries[-1].what == "record"
    assert "mallory" in told.entries[-1].text


def test_a_timeline_that_is_read_anew_stays_until_it_comes_and_is_not_doubled() -> None:
    state = State(opened=Opened("th_run_a"))
    past = [made.anchor(), made.turn(1)]
    for record in past:
        apply(state, OpenedRecord("th_run_a", record))
    apply(state, Reopened("th_run_a"))
    assert state.opened is not None
    assert len(state.opened.entries) == 2
    for record in [*past, *past]:
        apply(state, OpenedRecord("th_run_a", record))
    assert len(state.opened.entries) == 2


def test_a_timeline_is_kept_up_to_a_number() -> None:
    told = opened(*(made.turn(number) for number in range(MOST_ENTRIES + 3)))
    assert len(told.entries) == MOST_ENTRIES
    assert told.dropped == 3


def test_another_runs_records_do_not_come_into_the_opened_timeline() -> None:
    state = State(opened=Opened("th_run_a"))
    apply(state, OpenedRecord("th_run_b", made.anchor("th_run_b")))
    assert state.opened is not None
    assert not state.opened.entries


def test_a_text_of_ten_megabytes_costs_nothing_once_it_was_taken_in() -> None:
    huge = "x" * 10_000_000
    state = made.known(made.anchor(goal=huge), made.outcome(summary=huge), made.refusal(remedy=huge))
    state.opened = Opened("th_run_a")
    apply(state, OpenedRecord("th_run_a", made.record("tool_call", tool=huge, arguments={huge: huge})))
    apply(state, Told("log", {"number": 1, "line": {"event": huge, huge: huge, "timestamp": huge}}))
    apply(state, Told("health", {"version": huge, "provider": {huge: [huge]}}))
    kept = [json.dumps(document(state)), repr(state.log), repr(state.opened), repr(state.refusals)]
    assert max(map(len, kept)) < 10 * PAGE
