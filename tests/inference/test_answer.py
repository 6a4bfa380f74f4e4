"""An answer is read into what the log can hold, and what is no reply is told without its words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spl.inference.answer import (
    DEPTH_MOST,
    DIGITS_MOST,
    Asked,
    Malformed,
    answered_by,
    calls,
    strict,
    tokens,
    usage,
)
from spl.inference.broker import CALLS_MOST, ID_LIMIT, TOKENS_MOST
from spl.inference.model import Usage
from spl.records.canonical import MAX_DEPTH, MAX_DIGITS, canonical


@pytest.mark.parametrize(
    "value",
    [
        None, "", [], {}, -1.5, "\U0001f600", {"a": [True, {"b": "é"}]},
        10**DIGITS_MOST - 1, 1 - 10**DIGITS_MOST,
        json.loads("[" * DEPTH_MOST + "1" + "]" * DEPTH_MOST),
    ],
)  # fmt: skip
def test_what_is_read_can_be_written_down(value: Any) -> None:
    assert strict(json.dumps(value)) == value
    canonical({"value": value})


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "NaN", "-Infinity", "1e999", '"\\ud800"', '{"\\udfff": 1}', '"\\ude00\\ud83d"', "1 2",
        "1" * (DIGITS_MOST + 1), "-" + "1" * 5000, "[" * 100_000, "\ufeff{}",
    ],
)  # fmt: skip
def test_what_could_not_be_written_down_is_not_read(text: str) -> None:
    with pytest.raises(Malformed, match=r"^it is not JSON$"):
        strict(text)


@pytest.mark.parametrize("around", [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_deeper_than_a_record_could_take_is_not_read(around: tuple[str, str]) -> None:
    depth = DEPTH_MOST + 1
    with pytest.raises(Malformed, match=r"^it is nested over 32 deep$"):
        strict(around[0] * depth + "1" + around[1] * depth)


def test_a_call_keeps_an_id_of_its_own_and_is_given_one_where_it_has_none() -> None:
    own: list[object] = ["a", "", None, "a", 5, "x" * (ID_LIMIT + 1), "b", "call_3_3"]

    made = calls([Asked(each, "tool", {}) for each in own], 2)

    assert [call.id for call in made] == [
        "a", "call_3_2", "call_3_4", "call_3_5", "call_3_6", "call_3_7", "b", "call_3_3",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [None, "", 5, "x" * (ID_LIMIT + 1)])
def test_a_call_of_nothing_makes_the_reply_malformed(name: object) -> None:
    with pytest.raises(Malformed, match="a call's name is not a string of 1 to 200 characters"):
        calls([Asked("a", name, {})], 0)


def test_more_calls_than_one_reply_may_have_make_it_malformed() -> None:
    assert len(calls([Asked(None, "tool", {})] * CALLS_MOST, 0)) == CALLS_MOST
    with pytest.raises(Malformed, match="more than 128 calls"):
        calls([Asked(None, "tool", {})] * (CALLS_MOST + 1), 0)


@pytest.mark.parametrize("count", [None, -1, 1.0, True, "1"])
def test_what_is_no_count_cannot_be_charged(count: object) -> None:
    with pytest.raises(Malformed, match="its usage is not in whole numbers"):
        tokens({"n": count}, "n")


def test_a_count_that_need_not_be_there_may_be_absent_or_null() -> None:
    assert (tokens({}, "n", 0), tokens({"n": None}, "n", 0), tokens({"n": 7}, "n", 0)) == (0, 0, 7)


def test_usage_that_makes_no_sense_cannot_be_charged() -> None:
    assert usage(5, 6, 5) == Usage(5, 6, 5)
    for taken in ((5, 6, 7), (TOKENS_MOST + 1, 0, 0), (0, TOKENS_MOST + 1, 0)):
        with pytest.raises(Malformed):
            usage(*taken)


@pytest.mark.parametrize("value", [None, "", 5, "two\nlines", "\x1b[31m", "x" * 201])
def test_a_model_that_is_not_named_plainly_is_the_one_that_was_asked(value: object) -> None:
    assert answered_by("m-2024", "m") == "m-2024"
    assert answered_by(value, "m") == "m"


def test_what_is_taken_from_a_provider_is_within_what_the_log_takes() -> None:
    # A room that knows no log has bounds of its own: they must not drift apart.
    assert DIGITS_MOST <= MAX_DIGITS
    assert DEPTH_MOST < MAX_DEPTH
