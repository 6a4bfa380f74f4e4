"""The sandboxed tools: what they work out, and what they refuse instead of hanging."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spl.loop.tools import EXPRESSION_LIMIT, INTEGER_BITS, NESTING_LIMIT, SCHEMAS, calculate, run


@pytest.mark.parametrize(
    "expression",
    [
        "1 + 2 * 3",
        "(1 + 2) * 3",
        "7 // 2",
        "-7 // 2",
        "-7 % 3",
        "7 / 2",
        "6 / 2",
        "-2 ** 2",
        "2 ** -1",
        "2 ** 3 ** 2",
        "(2 ** 3) ** 2",
        "2 * -3",
        "--2",
        "+2",
        ".5 + 5.",
        "1e3",
        "1.5E-3",
        "2e+2",
        "10 - 4 - 3",
        "100 / 10 / 5",
        " \t1\n+\r1 ",
        "1" + "0" * 900,
    ],
)
def test_an_expression_has_the_value_python_gives_it(expression: str) -> None:
    assert calculate(expression) == eval(expression.strip().replace("\n", " ").replace("\r", " "))


def test_whole_numbers_stay_exact() -> None:
    assert run("calculate", {"expression": "3 ** 50 + 1"}) == ("ok", str(3**50 + 1))


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "ends too early"),
        ("(1 + 2", "ends too early"),
        ("1 +", "ends too early"),
        ("1 + )", "')' at position 5"),
        ("2 3", "'3' at position 3"),
        ("1.5.2", "'.' at position 4"),
        ("1e", "'e' at position 2"),
        (".", "'.' at position 1"),
        ("²", "'²' at position 1"),
        ("٣", "at position 1"),
        ("\ud800", "at position 1"),
        ("__import__('os')", "'_' at position 1"),
        ("1_000", "'_' at position 2"),
        ("0x10", "'x' at position 2"),
        ("1 / 0", "divides by zero"),
        ("1 % 0", "divides by zero"),
        ("0 ** -9999", "divides by zero"),
        ("(-8) ** 0.5", "no real root"),
        ("1e999", "not finite"),
        ("1e308 * 10", "not finite"),
        ("10 ** 400 * 1.0", "too large"),
        ("2.0 ** 9999", "too large"),
    ],
)
def test_what_has_no_value_is_one_sentence_that_says_why(expression: str, why: str) -> None:
    status, output = run("calculate", {"expression": expression})

    assert status == "error"
    assert why in output
    assert "\n" not in output


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "expression", ["9**9**9", "9**9**9**9", "(-9)**9**9", "2**4096", "9**9**9*0", "*".join(["10**1000"] * 3)]
)
def test_a_bomb_is_refused_before_it_is_worked_out(expression: str) -> None:
    assert run("calculate", {"expression": expression}) == (
        "error",
        "calculate cannot work this out: a number in it is too large",
    )


def test_the_largest_integer_can_still_be_printed() -> None:
    status, output = run("calculate", {"expression": f"2 ** {INTEGER_BITS - 1}"})

    assert (status, len(output)) == ("ok", 1233)


@pytest.mark.parametrize("nest", ["({})", "-{}", "1**{}"])
def test_nesting_is_bounded_in_every_way_to_nest(nest: str) -> None:
    def nested(depth: int) -> str:
        expression = "1"
        for _ in range(depth):
            expression = nest.format(expression)
        return expression

    assert run("calculate", {"expression": nested(NESTING_LIMIT - 1)})[0] == "ok"
    assert "nested more than" in run("calculate", {"expression": nested(NESTING_LIMIT)})[1]
    assert "nested more than" in run("calculate", {"expression": nested(240)})[1]


def test_length_is_bounded() -> None:
    assert run("calculate", {"expression": "1" * EXPRESSION_LIMIT})[0] == "ok"
    assert "longer than" in run("calculate", {"expression": "1" * (EXPRESSION_LIMIT + 1)})[1]


@given(st.text(alphabet="0123456789.eE+-*/%() ", max_size=60))
def test_any_text_gives_a_value_or_a_sentence_and_never_an_exception(expression: str) -> None:
    assert run("calculate", {"expression": expression})[0] in {"ok", "error"}


@pytest.mark.parametrize(
    "arguments", [None, [], "1", {}, {"expression": 1}, {"expression": None}, {"expression": "1", "base": 2}]
)
def test_bad_arguments_are_an_error_and_not_an_exception(arguments: object) -> None:
    status, output = run("calculate", arguments)

    assert status == "error"
    assert output.startswith("calculate takes")


def test_a_tool_that_does_not_exist_is_an_error() -> None:
    assert run("bash", {}) == ("error", "there is no sandboxed tool 'bash'")


def test_every_schema_closes_its_arguments() -> None:
    for schema in SCHEMAS.values():
        assert set(schema) == {"description", "parameters"}
        assert schema["parameters"]["additionalProperties"] is False
