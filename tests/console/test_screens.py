from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from spl.console.actions import PutRule, StopRun
from spl.console.dialogs import Confirm, Form, Reading, Typing
from spl.console.events import Link, Linked, Listed, OpenedRecord, Recorded, Row, Runs, Told
from spl.console.keys import Paste
from spl.console.lists import age, budget
from spl.console.opened import Opened
from spl.console.screens import lines
from spl.console.state import State, apply, run_of
from spl.console.text import taken
from spl.console.view import SCREENS, TABS, Status, View, done, press
from spl.errors import ScopeDenied
from tests.console import made

HOSTILE = (
    "\x1b[2J\x1b[31m[red]\u202e\u200d漢字" + "e" + "\u0301" * 9 + "\r\n\t" + "\U0001f469\u200d\U0001f469" * 3
)


def shown(state: State, view: View | None = None, width: int = 120, height: int = 30) -> list[str]:
    return [each.plain.rstrip() for each in lines(state, view or View(), width, height, made.NOW + 90)]


def text(state: State, view: View | None = None, width: int = 120, height: int = 30) -> str:
    return "\n".join(shown(state, view, width, height))


def full(said: str = "count") -> State:
    """Give a state with something of everything, in all of which a text stands."""
    state = made.known(
        made.anchor(goal=said, actor=said), made.receipt("syscalls", said), made.turn(1),
        made.verdict("deny", "rule", said, tool=said), made.refusal(said, remedy=said),
    )  # fmt: skip
    apply(state, Row(made.row("th_run_b", state="done", goal=said, model=said, outcome=said, profile=said)))
    rule = {"name": said, "action": "deny", "priority": 1, "enabled": True, "hits": 2, "expression": said}
    apply(state, Listed("rules", [rule]))
    apply(state, Listed("profiles", [{"name": said, "floor": "ok", "description": said, "error": said}]))
    apply(
        state,
        Told("log", {"number": 1, "line": {"event": said, said: said, "level": "error", "logger": said}}),
    )
    apply(state, Told("workers", {"workers": [{"thread": "th_run_a", "pid": 7, "memory_bytes": 2 << 20}]}))
    state.opened = Opened("th_run_a")
    for record in (
        made.anchor(goal=said), made.receipt(said), made.record("tool_call", tool=said, arguments={said: said}),
        made.verdict("deny", "rule", said), made.record("note", text=said), made.record("x", actor=said),
    ):  # fmt: skip
        apply(state, OpenedRecord("th_run_a", record))
    return state


def views(state: State) -> list[View]:
    """Give a view of every screen, tab and dialog."""
    made_ = [View(screen=screen) for screen in SCREENS]
    made_ += [View(screen="run", tab=tab) for tab in TABS]
    for keys in (
        ("x",),
        ("T",),
        ("p",),
        ("p", "enter"),
        ("3", "a"),
        ("3", "d"),
        ("3", "enter"),
        ("end", "enter"),
    ):
        view = View()
        for key in keys:
            press(view, state, key)
        made_.append(view)
    form = Form("name", expression=HOSTILE, index=3, errors=("EXPRESSION_INVALID: no",))
    made_ += [
        View(status=Status(taken(HOSTILE * 20, 4000), is_error=True)),
        View(dialog=Confirm(PutRule(HOSTILE, "deny", 1, HOSTILE * 50, enabled=True)), status=Status("done")),
        View(dialog=form),
        View(dialog=Typing("runs", HOSTILE)),
        View(dialog=Reading("it", ("x" * 5000,), top=9)),
    ]
    return made_


def test_the_header_says_what_this_instance_is_and_what_it_does() -> None:
    header = "\n".join(shown(made.known(made.anchor()), width=200)[:3])
    for said in (
        "spl 1.2.3", "did:sync:user:root", "/root/.syncro", "tern, shape hosted", "operator in_process",
        "members sandboxed", "profile worker, trial strict", "admission 3 used, 17 free", "provider script, model tiny",
        "spent today $0.01", "1 running",
    ):  # fmt: skip
        assert said in header


