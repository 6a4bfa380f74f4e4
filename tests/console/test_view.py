from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spl.console.actions import PutRule, SetProfile, SetTransport, StopRun
from spl.console.dialogs import Choose, Confirm, Form, Reading, Typing
from spl.console.events import Listed, OpenedRecord, Row, Runs, Told
from spl.console.keys import Paste
from spl.console.opened import Opened
from spl.console.selection import SORTS, runs_of, selected
from spl.console.state import State, apply
from spl.console.view import SCREENS, Ask, Open, Perform, Quit, Shut, View, done, press
from spl.errors import ExpressionInvalid, ScopeDenied
from tests.console import made

if TYPE_CHECKING:
    from spl.console.keys import Key
    from spl.console.view import Effect

RULES = [
    {"name": "no-bash", "action": "deny", "priority": 5, "enabled": True, "hits": 3, "expression": "true"},
    {"name": "notes", "action": "allow", "priority": 1, "enabled": False, "hits": 0, "expression": "false"},
]
PROFILES = [
    {"name": "base", "floor": "below", "description": "nothing", "error": None},
    {"name": "mine", "floor": None, "description": None, "error": "mine.toml:4: no"},
    {"name": "strict", "floor": "ok", "description": "less", "error": None},
    {"name": "worker", "floor": "ok", "description": "the worker's", "error": None},
]


@pytest.fixture
def state() -> State:
    rows = [
        made.row(
            "th_run_new", actor="did:sync:user:bob", started_at="2027-01-15T09:00:00Z", state="done", turns=1
        ),
        made.row("th_run_old", spent_usd=0.2, turns=4),
    ]
    state = made.known(made.refusal(), rows=rows)
    apply(state, Listed("rules", RULES))
    apply(state, Listed("profiles", PROFILES))
    return state


def keys(view: View, state: State, *pressed: Key) -> list[Effect]:
    return [effect for key in pressed for effect in press(view, state, key)]


def typed(view: View, state: State, text: str) -> None:
    keys(view, state, *text)


def confirmed(view: View) -> Any:
    assert isinstance(view.dialog, Confirm)
    return view.dialog.action


def test_the_numbers_and_tab_go_from_screen_to_screen(state: State) -> None:
    view = View()
    seen = []
    for number in "12345":
        keys(view, state, number)
        seen.append(view.screen)
    assert seen == list(SCREENS)
    keys(view, state, "tab")
    assert view.screen == "runs"
    keys(view, state, "shift-tab")
    assert view.screen == "help"


def test_q_quits_and_does_nothing_else(state: State) -> None:
    assert keys(View(), state, "q") == [Quit()]


def test_runs_that_go_on_stand_first_and_the_newest_before_the_older(state: State) -> None:
    apply(state, Row(made.row("th_run_newer", started_at="2027-01-15T10:00:00Z")))
    assert [run.state for run in runs_of(View(), state)] == ["running", "running", "done", "refused"]
    assert runs_of(View(), state)[0].thread == "th_run_newer"


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_of_the_runs_can_be_reversed(state: State, sort: str) -> None:
    view = View()
    while view.sort != sort:
        keys(view, state, "s")
    there = [run.thread for run in runs_of(view, state)]
    keys(view, state, "S")
    assert [run.thread for run in runs_of(view, state)] == there[::-1]


def test_moving_stays_within_the_list(state: State) -> None:
    view = View()
    keys(view, state, *["down"] * 20)
    assert (selected(view, state) or "").startswith("refused:")
    keys(view, state, *["up"] * 20)
    assert selected(view, state) == "th_run_old"
    keys(view, state, "end", "home", "pgdn", "pgup")
    assert selected(view, state) == "th_run_old"


def test_the_selection_stays_on_its_run_when_others_come(state: State) -> None:
    view = View()
    keys(view, state, "j")
    assert selected(view, state) == "th_run_new"
    apply(state, Row(made.row("th_run_newest", started_at="2027-01-15T10:00:00Z")))
    assert selected(view, state) == "th_run_new"


def test_a_selection_that_is_gone_is_what_stands_in_its_place(state: State) -> None:
    view = View()
    keys(view, state, "j")
    del state.runs["th_run_new"]
    assert (selected(view, state) or "").startswith("refused:")


def test_the_filter_filters_with_each_key_and_keeps_what_was_typed(state: State) -> None:
    view = View()
    keys(view, state, "/")
    typed(view, state, "BOB doneX")
    assert runs_of(view, state) == []
    keys(view, state, "backspace")
    assert [run.thread for run in runs_of(view, state)] == ["th_run_new"]
    keys(view, state, "enter")
    assert view.dialog is None
    assert [run.thread for run in runs_of(view, state)] == ["th_run_new"]
    keys(view, state, "esc")
    assert len(runs_of(view, state)) == 3


