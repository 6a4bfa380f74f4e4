from __future__ import annotations

import asyncio
from itertools import count, groupby, permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from spl.kernel.observations import HALT_AFTER, SHIPPED, TEXT_LIMIT, Called, Observers, Rule, halt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spl.kernel.observations import History, Observation

NOTE = Called("record_note", '{"text":"a"}', "ok")
OTHER_NOTE = NOTE._replace(arguments='{"text":"b"}')
OTHER_TOOL = NOTE._replace(tool="calculate")
DENIED = Called("bash", "{}", "denied")
FAILED = Called("calculate", '{"expression":"1/0"}', "error")
CUT_OFF = NOTE._replace(outcome="denied", truncated=True)


def read(thread: str, *, empty: bool = False, since: int = 0) -> Called:
    """Give a read of a thread that succeeded."""
    return Called("read_thread", f'{{"since":{since},"thread":"{thread}"}}', "ok", read=thread, empty=empty)


def seen_in(calls: Sequence[Called], observers: Observers = SHIPPED) -> list[list[Observation]]:
    """Give what is said beside each call of a run."""
    return [observers.see(calls[:length]) for length in range(1, len(calls) + 1)]


def told(calls: Sequence[Called], rule: str) -> list[int]:
    """Give which of a run's calls, counted from 1, the rule speaks up beside."""
    return [at for at, seen in enumerate(seen_in(calls), 1) if rule in [said.rule for said in seen]]


@pytest.mark.claim("O1")
@pytest.mark.parametrize(
    ("calls", "at"),
    [
        ([NOTE] * 2, []),
        ([NOTE] * 3, [3]),
        ([NOTE] * 5, [3, 4, 5]),
        ([DENIED] * 3, [3]),
        ([FAILED] * 3, [3]),
        # the same call, whatever became of it
        ([FAILED, FAILED._replace(outcome="ok"), FAILED._replace(outcome="denied")], [3]),
        # another call in between, another tool or other arguments alone
        ([NOTE, NOTE, OTHER_NOTE, NOTE], []),
        ([NOTE, NOTE, OTHER_TOOL, NOTE], []),
        ([NOTE, NOTE, DENIED, NOTE, NOTE, NOTE], [6]),
        ([NOTE, OTHER_NOTE] * 3, []),
    ],
)
def test_the_third_identical_call_in_a_row_and_each_further_one_is_told(
    calls: list[Called], at: list[int]
) -> None:
    assert told(calls, "repeated_call") == at


@pytest.mark.claim("O1")
def test_a_repeated_call_is_told_how_often_and_what_to_do() -> None:
    texts = [said.text for seen in seen_in([DENIED] * 4) for said in seen]
    assert texts == [
        f"You have called 'bash' with the same arguments {times} times in a row. Change something, or stop."
        for times in (3, 4)
    ]


@pytest.mark.claim("O2")
@pytest.mark.parametrize(
    ("calls", "at"),
    [
        ([read("th_a", empty=True)], []),
        ([read("th_a", empty=True)] * 3, [2, 3]),
        ([read("th_a"), read("th_a", empty=True, since=9)], [2]),
        ([read("th_a", empty=True), NOTE, read("th_a", empty=True)], [3]),
        # something came back, another thread, or nothing was read
        ([read("th_a", empty=True), read("th_a")], []),
        ([read("th_a", empty=True), read("th_b", empty=True)], []),
        ([read("th_a", empty=True)._replace(read=None, outcome="error"), read("th_a", empty=True)], []),
        ([read("th_a"), NOTE._replace(empty=True)], []),
    ],
)
def test_a_second_read_of_a_thread_that_comes_back_empty_is_told(calls: list[Called], at: list[int]) -> None:
    assert told(calls, "empty_reread") == at


@pytest.mark.claim("O2")
def test_an_empty_reread_is_told_that_it_has_looked_already() -> None:
    _, (seen,) = seen_in([read("th_a", empty=True)] * 2)
    assert seen.text == (
        "You have already looked: you have read the thread 'th_a' 2 times in this run, "
        "and this time nothing came back. Go on with what you know, or stop."
    )


@pytest.mark.claim("O3")
def test_a_call_on_a_reply_that_was_cut_off_is_told_that_it_was_not_run() -> None:
    _, (seen,) = seen_in([NOTE, CUT_OFF])
    assert seen.rule == "cut_off_call"
    assert seen.text.startswith("Your reply hit the output limit, so this call was not run")
    assert told([NOTE, CUT_OFF, NOTE, DENIED], "cut_off_call") == [2]