def test_a_run_stands_there_with_its_turn_budget_age_and_last_verdict() -> None:
    state = made.known(made.anchor(), made.turn(2), made.verdict("deny", "rule", "no-bash"))
    row = shown(state, width=200)[4]
    for said in (
        "a ",
        "running",
        "user:ann",
        "trial",
        "sandboxed",
        "2/5",
        "$0.10/$0.25",
        "1m",
        "deny rule no-bash: bash",
        "count",
    ):
        assert said in row


def test_a_refused_start_stands_among_the_runs_with_its_layer() -> None:
    assert "refused" in text(made.known(made.refusal("cgroup")))
    assert "layer cgroup" in text(made.known(made.refusal("cgroup")))


def test_a_host_that_cannot_confine_says_so_on_every_screen() -> None:
    state = made.known()
    refused = {"layer": "cgroup", "expected": "a cgroup", "observed": "none", "remedy": "mount one"}
    apply(state, Told("health", made.health(isolation={"shape": "hosted", "layers": [], "refused": refused})))
    assert "sandboxed starts are refused: layer cgroup" in text(state, View(screen="log"))
    assert "this host cannot confine a worker: mount one" in text(state, View(screen="layers"))


def test_a_daemon_that_is_gone_is_said_and_what_was_known_stays() -> None:
    state = made.known(made.anchor())
    apply(state, Linked("records", Link("gone", "no daemon answers at /run/spl.sock: Connection refused")))
    seen = text(state)
    assert "the daemon does not answer; trying again (no daemon answers at /run/spl.sock" in seen
    assert "user:ann" in seen


def test_a_member_is_told_what_it_does_not_see() -> None:
    state = made.known(made.anchor())
    apply(state, Linked("engine", Link("refused", "SCOPE_DENIED: the token lacks admin")))
    apply(state, Listed("rules", None))
    assert "this token sees its own runs, and not the engine (SCOPE_DENIED" in text(state)
    assert "not for this token" in text(state, View(screen="rules"))
    assert "the log is the operator's to read" in text(state, View(screen="log"))


def test_a_member_is_not_shown_as_the_operator() -> None:
    state = made.known()
    assert "did:sync:user:root" in text(state)
    apply(state, Linked("engine", Link("refused", "SCOPE_DENIED: the token lacks admin")))
    apply(state, Told("overview", made.health(instance={"operator": "did:sync:user:root"})))
    assert "did:sync:user:root" not in text(state)
    assert "as a member" in text(state)


def test_a_daemon_that_answers_with_an_error_is_not_said_to_be_gone() -> None:
    state = made.known()
    apply(state, Linked("records", Link("failing", "TOKEN_REVOKED: the token was revoked; ask for one")))
    assert (
        "the daemon answers with an error; trying again (TOKEN_REVOKED: the token was revoked; ask"
        in text(state)
    )


def test_a_daemon_that_hangs_is_said_to_be_silent() -> None:
    state = made.known()
    apply(state, Linked("records", Link("open")))
    state.silent_seconds = 16
    assert "said nothing" not in text(state)
    state.silent_seconds = 90
    assert "the daemon has said nothing for 1m: what stands here may be old" in text(state)


def test_an_error_is_shown_whole_over_as_many_lines_as_it_takes() -> None:
    view = View()
    remedy = "look there " * 20 + "and mend it"
    done(view, StopRun("th_run_a", "ann"), ScopeDenied("it may not", remedy=remedy))
    told = " ".join(each.strip() for each in shown(made.known(), view, 80, 24))
    assert remedy in told
    assert "e reads it whole" not in told


def test_an_error_too_long_for_the_screen_says_which_key_reads_it_whole() -> None:
    view = View()
    done(view, StopRun("th_run_a", "ann"), ScopeDenied("it may not " * 100))
    assert "e reads it whole: " in text(made.known(), view, 80, 12)
    press(view, made.known(), "e")
    assert "the last error" in text(made.known(), view, 80, 12)


