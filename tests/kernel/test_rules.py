from __future__ import annotations

import dataclasses
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import spl.kernel.rules
from spl.kernel.expressions import check
from spl.kernel.rules import Asked, Match, Rule, Rules
from spl.kernel.shown import DEEPEST, LARGEST, LONGEST

if TYPE_CHECKING:
    from collections.abc import Iterator

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CALL = Asked(
    tool="bash",
    args={"command": "rm -rf /", "n": 3, "list": [1, 2.5, None, True, "s"]},
    actor="did:sync:user:ann",
    tier="trial",
    transport="sandboxed",
    thread="th_1",
    goal="tidy up",
    turn=2,
    spent_usd=0.5,
)


def rules(*given_rules: Rule) -> Rules:
    made = Rules(lambda: NOON)
    for rule in given_rules:
        made.put(rule)
    return made


def deny(expression: str, *, name: str = "no", priority: int = 0, enabled: bool = True) -> Rule:
    return Rule(name, "deny", priority, expression, enabled)


def allow(expression: str, *, name: str = "yes", priority: int = 0) -> Rule:
    return Rule(name, "allow", priority, expression)


def call(**args: Any) -> Asked:
    return dataclasses.replace(CALL, args=args)


def judged(expression: str, asked: Asked = CALL) -> bool | str:
    """Say whether a deny rule matches, or why it could not be evaluated."""
    match = rules(deny(expression)).judge(asked)
    return match is not None if match is None or match.error is None else match.error


def in_a_process_of_its_own(program: str) -> str:
    """Run a program that may crash or hang; gives what it printed."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- what is asked first ---


def test_without_a_rule_nothing_matches_and_the_library_is_not_even_imported() -> None:
    program = """
import sys
from datetime import UTC, datetime
from spl.kernel.rules import Asked, Rule, Rules
asked = Asked("bash", {}, "a", "trial", "sandboxed", "th", "goal", 1, 0.0)
rules = Rules(lambda: datetime.now(UTC))
print(rules.judge(asked), "cel_expr_python" in sys.modules)
rules.put(Rule("one", "deny", 0, "true"))
print("cel_expr_python" in sys.modules)
print(rules.judge(asked).rule.name, "cel_expr_python" in sys.modules)
"""
    assert in_a_process_of_its_own(program).splitlines() == ["None False", "False", "one True"]


@pytest.mark.claim("K2")
def test_the_highest_priority_that_matches_decides_whatever_the_order_of_writing() -> None:
    low, high, other = (
        deny("true", name="low", priority=-1),
        allow("true", name="high", priority=9),
        deny("false", name="other", priority=99),
    )
    for order in ([low, high, other], [other, high, low], [high, other, low]):
        assert rules(*order).judge(CALL) == Match(high, None)


def test_of_equal_priority_the_first_by_name_is_asked_first() -> None:
    first, second = deny("true", name="a"), allow("true", name="b")
    assert rules(second, first).judge(CALL) == Match(first, None)


@pytest.mark.claim("K2")
def test_a_call_that_no_rule_matches_has_no_match() -> None:
    assert rules(deny('resource == "tool:write_file"'), allow("run.turn > 2")).judge(CALL) is None


@pytest.mark.claim("K4")
def test_a_rule_is_in_force_for_the_next_call_and_gone_for_the_one_after_it_is_dropped() -> None:
    live = rules(deny("false", name="other"))
    assert live.judge(CALL) is None
    live.put(deny('resource == "tool:bash"'))
    assert live.judge(CALL) is not None
    live.put(deny('resource == "tool:bash"', enabled=False))
    assert live.judge(CALL) is None
    live.put(deny('resource == "tool:bash"'))
    assert live.judge(CALL) is not None
    live.drop("no")
    live.drop("never there")
    assert live.judge(CALL) is None


def test_rules_are_listed_in_the_order_they_are_asked_with_what_each_decided() -> None:
    late = deny("run.turn == 9", name="late", priority=5)
    early, off = deny("true", name="early"), deny("true", name="off", priority=9, enabled=False)
    live = rules(early, late, off)
    for turn in (2, 9, 2):
        live.judge(dataclasses.replace(CALL, turn=turn))
    assert live.listed() == [(off, 0), (late, 1), (early, 2)]
    live.put(early)
    assert live.listed()[-1] == (early, 0)


# --- what a rule may look at ---


@pytest.mark.parametrize(
    "expression",
    [
        'resource == "tool:bash"',
        'args.command.startsWith("rm ") && args["command"].matches("-r?f")',
        "args.n == 3 && args.n < 3.5 && args.list[1] == 2.5 && args.list[2] == null && args.list[3]",
        "has(args.command) && !has(args.path)",
        'args.list.exists(each, each == "s")',
        'actor == "did:sync:user:ann" && current_actor() == actor',
        'tier == "trial" && transport == "sandboxed"',
        'run.thread == "th_1" && run.goal == "tidy up" && run.turn == 2 && run.spent_usd == 0.5',
        'now() == timestamp("2026-03-01T12:00:00Z") && now().getDayOfWeek() == 0',
        "now().getHours(\"Europe/Berlin\") == 13 && now().getHours( '+02:00' ) == 14 && now().getHours() == 12",
        "true // the last comment needs no line of its own",
        "dyn(args.list[3])",
    ],
)
def test_a_rule_sees_the_call_its_run_and_the_time(expression: str) -> None:
    check(expression)
    assert judged(expression) is True
    assert rules(allow(expression)).judge(CALL) == Match(allow(expression), None)


def test_the_clock_is_read_once_a_call_and_anew_for_the_next() -> None:
    ticks = iter(range(10))
    live = Rules(lambda: datetime(2026, 1, 1, next(ticks), tzinfo=UTC))
    live.put(deny("now() == now() && now().getHours() == 1"))
    assert [live.judge(CALL) is not None for _ in range(3)] == [False, True, False]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def texts(value: object) -> Iterator[str]:
    """Yield every string in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from texts(each)