def test_a_filter_that_is_given_up_filters_nothing(state: State) -> None:
    view = View()
    keys(view, state, "/", "z", "z", "esc")
    assert view.dialog is None
    assert len(runs_of(view, state)) == 3


def test_keys_that_are_typed_do_nothing_else(state: State) -> None:
    view = View()
    assert keys(view, state, "/", "q", "x", "y") == []
    assert view.dialog == Typing("runs", "qxy")


def test_a_paste_is_typed_where_text_is_typed_and_does_nothing_elsewhere(state: State) -> None:
    view = View()
    assert keys(view, state, Paste("xyq\r")) == []
    assert view.dialog is None
    assert "pasted" in view.status.text
    keys(view, state, "/", Paste("two\nlines\x1b[A"))
    assert view.dialog == Typing("runs", "two lines [A")


def test_opening_a_run_follows_its_thread_and_leaving_it_does_not(state: State) -> None:
    view = View()
    assert keys(view, state, "enter") == [Open("th_run_old")]
    assert view.screen == "run"
    assert state.opened is not None
    keys(view, state, "tab")
    assert view.tab == "receipt"
    assert keys(view, state, "esc") == [Shut()]
    assert view.screen == "runs"
    assert [state.opened] == [None]


def test_a_screen_that_is_left_for_another_shuts_the_opened_run(state: State) -> None:
    view = View()
    assert keys(view, state, "enter", "3")[-1] == Shut()
    assert state.opened is None


def test_opening_a_refused_start_shows_its_layer_and_its_remedy(state: State) -> None:
    view = View()
    assert keys(view, state, "end", "enter") == []
    assert isinstance(view.dialog, Reading)
    assert {"layer: cgroup", "remedy: mount one"} <= set(view.dialog.lines)
    keys(view, state, "esc")
    assert view.dialog is None


def test_an_entry_of_the_timeline_can_be_read_whole(state: State) -> None:
    view = View()
    keys(view, state, "enter")
    apply(state, OpenedRecord("th_run_old", made.record("note", "th_run_old", text="first\nsecond")))
    keys(view, state, "enter")
    assert isinstance(view.dialog, Reading)
    assert view.dialog.lines == ("first", "second")


def test_the_timeline_follows_its_end_until_one_moves_up(state: State) -> None:
    view = View()
    keys(view, state, "enter")

    def note(text: str) -> str | None:
        apply(state, OpenedRecord("th_run_old", made.record("note", "th_run_old", text=text)))
        return selected(view, state)

    first, second = note("one"), note("two")
    assert first != second
    keys(view, state, "up")
    assert note("three") == first
    keys(view, state, "end")
    assert note("four") not in {first, second}


def test_stopping_a_run_is_asked_first_and_done_with_y_alone(state: State) -> None:
    view = View()
    assert keys(view, state, "x", "enter", " ") == []
    action = confirmed(view)
    assert action == StopRun("th_run_old", "did:sync:user:ann")
    assert action.request() == ("POST", "/v1/runs/th_run_old/events", {"type": "stop"})
    assert keys(view, state, "y") == [Perform(action)]
    assert view.dialog is None


@pytest.mark.parametrize("key", ["n", "esc"])
def test_what_is_not_confirmed_changes_nothing(state: State, key: str) -> None:
    view = View()
    assert keys(view, state, "x", key) == []
    assert view.dialog is None
    assert view.status.text == "nothing was changed"


def test_a_paste_confirms_nothing(state: State) -> None:
    view = View()
    assert keys(view, state, "x", Paste("y")) == []
    assert isinstance(view.dialog, Confirm)


def test_a_run_that_has_ended_and_a_refused_start_cannot_be_stopped(state: State) -> None:
    view = View()
    keys(view, state, "j", "x")
    assert (view.dialog, view.status.text) == (None, "there is nothing to stop: it is done")
    keys(view, state, "j", "x")
    assert (view.dialog, view.status.text) == (None, "there is nothing to stop: it is refused")


def test_the_opened_run_is_the_one_that_is_stopped(state: State) -> None:
    view = View()
    keys(view, state, "enter", "x")
    assert confirmed(view).thread == "th_run_old"


