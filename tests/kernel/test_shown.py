from __future__ import annotations

import math
from typing import Any

import pytest

from spl.kernel.shown import DEEPEST, LARGEST, LONGEST, shown


def views(args: dict[str, Any]) -> list[Any]:
    """Give what is shown of arguments, in each view."""
    return [view["args"] for view in shown({"actor": "ann", "args": args})[0]]


def test_what_is_fit_is_shown_as_it_is_in_one_view() -> None:
    args = {"text": "é\n\x01", "n": [-(2**63), 2**63 - 1, 1.5, None, True], "map": {"": {"k": []}}}
    assert shown({"actor": "ann", "args": args}) == ([{"actor": "ann", "args": args}], None)


def test_the_most_that_can_be_shown_is() -> None:
    texts = ["é" * LONGEST] * 15
    assert views({"texts": texts}) == [{"texts": texts}]
    numbers = [0] * (LARGEST // 64 - 2)
    assert views({"n": numbers}) == [{"n": numbers}]
    deep: list[Any] = []
    for _ in range(DEEPEST - 2):
        deep = [deep]
    assert views({"deep": deep}) == [{"deep": deep}]


@pytest.mark.parametrize("value", ["a\0", "\udfff", "x" * (LONGEST + 1), 2**63, {"k\0": 1}, [0] * 5000])
def test_each_value_that_is_not_is_replaced_where_it_stands_and_no_key_is_lost(value: object) -> None:
    first, second = views({"a": value, "b": [1, {"c": value, "d": 2}], "e": 3})
    assert first == {"a": None, "b": [1, {"c": None, "d": 2}], "e": 3}
    assert math.isnan(second["a"])
    assert math.isnan(second["b"][1]["c"])
    assert second["e"] == 3


def test_what_is_past_the_room_for_all_is_withheld_and_what_is_before_it_shown() -> None:
    texts = {f"k{n:02}": "x" * LONGEST for n in range(20)}
    first, _ = views(texts)
    assert first == {**dict.fromkeys(texts), **dict(list(texts.items())[:15])}


def test_a_variable_is_left_out_and_the_first_that_was_withheld_is_named_with_its_reason() -> None:
    seen, withheld = shown({"actor": "ann\0", "goal": "x" * (LONGEST + 1), "args": {"n": 2**64}})
    assert seen[0] == {"args": {"n": None}}
    assert [*seen[1]] == ["args"]
    assert withheld == "actor, which no rule is shown: it holds a character that no rule can look at"
    assert shown({"args": {"a\0": 1}})[0] == [{}, {}]
    assert shown({"args": {"m": {"deep": [2**64]}}})[1] == (
        "args.m, which no rule is shown: it holds an integer of more than 64 bits"
    )