@pytest.mark.parametrize(
    ("keys", "takes"),
    [
        ("x", "y does it  n esc changes nothing"),
        ("p", "enter takes it  esc changes nothing"),
        ("a", "tab arrows move  enter goes on  esc gives up"),
        ("/", "enter keeps the filter  esc clears it"),
        ("G\r", "any other key goes back"),
    ],
)
def test_under_a_dialog_stand_the_keys_of_the_dialog(keys: str, takes: str) -> None:
    view, state = View(), full()
    for key in keys:
        press(view, state, "enter" if key == "\r" else key)
    assert shown(state, view)[-1].startswith(takes) or takes in shown(state, view)[-1]
    assert "q quit" not in text(state, view)


def test_a_request_longer_than_the_screen_can_be_moved_in_before_it_is_confirmed() -> None:
    rule = PutRule("long", "deny", 1, " || ".join(f"part{number}" for number in range(300)), enabled=True)
    view, state = View(dialog=Confirm(rule)), full()
    first = text(state, view, 80, 20)
    assert "lines 1 to" in first
    assert "y does it" in first
    assert "part299" not in first
    press(view, state, "end")
    last = text(state, view, 80, 20)
    assert "part299" in last
    assert "y does it" in last


def test_a_list_of_runs_says_that_there_are_older_ones() -> None:
    state = made.known(rows=[made.row()])
    assert "older" not in text(state)
    apply(state, Runs([made.row()], [], [], [], has_more=True))
    assert "1 of 1 rows, sorted by going; older runs are in 'spl runs list'" in text(state)


def test_a_profile_that_cannot_be_chosen_says_why() -> None:
    view, state = View(), full()
    apply(state, Listed("profiles", [{"name": "base", "floor": "below", "description": "", "error": None}]))
    for key in ("p", "enter"):
        press(view, state, key)
    assert "it can't be chosen: it is below the floor" in text(state, view)


def test_the_selected_layer_is_on_the_screen_under_a_remedy_of_several_lines() -> None:
    refused = {"layer": "cgroup", "remedy": "mount one " * 40}
    isolation = {"shape": "hosted", "layers": [f"layer{number}" for number in range(60)], "refused": refused}
    state, view = made.known(), View(screen="layers")
    apply(state, Told("health", made.health(isolation=isolation)))
    press(view, state, "end")
    drawn = lines(state, view, 80, 20, made.NOW)
    assert sum("reverse" in str(each.style) for each in drawn) == 1


def test_the_worker_is_shown_with_its_pid_its_memory_and_its_processor_time() -> None:
    state = full()
    apply(state, Told("workers", {"workers": [
        {"thread": "th_run_a", "pid": 4711, "memory_bytes": 23 << 20, "cpu_seconds": 0.5}
    ]}))  # fmt: skip
    seen = text(state, View(screen="run", tab="worker"))
    assert "4711" in seen
    assert "23.0 MiB" in seen
    assert "0.50 s" in seen
    state.workers = {}
    apply(state, Recorded(made.outcome()))
    assert "gone: the run has ended" in text(state, View(screen="run", tab="worker"))


def test_a_confirmation_shows_all_that_is_written_and_the_warning() -> None:
    view = View()
    press(view, full(), "T")
    seen = text(full(), view)
    for said in (
        "th_engine_config",
        '"work_loop_transport_members"',
        '"in_process"',
        "WARNING:",
        "y does it",
    ):
        assert said in seen


@pytest.mark.parametrize("height", range(3, 12))
def test_a_warning_and_the_question_are_what_a_low_terminal_shows_first(height: int) -> None:
    view = View()
    press(view, full(), "x")
    assert "y does it" in text(full(), view, 60, height)
    press(view, full(), "n")
    press(view, full(), "T")
    assert "y does it" in text(full(), view, 100, height)
    assert height < 6 or "WARNING" in text(full(), view, 100, height)