@given(value=_JSON)
@example(value="one\0two")
def test_a_rule_sees_the_very_argument_or_cannot_be_evaluated(value: object) -> None:
    said = judged("args.one == args.two && type(args.one) == type(args.two)", call(one=value, two=value))
    whole = not any("\0" in text for text in texts(value))
    needs = "it may need args.one, which no rule is shown: it holds a character that no rule can look at"
    assert said == (True if whole else needs)


# --- a rule that cannot be evaluated ---

UNABLE = {
    'args.nope == "x"': 'Key not found in map : "nope"',
    "args.list[9] == 1": "Index error: index=9 size=5",
    'args.n > "x"': "No matching overloads found : _>_(int64, string)",
    "args.n": "it gave int, not bool",
    "dyn(now())": "it gave timestamp, not bool",
    "args.command": "it gave string, not bool",
    "dyn([args.n])": "it gave list<dyn>, not bool",
    "1 / 0 == 1": "divide by zero",
    'resource.matches("(")': (
        "the expression is not valid at line 1, column 18: invalid regular expression: missing ): ("
    ),
    "args.command.matches(args.pattern)": (
        "the expression is not valid at line 1, column 14: "
        "a pattern must be written out, as in args.path.matches('^/etc/')"
    ),
    "run.typo == 1": "the expression is not valid at line 1, column 4: undeclared reference to 'run.typo'",
    "run.turn": "the expression is not valid at line 1, column 1: it gives int, not bool",
    "": "the expression is not valid at line 1, column 1: Syntax error: unexpected end",
}


@pytest.mark.claim("K8")
@pytest.mark.parametrize(("expression", "error"), UNABLE.items())
def test_a_rule_that_cannot_be_evaluated_denies_and_never_allows(expression: str, error: str) -> None:
    assert rules(deny(expression)).judge(CALL) == Match(deny(expression), error)
    assert rules(allow(expression)).judge(CALL) is None
    below = deny("true", name="below", priority=-1)
    assert rules(allow(expression), below).judge(CALL) == Match(below, None)


@pytest.mark.claim("K8")
def test_an_action_that_is_neither_is_not_let_through() -> None:
    odd = Rule("odd", "alow", 0, "args.nope == 1")
    match = rules(odd).judge(CALL)
    assert match is not None
    assert match.rule is odd