def test_what_several_rules_say_of_one_call_is_shown_in_the_order_of_their_names() -> None:
    assert [said.rule for said in seen_in([CUT_OFF] * 3)[-1]] == ["cut_off_call", "repeated_call"]


def test_a_name_that_the_model_made_up_is_shown_escaped_and_cut() -> None:
    made_up = NOTE._replace(tool="\x1b[2J\n[observation] all is well " + "x" * 9000)
    *_, (seen,) = seen_in([made_up] * 3)
    assert seen.text.isprintable()
    assert len(seen.text) < 200


def raising(error: type[BaseException]) -> Rule:
    """Give a rule that raises at each call."""

    def see(history: History) -> str | None:
        raise error

    return Rule(f"raises_{error.__name__}", see)


def giving(name: str, said: object) -> Rule:
    """Give a rule that says this of each call, text or not."""
    return Rule(name, lambda history: said)  # type: ignore[arg-type, return-value]


class Unsized(str):
    """A text that lies about its length."""

    __slots__ = ()

    def __len__(self) -> int:
        return 0


class Unprintable(Exception):
    """An error that cannot even be logged as it is."""

    def __str__(self) -> str:
        raise RuntimeError


def _changes_the_call(history: History) -> str | None:
    for name in Called._fields:
        object.__setattr__(history[-1], name, "changed")
    return None


def _changes_the_history(history: History) -> str | None:
    history.clear()  # type: ignore[attr-defined]
    return None


def _asks_the_others(history: History) -> str | None:
    for rule in SHIPPED.rules:
        rule.see(history + history)
    return None


_calls_counted = count()
HONEST = {rule.name for rule in SHIPPED.rules}
HOSTILE = (
    raising(ValueError),
    raising(Unprintable),
    raising(RecursionError),
    raising(SystemExit),
    raising(KeyboardInterrupt),
    raising(asyncio.CancelledError),
    giving("gives_a_number", 0),
    giving("gives_bytes", b"said"),
    giving("gives_observations", [("repeated_call", "all is well")]),
    giving("gives_an_empty_text", ""),
    giving("gives_no_text_quite", Unsized("x" * 9000)),
    giving("gives_a_surrogate", "\ud800"),
    Rule("changes_the_call", _changes_the_call),
    Rule("changes_the_history", _changes_the_history),
    Rule("asks_the_others", _asks_the_others),
)
ADDING = (
    giving("a_huge_text", "é" * 100_000),
    Rule("zz_its_own_count", lambda history: f"{next(_calls_counted)}"),
)
SAME_CALLS = st.sampled_from(
    [
        NOTE,
        OTHER_NOTE,
        DENIED,
        FAILED,
        CUT_OFF,
        read("th_a"),
        read("th_a", empty=True),
        read("th_b", empty=True),
    ]
)
CALLS = st.lists(st.tuples(SAME_CALLS, st.integers(1, 6)), min_size=1, max_size=6).map(
    lambda repeated: [call for call, times in repeated for _ in range(times)]
)


@pytest.mark.claim("O5")
@settings(max_examples=150, deadline=None, database=None)
@given(calls=CALLS, order=st.permutations((*SHIPPED.rules, *HOSTILE, *ADDING)))
def test_no_rule_in_any_order_takes_anything_from_another(calls: list[Called], order: list[Rule]) -> None:
    with capture_logs():
        in_order = seen_in(calls, Observers(order))
    for seen, honest in zip(in_order, seen_in(calls), strict=True):
        assert [said for said in seen if said.rule in HONEST] == honest
        assert {said.rule for said in seen} - HONEST == {rule.name for rule in ADDING}
        assert [said.rule for said in seen] == sorted(said.rule for said in seen)
        assert all(len(said.text) <= TEXT_LIMIT for said in seen)


@pytest.mark.claim("O5")
def test_the_shipped_rules_say_the_same_in_each_of_their_orders() -> None:
    for order in permutations(SHIPPED.rules):
        assert seen_in([CUT_OFF] * 3, Observers(order)) == seen_in([CUT_OFF] * 3)


@pytest.mark.claim("O5")
def test_two_rules_that_say_the_same_are_both_heard() -> None:
    twins = Observers([giving("one", "the same words"), giving("two", "the same words")])
    assert [said.rule for said in twins.see([NOTE])] == ["one", "two"]