@pytest.mark.parametrize("width", [1, 5, 20, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 9, 24])
def test_nothing_is_wider_or_higher_than_the_terminal(width: int, height: int) -> None:
    state = full(HOSTILE)
    for view in views(state):
        drawn = lines(state, view, width, height, made.NOW)
        assert len(drawn) == height
        assert max(cell_len(each.plain) for each in drawn) <= width, view


def test_a_narrow_terminal_shows_which_run_it_is_its_state_and_its_verdict() -> None:
    seen = text(made.known(made.anchor(), made.verdict("deny", "clamp")), width=40)
    for said in ("RUN", "STATE", "running", "deny clamp"):
        assert said in seen
    assert "TRANSPORT" not in seen


@pytest.mark.parametrize(
    "said", [HOSTILE, "x" * 1_000_000, "[bold]", "\\[", "\ud800", "\u0301" * 100, "漢" * 500]
)
def test_nothing_hostile_reaches_the_terminal(said: str) -> None:
    state = full(said)
    for view in views(state):
        for each in lines(state, view, 100, 30, made.NOW):
            assert each.plain.isprintable(), view


def test_what_looks_like_markup_stays_text() -> None:
    assert "[bold red]blink[/]" in text(full("[bold red]blink[/]"), View(screen="run"))


def test_a_form_shows_what_is_typed_and_where_the_cursor_is() -> None:
    view, state = View(), full()
    press(view, state, "a")
    press(view, state, Paste("no-net"))
    assert "no-net▏" in text(state, view)


def test_the_selected_line_is_on_the_screen_however_long_the_list_is() -> None:
    state = made.known(rows=[made.row(f"th_run_{number:08}") for number in range(500)])
    view = View()
    for key in ("end", "up", "pgup", "home", "pgdn"):
        press(view, state, key)
        drawn = lines(state, view, 100, 20, made.NOW)
        assert sum("reverse" in str(each.style) for each in drawn) == 1


def test_an_age_is_told_in_the_largest_unit_it_fills() -> None:
    assert [age(each) for each in (-5, 0, 59.9, 60, 3599, 3600, 86400 * 3)] == [
        "0s",
        "0s",
        "59s",
        "1m",
        "59m",
        "1h",
        "3d",
    ]


def test_a_budget_is_a_bar_and_two_sums() -> None:
    run = run_of(made.row(spent_usd=0.125, budget_usd=0.25))
    assert budget(run, 30) == "█████░░░░░ $0.12/$0.25"
    assert budget(run, 11) == "$0.12/$0.25"
    assert budget(run_of(made.row(budget_usd=None)), 30) == "$0.00"
    assert budget(run_of(made.row(budget_usd=0.0, spent_usd=0.00001)), 24) == "█████████ $0.00001/$0.00"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_kinds = st.sampled_from(
    ["loop", "isolation", "turn", "tool_call", "tool_verdict", "loop_outcome", "refusal", "note"]
)
_names = st.sampled_from(
    [
        "turn",
        "cost_usd",
        "layers",
        "reply",
        "usage",
        "ceilings",
        "started_at",
        "pid",
        "text",
        "arguments",
        "state",
    ]
)


@settings(max_examples=40, deadline=None)
@given(
    kind=_kinds,
    body=st.dictionaries(_names, _json),
    line=_json,
    health=st.dictionaries(
        st.sampled_from(["work_loop", "isolation", "provider", "version", "spend"]), _json
    ),
)
def test_whatever_form_a_document_has_it_is_taken_in_and_drawn(
    kind: str, body: dict[str, Any], line: Any, health: dict[str, Any]
) -> None:
    state = full()
    record = made.about(made.record(kind), body)
    for event in (
        Recorded(record), OpenedRecord("th_run_a", record), Recorded({"body": line, "thread": line, "actor": line}),
        Told("log", {"line": line}), Told("health", health), Told("workers", {"workers": line}), Row(body),
    ):  # fmt: skip
        apply(state, event)
    for view in views(state):
        assert all(each.plain.isprintable() for each in lines(state, view, 90, 24, made.NOW))