def test_an_error_beside_what_settles_the_answer_is_none() -> None:
    assert judged('resource == "tool:write_file" && args.path == "x"') is False
    assert judged('args.path == "x" || resource == "tool:bash"') is True


@pytest.mark.claim("K8")
def test_a_rule_over_the_budget_of_iterations_cannot_be_evaluated() -> None:
    asked = call(list=list(range(101)))
    expression = "args.list.all(a, args.list.all(b, a + b >= 0))"
    assert judged(expression, asked) == "Iteration budget exceeded"
    assert rules(allow(expression)).judge(asked) is None
    assert judged(expression, call(list=list(range(90)))) is True


def nested(deep: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(deep - 1):
        inner = [inner]
    return inner


UNFIT: dict[str, tuple[object, str]] = {
    # The binding would end a key here: a rule about "x" alone would be judging another name.
    "nul": ("/etc/passwd\0x", "holds a character that no rule can look at"),
    "nul in a key": ({"/etc/passwd\0x": 1}, "holds a character that no rule can look at"),
    "surrogate": ("\ud800", "holds a character that no rule can look at"),
    "int": (2**63, "holds an integer of more than 64 bits"),
    "negative int": (-(2**63) - 1, "holds an integer of more than 64 bits"),
    "text": ("x" * (LONGEST + 1), f"holds a text of more than {LONGEST} characters"),
    "long key": ({"x" * (LONGEST + 1): 1}, f"holds a text of more than {LONGEST} characters"),
    "list": ([0] * LARGEST, "is too large"),
    "map": ({f"k{n}": n for n in range(LARGEST // 64)}, "is too large"),
}
DEEP = {deep: (nested(deep), f"is nested more than {DEEPEST} deep") for deep in (DEEPEST, 50_000)}


def why(name: str, reason: str) -> str:
    return f"it may need {name}, which no rule is shown: it {reason}"


@pytest.mark.claim("K8")
@pytest.mark.parametrize(("value", "reason"), UNFIT.values(), ids=UNFIT)
def test_what_cannot_be_handed_over_is_not_judged_as_something_else(value: object, reason: str) -> None:
    asked = call(value=value, path="/home")
    for expression in (
        'args.value.startsWith("/etc")',
        "size(args.value) > 3",
        "args.value > 7",
        "args.value < 7",
        '"x" in args.value',
        "args.value.x == 1",
        "args.value[0] == 1",
        "args.value",
        # What stands in for it must not be taken for it.
        "args.value == null",
        "args.value != null",
        "args.value == args.value",
        "args.value != args.value",
        "args.value in [null]",
    ):
        assert judged(expression, asked) == why("args.value", reason)
        assert rules(allow(expression)).judge(asked) is None
    assert judged("has(args.value)", asked) is True
    assert judged('args.value == "/etc/passwd"', asked) is False
    assert judged('args.value in ["/etc/passwd", 7]', asked) is False


@pytest.mark.claim("K8")
@pytest.mark.parametrize(("value", "reason"), [*UNFIT.values(), *DEEP.values()], ids=[*UNFIT, *DEEP])
def test_what_stands_beside_something_that_is_withheld_is_judged_as_ever(value: object, reason: str) -> None:
    asked = call(value=value, path="/home")
    assert judged('args.path == "/home"', asked) is True
    assert judged('args.path.startsWith("/etc") || has(args.nope)', asked) is False
    assert judged('actor == "did:sync:user:ann"', asked) is True
    allowed = allow('args.path == "/home"')
    assert rules(allowed).judge(asked) == Match(allowed, None)
    within = call(path="/home", list=[1, value], map={"a": 1, "b": value})
    assert judged(
        "args.list[0] == 1 && size(args.list) == 2 && args.map.a == 1 && has(args.map.b)", within
    ) is (True)


@pytest.mark.claim("K8")
@pytest.mark.parametrize(("value", "reason"), DEEP.values(), ids=DEEP)
def test_what_is_too_deep_is_withheld_where_it_is(value: object, reason: str) -> None:
    assert judged("size(args.value) == 1 && args.value[0] != 1", call(value=value)) is True
    assert judged("args.value == args.value", call(value=value)) == why("args.value", reason)
    assert judged("args.value == args.value", call(value=nested(DEEPEST - 1))) is True


@pytest.mark.claim("K8")
@pytest.mark.parametrize("key", ["path\0x", "\ud800", "x" * (LONGEST + 1)], ids=["nul", "surrogate", "long"])
def test_arguments_with_a_name_that_cannot_be_handed_over_are_withheld_all(key: str) -> None:
    asked = call(**{key: "/home", "path": "/home"})
    for expression in ('args.path == "/home"', "has(args.nope)", "size(args) == 2"):
        assert str(judged(expression, asked)).startswith(
            "it may need args, which no rule is shown: it holds "
        )
        assert rules(allow(expression)).judge(asked) is None
    assert judged('resource == "tool:bash"', asked) is True


@pytest.mark.claim("K8")
def test_two_different_arguments_that_are_withheld_are_not_taken_for_the_same() -> None:
    same = allow("args.from == args.to", name="same")
    for one, two in (("a\0", "b\0"), (2**64, 2**65), ("x" * 20_000, "y" * 20_000)):
        asked = call(**{"from": one, "to": two})
        assert rules(same).judge(asked) is None
        assert rules(deny("args.from == args.to")).judge(asked) is not None


def test_a_long_text_is_no_hindrance_to_a_rule_about_another_argument() -> None:
    asked = call(content="x" * 300_000, path="notes/a")
    assert judged('args.path.startsWith("secret/")', asked) is False
    assert judged('args.path.startsWith("notes/")', asked) is True


@pytest.mark.claim("K8")
def test_a_goal_or_an_actor_is_looked_at_like_an_argument() -> None:
    asked = dataclasses.replace(CALL, goal="be good\0 and delete all", actor="did:sync:user:ann\0")
    reason = "holds a character that no rule can look at"
    # The first that was withheld is named.
    assert judged('run.goal.contains("delete")', asked) == why("actor", reason)
    for expression in ('actor != "x"', 'current_actor() != "x"', "run.goal != ''", "run.goal == run.goal"):
        assert rules(allow(expression)).judge(asked) is None
        assert rules(deny(expression)).judge(asked) is not None
    assert judged('tier == "trial" && args.n == 3', asked) is True


def test_why_a_rule_could_not_be_evaluated_is_one_short_line_that_prints() -> None:
    said = judged("args[args.key] == 1", call(key="\x1b[2J\n" + "k" * 5000))
    assert isinstance(said, str)
    assert said.isprintable()
    assert len(said) <= 200
    named = judged("args.x.y == 1", call(**{"\x1b[2J" + "k" * 5000: 2**64, "x": 1}))
    assert named == why(f"args.\\x1b[2J{'k' * 56}", "holds an integer of more than 64 bits")


# --- many rules at once ---

_EXPRESSIONS = [
    "true",
    "false",
    "false // a comment",
    "false || false",
    "true ? false : true",
    "(" * 30 + "false" + ")" * 30,
    "+".join(["1"] * 31) + " == 0",
    'resource == "tool:a"',
    'resource == "tool:a" && args.x == 1',
    "args.x == 1",
    "args.x > 1",
    "args.x",
    "!has(args.x)",
    "args.l.all(a, args.l.all(b, a != b))",
    "args.l.exists(a, a == args.x)",
    "1 / run.turn == 1",
    'current_actor() == "a"',
    'now() < timestamp("2000-01-01T00:00:00Z")',
    "this does not compile",
    "false) || (true",
    "false) || (false",
]


def _lists(expression: st.SearchStrategy[str], most: int) -> st.SearchStrategy[list[Rule]]:
    """Give lists of at most so many rules with such expressions."""
    rule = st.builds(
        Rule,
        name=st.text("abc", min_size=1, max_size=3),
        action=st.sampled_from(["allow", "deny"]),
        priority=st.integers(-2, 2),
        expression=expression,
        enabled=st.sampled_from([True, True, True, False]),
    )
    return st.lists(rule, max_size=most, unique_by=lambda each: each.name)


# Mostly rules that do not match, so that the later ones are come to.
_RULES = _lists(st.sampled_from(_EXPRESSIONS) | st.just("false") | st.just('resource == "tool:z"'), 80)
_ASKED = st.builds(
    Asked,
    tool=st.sampled_from("abz"),
    args=st.fixed_dictionaries(
        {},
        optional={
            "x": st.sampled_from([0, 1, True, "1"]),
            "l": st.integers(0, 120).map(lambda n: [*range(n)]),
        },
    ),
    actor=st.sampled_from("ab"),
    tier=st.just("trial"),
    transport=st.just("sandboxed"),
    thread=st.just("th"),
    goal=st.just("goal"),
    turn=st.integers(0, 2),
    spent_usd=st.just(0.0),
)


@pytest.mark.claim("K2", "K8")
@settings(deadline=None, max_examples=200)
@given(every=_RULES, asked=_ASKED)
def test_rules_asked_together_answer_as_each_would_alone(every: list[Rule], asked: Asked) -> None:
    live = rules(*every)
    alone = (rules(rule).judge(asked) for rule, _ in live.listed())
    assert live.judge(asked) == next((match for match in alone if match is not None), None)


@pytest.mark.claim("K8")
def test_an_expression_that_reaches_out_of_its_parentheses_hides_nothing() -> None:
    broken = deny("false) || (false", name="b")
    match = rules(deny("false", name="a"), broken, deny("false", name="c")).judge(CALL)
    assert match is not None
    assert match.rule is broken


def test_a_comment_or_a_rule_of_no_certain_type_leaves_its_neighbours_together() -> None:
    live = rules(deny("false // never", name="a"), deny("dyn(false)", name="b"), deny("false", name="c"))
    assert live.judge(CALL) is None
    assert [group.together is not None for group in live._groups[None]] == [True]


@pytest.mark.parametrize("action", ["allow", "deny"])
@pytest.mark.parametrize("at", [0, 31, 32, 499])
def test_the_one_of_five_hundred_that_matches_is_found(at: int, action: str) -> None:
    every = [Rule(f"r{n:03}", action, 0, f"run.turn == {9 if n != at else 2}") for n in range(500)]
    assert rules(*every).judge(CALL) == Match(every[at], None)


def test_rules_for_other_tools_are_not_asked_and_the_rest_of_five_hundred_in_twelve_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = (
        'resource == "tool:t{n}"',
        "run.turn == {n} + 9",
        'actor == "did:sync:user:u{n}"',
        "has(args.x{n})",
    )
    live = rules(*(deny(kinds[n % 4].replace("{n}", str(n)), name=f"r{n:03}") for n in range(500)))
    live.judge(CALL)  # what is compiled once
    asked: list[object] = []
    ask = spl.kernel.rules._ask

    def counted(program: object, views: list[object]) -> bool | str:
        asked.append(program)
        return ask(program, views)

    monkeypatch.setattr("spl.kernel.rules._ask", counted)
    assert live.judge(CALL) is None
    assert len(asked) == 12


# --- rules for one tool ---

_HEAVY = "args.l.all(a, args.l.all(b, a + b >= 0))"
_PARTS = st.sampled_from(
    [
        'resource == "tool:a"',
        'resource == "tool:b"',
        "'tool:a' == resource",
        "resource == r'tool:b && true || false ? 1 : 2 // '",
        'resource != "tool:a"',
        'resource in ["tool:a", "tool:b"]',
        'args.x == "tool:a || true"',
        "args.x == 1",
        "dyn(args.x)",
        "has(args.x)",
        "1 / run.turn == 1",
        "{args.x: 1, args.x: 2}[1] == 1",
        _HEAVY,
        f"!{_HEAVY}",
        'actor == "a"',
        'now() < timestamp("2000-01-01T00:00:00Z")',
        "true",
        "false",
    ]
)
_COMPOUND = st.recursive(
    _PARTS,
    lambda inner: st.one_of(
        st.builds("{} && {}".format, inner, inner),
        st.builds("{} && {}".format, inner, inner),
        st.builds("{} || {}".format, inner, inner),
        st.builds("({})".format, inner),
        st.builds("!({})".format, inner),
        st.builds("{} // || true &&\n".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=6,
)
_FOR_TOOLS = _lists(
    st.builds("{} && {}".format, _PARTS, _COMPOUND) | _COMPOUND | st.just("does not compile"), 4
)


def heavy_first(*, action: str) -> list[Rule]:
    return [Rule("heavy", action, 0, f'{_HEAVY} && resource == "tool:z"')]


@pytest.mark.claim("K2", "K8")
@settings(deadline=None, max_examples=300)
@given(every=_FOR_TOOLS, asked=_ASKED | st.just(dataclasses.replace(CALL, tool="a\0")))
@example(every=heavy_first(action="deny"), asked=call(l=[*range(101)]))
def test_rules_looked_up_by_their_tool_answer_as_all_would(every: list[Rule], asked: Asked) -> None:
    live, all_asked = rules(*every), rules(*every)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spl.kernel.rules.target", lambda _program: None)
        all_asked.compile()
    assert live.judge(asked) == all_asked.judge(asked)
    assert live.listed() == all_asked.listed()


_OURS, _ANYONES, _THEIRS = 'resource == "tool:bash"', "run.turn == 2", 'resource == "tool:other"'
_MATCHING = (_OURS, _ANYONES)
_NOT_MATCHING = (_THEIRS, f"{_OURS} && args.n == 9", "run.turn == 9")


@pytest.mark.claim("K2")
@settings(deadline=None)
@given(
    kinds=st.lists(st.sampled_from(_NOT_MATCHING), min_size=1, max_size=120),
    placed=st.lists(st.tuples(st.integers(0, 119), st.sampled_from(_MATCHING)), max_size=4),
)
@example(kinds=[_ANYONES, _OURS], placed=[])
@example(kinds=[_NOT_MATCHING[1], _NOT_MATCHING[2], _ANYONES, _OURS], placed=[])
@example(kinds=[*[_NOT_MATCHING[1], "run.turn == 9"] * 32, _ANYONES, *[_OURS] * 40], placed=[])
def test_rules_for_the_tool_and_those_for_any_keep_one_order(
    kinds: list[str], placed: list[tuple[int, str]]
) -> None:
    expressions = [*kinds]
    for at, kind in placed:
        expressions.insert(at, kind)
    every = [deny(each, name=f"r{n:03}") for n, each in enumerate(expressions)]
    first = next((rule for rule in every if rule.expression in _MATCHING), None)
    assert rules(*every).judge(CALL) == (None if first is None else Match(first, None))


@pytest.mark.claim("K8")
def test_of_a_tool_whose_name_no_rule_is_shown_every_tools_rule_is_asked() -> None:
    asked = dataclasses.replace(CALL, tool="bash\0")
    reason = why("resource", "holds a character that no rule can look at")
    for named in ('resource == "tool:bash"', 'resource == "tool:other"', r'resource == "tool:bash\000"'):
        assert judged(named, asked) == reason
        assert rules(allow(named)).judge(asked) is None


def test_a_change_has_only_the_group_compiled_anew_that_it_is_in() -> None:
    live = rules(*(deny(f"run.turn == {n + 9}", name=f"r{n:03}") for n in range(96)))
    live.compile()
    before = [group.together for group in live._groups[None]]
    live.put(deny('resource == "tool:bash"', name="r000a"))
    live.put(deny("run.turn == 2", name="r040"))
    assert live.judge(CALL) == Match(deny('resource == "tool:bash"', name="r000a"), None)
    after = [group.together for group in live._groups[None]]
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]
    live.drop("r000a")
    assert live.judge(CALL) == Match(deny("run.turn == 2", name="r040"), None)


def test_for_a_tool_that_no_rule_is_about_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    live = rules(*(deny(f'resource == "tool:t{n}" && args.x == 1', name=f"r{n:03}") for n in range(100)))
    live.compile()
    monkeypatch.setattr("spl.kernel.rules._variables", lambda _asked: pytest.fail("it was looked at"))
    assert live.judge(CALL) is None


# --- what takes long ---


def test_expressions_that_would_run_away_come_to_an_end() -> None:
    ten = "[1,2,3,4,5,6,7,8,9,10]"
    bomb = "1"
    for _ in range(8):
        bomb = f"{ten}.map(x, {bomb})"
    assert judged(f"{bomb} == []") == "Iteration budget exceeded"
    assert judged('args.s.matches("(a+)+$")', call(s="a" * (LONGEST - 1) + "b")) is False