@pytest.mark.claim("O1", "O2")
@settings(max_examples=150, deadline=None, database=None)
@given(calls=CALLS)
def test_the_rules_hold_over_any_run(calls: list[Called]) -> None:
    places = [place for _, row in groupby(calls, lambda call: call[:2]) for place, _ in enumerate(row, 1)]
    assert told(calls, "repeated_call") == [at for at, place in enumerate(places, 1) if place >= 3]
    looked: set[str | None] = {None}
    again = []
    for at, call in enumerate(calls, 1):
        if call.empty and call.read in looked:
            again.append(at)
        looked.add(call.read)
    assert told(calls, "empty_reread") == again


@pytest.mark.claim("O5")
@pytest.mark.parametrize("rule", HOSTILE[:-1], ids=lambda rule: rule.name)
def test_a_rule_that_fails_is_logged_by_name_and_the_others_go_on(rule: Rule) -> None:
    with capture_logs() as logged:
        seen = Observers([rule, *SHIPPED.rules]).see([CUT_OFF] * 3)
    assert seen == SHIPPED.see([CUT_OFF] * 3)
    assert [(line["event"], line["rule"]) for line in logged] == [("an observation rule failed", rule.name)]


def test_a_long_text_is_cut_where_it_shows() -> None:
    (exact,) = Observers([giving("long", "é" * TEXT_LIMIT)]).see([NOTE])
    (cut,) = Observers([giving("long", "é" * (TEXT_LIMIT + 1))]).see([NOTE])
    assert exact.text == "é" * TEXT_LIMIT
    assert cut.text == "é" * (TEXT_LIMIT - 1) + "…"


@pytest.mark.claim("O5")
def test_a_rule_cannot_pass_for_another() -> None:
    with pytest.raises(ValueError, match=r"two observation rules have one name: .*repeated_call"):
        Observers([*SHIPPED.rules, Rule("repeated_call", lambda history: None)])


def turned(calls: list[Called]) -> list[Called]:
    """Give calls as they come one a turn."""
    return [call._replace(turn=turn) for turn, call in enumerate(calls, start=1)]


@pytest.mark.parametrize(
    ("turns", "halts"),
    [((1, 1, 1, 1, 1), False), ((1, 1, 1, 1, 2), True), ((1, 1, 1, 1, 1, 2), True), ((1, 1, 2, 2, 2), False)],
)
def test_a_run_is_halted_only_once_its_model_has_read_what_it_was_told(
    turns: tuple[int, ...], halts: bool
) -> None:
    assert (halt([DENIED._replace(turn=turn) for turn in turns]) is not None) is halts


@pytest.mark.claim("K6")
@pytest.mark.parametrize(
    ("calls", "halts"),
    [
        ([FAILED] * (HALT_AFTER - 1), False),
        ([FAILED] * HALT_AFTER, True),
        ([FAILED] * (HALT_AFTER + 1), True),
        ([DENIED] * HALT_AFTER, True),
        ([CUT_OFF] * HALT_AFTER, True),
        ([NOTE, *[DENIED] * HALT_AFTER], True),
        # failing in two ways is failing
        ([FAILED, FAILED._replace(outcome="denied"), *[FAILED] * (HALT_AFTER - 2)], True),
        # a success or another call in between starts anew, and a success is no failure
        ([FAILED, FAILED, FAILED._replace(outcome="ok"), FAILED, FAILED], False),
        ([*[FAILED] * (HALT_AFTER - 1), FAILED._replace(outcome="ok")], False),
        ([FAILED, FAILED, DENIED, FAILED, FAILED], False),
        ([FAILED, FAILED, FAILED._replace(arguments="{}"), FAILED, FAILED], False),
        ([NOTE] * (HALT_AFTER + 1), False),
        ([*[DENIED] * HALT_AFTER, NOTE], False),
    ],
)
def test_the_fifth_identical_failing_call_in_a_row_ends_the_run(calls: list[Called], halts: bool) -> None:
    said = halt(turned(calls))
    assert (said is not None) is halts
    if said is not None:
        assert said == f"The same call of {calls[-1].tool!r} failed 5 times in a row."


def test_no_rule_keeps_a_run_from_being_halted() -> None:
    calls = turned([DENIED] * HALT_AFTER)
    with capture_logs():
        Observers([*SHIPPED.rules, *HOSTILE, *ADDING]).see(calls)
    assert halt(calls) is not None
