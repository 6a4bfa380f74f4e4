from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spl.errors import InvalidBody
from spl.records.canonical import MAX_DEPTH, MAX_DIGITS, Formed, canonical, parse

characters = st.characters(exclude_categories=["Cs"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(characters)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(characters), inner), max_leaves=20
)


def nested(depth: int) -> Any:
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@given(values)
def test_canonical_form_is_its_own_canonical_form(value: object) -> None:
    once = canonical(value)
    assert canonical(parse(once)) == once
    assert canonical(parse(once.decode())) == once


@given(values)
def test_no_value_is_changed_by_its_canonical_form(value: object) -> None:
    assert parse(canonical(value)) == value


@given(st.dictionaries(st.text(characters), scalars).flatmap(lambda d: st.permutations(list(d.items()))))
def test_the_order_of_keys_does_not_matter(pairs: list[tuple[str, object]]) -> None:
    assert canonical(dict(pairs)) == canonical(dict(sorted(pairs)))


@given(st.dictionaries(st.text(characters), values), st.sets(st.text(characters)))
def test_an_object_has_the_same_form_whichever_of_its_values_have_theirs_already(
    value: dict[str, object], ahead: set[str]
) -> None:
    ahead |= set(list(value)[::2])
    formed = {key: Formed.of(each) if key in ahead else each for key, each in value.items()}
    assert canonical(formed) == canonical(value)


def around(inner: object, depth: int) -> Any:
    """Give objects in each other, so many, each with a part that has its form already."""
    for _ in range(depth):
        inner = {"a": inner, "b": Formed.of(1)}
    return inner


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([Formed.of(1)], "bytes"),
        ({"a": {"b": Formed.of(1)}}, "bytes"),
        ({1: Formed.of(1)}, "the key 1 is not a string"),
        ({"\ud800": Formed.of(1)}, "surrogate"),
        ({"a": Formed.of(1), "b": nested(MAX_DEPTH)}, "nested too deep"),
        (around(nested(1), MAX_DEPTH), "nested too deep"),
        (around(1, MAX_DEPTH + 1), "nested too deep"),
    ],
)
def test_what_stands_beside_a_form_that_is_made_is_refused_as_it_is_elsewhere(
    value: object, why: str
) -> None:
    with pytest.raises(InvalidBody, match=why):
        canonical(value)


def test_what_is_formed_ahead_leaves_room_around_it() -> None:
    assert canonical(around(Formed.of(nested(MAX_DEPTH // 2)), MAX_DEPTH // 2))
    with pytest.raises(InvalidBody, match="nested too deep"):
        Formed.of(nested(MAX_DEPTH // 2 + 1))


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"b": 1, "a": {"d": 2, "c": 3}}, b'{"a":{"c":3,"d":2},"b":1}'),
        ([{"b": [{"z": 1, "y": 2}]}, (1, 2)], b'[{"b":[{"y":2,"z":1}]},[1,2]]'),
        ([1.0, -0.0, 1e3, 2.5, 1e-7, -1.5], b"[1,0,1000,2.5,1e-07,-1.5]"),
        (1e22, b"10000000000000000000000"),
        ([True, False, None], b"[true,false,null]"),
        ("né 😀 \u2028 \x7f /", "né 😀 \u2028 \x7f /".join('""').encode()),
        ('"\\\n\r\t\b\f\x00\x1f', rb'"\"\\\n\r\t\b\f\u0000\u001f"'),
        # By code point, where UTF-16 order would put the second first.
        ({"\U0001f600": 1, "\uff5e": 2}, '{"\uff5e":2,"\U0001f600":1}'.encode()),
        ({"10": 1, "9": 2, "": 3, "A": 4, "a": 5}, b'{"":3,"10":1,"9":2,"A":4,"a":5}'),
    ],
)
def test_known_values_have_known_forms(value: object, form: bytes) -> None:
    assert canonical(value) == form


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "nan"),
        ([float("inf")], "inf"),
        ({"a": float("-inf")}, "-inf"),
        ("\ud800", "surrogate"),
        ({"\udfff": 1}, "surrogate"),
        ({1: 2}, "not a string"),
        ({None: 2}, "not a string"),
        (b"bytes", "not a JSON type"),
        ({1, 2}, "not a JSON type"),
        (10**MAX_DIGITS, "digits"),
        (-(10**MAX_DIGITS), "digits"),
        (nested(MAX_DEPTH + 1), "too deep"),
    ],
)
def test_a_value_without_a_canonical_form_is_refused(value: object, why: str) -> None:
    with pytest.raises(InvalidBody, match=why):
        canonical(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(InvalidBody, match="too deep"):
        canonical(value)


def test_the_deepest_value_and_the_largest_float_pass_both_ways() -> None:
    deepest, largest = nested(MAX_DEPTH), 1.7976931348623157e308
    assert parse(canonical(deepest)) == deepest
    assert parse(canonical(largest)) == largest


def test_brackets_inside_strings_are_no_depth() -> None:
    value = ['["{' * 100, "\\", '\\"[[', ["[" * MAX_DEPTH]]
    assert parse(json.dumps(value)) == value


def test_an_escaped_pair_of_surrogates_is_one_character() -> None:
    assert parse(rb'"\ud83d\ude00"') == "😀"
    assert parse(rb'"\\ud800"') == r"\ud800"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "line 1, column 1"),
        (b"\xef\xbb\xbf{}", "line 1, column 1"),
        (b'{\n "a": nope}', "line 2, column 7"),
        (b'{"a":1} x', "line 1, column 9"),
        (b"[1,]", "malformed"),
        (b"{'a':1}", "malformed"),
        (b"[01]", "malformed"),
        (b'"\x01"', "malformed"),
        (b'"unterminated', "malformed"),
        (b'{"a":1,"b":{"k":1,"k":1}}', "'k' twice"),
        (rb'{"\ud800":1,"\ud800":2}', "twice"),
        (b'{"a":1,"\\u0061":2}', "'a' twice"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"1e999", "1e999"),
        (rb'"\ud800"', "surrogate"),
        (rb'{"a":["\uDFFF"]}', "surrogate"),
        (rb'{"\ud83d\ud83d\ude00":1}', "surrogate"),
        ('"\udc80"', "surrogate"),
        (b'"\xff"', "byte 1"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b'{"a":1}'.decode().encode("utf-16"), "UTF-8"),
        (b"9" * (MAX_DIGITS + 1), "digits"),
        (b"-" + b"9" * 100_000, "digits"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "line 1, column 65"),
        (b"[" * 1_000_000, "nested"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested"),
        (b'"\\"' * 100 + b"[" * 200, "malformed"),
    ],
)
def test_json_that_is_not_strict_is_refused_with_its_place(raw: bytes | str, why: str) -> None:
    with pytest.raises(InvalidBody, match=why) as refused:
        parse(raw)
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 250


def test_a_megabyte_of_unterminated_strings_and_brackets_is_read_in_linear_time() -> None:
    with pytest.raises(InvalidBody):
        parse(b"[" * 65 + b'"\\"' * 500_000)
    with pytest.raises(InvalidBody):
        parse(b'"' * 1_000_001 + b"[" * 65)