def test_the_transports_are_flipped_apart_and_members_in_process_comes_with_a_warning(state: State) -> None:
    view = View()
    keys(view, state, "t")
    assert confirmed(view) == SetTransport("sandboxed", members=False)
    assert confirmed(view).warning == ""
    own = "Your own runs would take place inside the daemon itself: no layer would confine them."
    assert SetTransport("in_process", members=False).warning == own
    keys(view, state, "n", "T")
    assert confirmed(view) == SetTransport("in_process", members=True)
    assert "no layer would confine it" in confirmed(view).warning
    assert confirmed(view).request()[2]["body"] == {
        "kind": "core.engine.config.v1", "topic": "work_loop_transport_members", "transport": "in_process",
    }  # fmt: skip


def test_nothing_is_flipped_before_it_is_known() -> None:
    view = View()
    keys(view, State(), "t")
    assert (view.dialog, view.status.text) == (None, "the transport is not known yet")


def test_a_rule_is_switched_as_it_is_and_no_more(state: State) -> None:
    view = View()
    keys(view, state, "3", "d")
    assert confirmed(view) == PutRule("no-bash", "deny", 5, "true", enabled=False)
    assert confirmed(view).warning
    keys(view, state, "n", "j", "d")
    assert confirmed(view) == PutRule("notes", "allow", 1, "false", enabled=True)


def filled(view: View, state: State) -> None:
    keys(view, state, "3", "a")
    typed(view, state, "no-net")
    keys(view, state, "tab", " ", " ", "tab", "backspace")
    typed(view, state, "7")
    keys(view, state, "tab", Paste('resource == "tool:bash"'), "enter")


def test_a_rule_is_typed_field_by_field_and_shown_before_it_is_written(state: State) -> None:
    view = View()
    filled(view, state)
    rule = PutRule("no-net", "deny", 7, 'resource == "tool:bash"', enabled=True)
    assert confirmed(view) == rule
    assert keys(view, state, "y") == [Perform(rule)]
    done(view, rule, None)
    assert (view.form, view.status.text) == (None, "the rule no-net is written, enabled")


def test_a_rule_whose_expression_is_refused_is_there_again_with_all_that_was_typed(state: State) -> None:
    view = View()
    filled(view, state)
    action = confirmed(view)
    keys(view, state, "y")
    done(view, action, ExpressionInvalid("no such name", excerpt="resourc == 1\n^"))
    assert isinstance(view.dialog, Form)
    assert (view.dialog.name, view.dialog.priority) == ("no-net", "7")
    assert view.dialog.expression == 'resource == "tool:bash"'
    assert "EXPRESSION_INVALID" in view.dialog.errors[0]
    assert view.dialog.errors[1:] == ("resourc == 1", "^")


def test_a_rule_that_is_not_confirmed_is_gone_back_to(state: State) -> None:
    view = View()
    filled(view, state)
    keys(view, state, "n")
    assert isinstance(view.dialog, Form)
    assert view.dialog.expression == 'resource == "tool:bash"'
    keys(view, state, "esc")
    assert [view.dialog, view.form] == [None, None]


def test_a_rule_has_a_name_and_a_priority_that_is_a_number(state: State) -> None:
    view = View()
    keys(view, state, "a", "down", "down", "x", "down", "enter")
    assert isinstance(view.dialog, Form)
    assert view.dialog.errors == ("the priority is a whole number",)
    keys(view, state, "backspace", "down", "enter")
    assert isinstance(view.dialog, Form)
    assert view.dialog.errors == ("a rule has a name",)


def test_a_profile_is_chosen_then_whose_and_then_confirmed(state: State) -> None:
    view = View()
    assert keys(view, state, "p") == [Ask("profiles")]
    assert isinstance(view.dialog, Choose)
    keys(view, state, "enter", "enter")
    assert confirmed(view) == SetProfile("worker", None)
    keys(view, state, "n", "p", "up", "enter", "down", "enter")
    assert confirmed(view) == SetProfile("strict", "trial")
    assert confirmed(view).request()[2]["body"]["tier"] == "trial"


def test_the_profile_in_force_is_marked_and_selected_and_one_below_the_floor_cannot_be_chosen(
    state: State,
) -> None:
    view = View()
    keys(view, state, "p")
    dialog = view.dialog
    assert isinstance(dialog, Choose)
    assert [option.said for option in dialog.options] == [
        "strict (of the tier trial)  less",
        "worker (in force)  the worker's",
        "base (can't be chosen: it is below the floor)  nothing",
        "mine (can't be chosen: mine.toml:4: no)  ",
    ]
    assert dialog.options[dialog.index].value == "worker"
    keys(view, state, "down", "enter")
    assert isinstance(view.dialog, Choose)
    assert view.dialog.note == "it is below the floor"
    keys(view, state, "down")
    assert view.dialog.note == ""


def test_profiles_that_are_not_known_are_asked_for() -> None:
    view = View()
    assert keys(view, State(), "p") == [Ask("profiles")]
    assert "not known here" in view.status.text


def test_an_error_is_said_with_its_code_and_what_to_do() -> None:
    view = View()
    done(view, StopRun("th_run_a", "ann"), ScopeDenied("it may not", remedy="ask\x1b[2J for more"))
    assert view.status == (r"SCOPE_DENIED: it may not; ask\x1b[2J for more", True)


def test_the_last_error_can_be_read_whole_after_its_line_is_gone(state: State) -> None:
    view = View()
    keys(view, state, "e")
    assert view.status.text == "there was no error"
    done(view, StopRun("th_run_a", "ann"), ScopeDenied("it may not " + "x" * 1000, remedy="ask"))
    keys(view, state, "j", "e")
    assert isinstance(view.dialog, Reading)
    assert view.dialog.lines == ("SCOPE_DENIED: it may not " + "x" * 1000, "what to do: ask")


def test_a_rule_that_was_changed_meanwhile_is_not_written_over(state: State) -> None:
    view = View()
    keys(view, state, "3", "d")
    apply(state, Listed("rules", [{**RULES[0], "expression": "false"}]))
    assert keys(view, state, "y") == []
    assert view.status == ("the rule was changed meanwhile: look at it again", True)


def test_switching_a_rule_leaves_alone_what_is_typed_for_another(state: State) -> None:
    view = View()
    filled(view, state)
    typed_ = confirmed(view)
    keys(view, state, "y", "d")
    switched = confirmed(view)
    done(view, switched, None)
    keys(view, state, "n")
    assert [view.dialog] == [None]
    done(view, typed_, ExpressionInvalid("no such name"))
    assert isinstance(view.dialog, Form)
    assert view.dialog.name == "no-net"


def test_help_goes_back_to_where_it_was_asked_for(state: State) -> None:
    view = View()
    keys(view, state, "4", "?")
    assert view.screen == "help"
    keys(view, state, "esc")
    assert view.screen == "log"


def test_a_layer_is_read_with_its_claim_or_with_why_it_does_not_hold(state: State) -> None:
    view = View()
    refused = {"layer": "cgroup", "expected": "a cgroup", "observed": "none", "remedy": "mount one"}
    apply(state, Told("health", made.health(isolation={"shape": "hosted", "layers": [], "refused": refused})))
    keys(view, state, "2", "enter")
    assert isinstance(view.dialog, Reading)
    assert view.dialog.lines == ("expected: a cgroup", "observed: none", "remedy: mount one")


def test_a_layer_is_read_with_what_the_newest_receipt_found(state: State) -> None:
    view = View()
    keys(view, state, "2", "enter")
    assert isinstance(view.dialog, Reading)
    assert "the receipt of the next sandboxed run" in view.dialog.lines[0]
    apply(state, Runs([], [], [], [made.receipt("syscalls")]))
    keys(view, state, "esc", "enter")
    assert isinstance(view.dialog, Reading)
    assert view.dialog.lines == ("claims syscalls", "inside: ptrace: expected EPERM, observed EPERM")


def test_a_line_of_the_log_is_read_with_its_day(state: State) -> None:
    line = {"event": "run ended", "timestamp": "2027-01-15T23:59:59.123456Z", "level": "info", "goal": "a b"}
    apply(state, Told("log", {"number": 1, "line": line}))
    view = View()
    keys(view, state, "4", "enter")
    assert isinstance(view.dialog, Reading)
    assert view.dialog.title.startswith("2027-01-15T23:59:59.123456Z info")
    assert view.dialog.lines == ("run ended", 'goal="a b"')


def test_reading_moves_within_the_text_and_end_goes_to_its_end(state: State) -> None:
    view = View(dialog=Reading("it", tuple(map(str, range(50)))), last_top=40)
    keys(view, state, "end", "down", "down", "up")
    assert isinstance(view.dialog, Reading)
    assert view.dialog.top == 39
    keys(view, state, "home", "pgdn")
    assert isinstance(view.dialog, Reading)
    assert view.dialog.top == 10


def test_no_key_does_anything_in_an_empty_console() -> None:
    view, state = View(), State()
    for screen in SCREENS:
        for key in (
            "up",
            "e",
            "enter",
            "x",
            "d",
            "j",
            "/",
            "esc",
            "s",
            "S",
            "backspace",
            "\ufffd",
            "漢",
            "ctrl-l",
        ):
            view.screen = screen
            assert keys(view, state, key) == []
    view.screen, state.opened = "run", Opened("th_run_a")
    assert keys(view, state, "enter", "x", "tab", "enter", "tab", "enter") == []
