"""JSON as the worker reads and writes it, held against the standard library's."""

from __future__ import annotations

import json
import math
import random
import string
from typing import Any

import pytest

from spl.worker.jsontext import dumps, loads

TEXTS = [
    "null",
    " \t\n\r[ 1 , -2.5e3 , true , false ] \n",
    '{"a": {"b": [{}, [], ""]}, "a": 2}',
    r'"\u00e9\ud83d\ude00\ud800\"\\\/\b\f\n\r\t"',
    '"\u007f\u2028 \u5bbd \U0001f600"',
    "[123456789012345678901234567890, 1e400, -0, -0.0, 0.1]",
    "[Infinity, -Infinity]",
]
NO_TEXTS = [
    "",
    " ",
    "nul",
    "[1,]",
    "[1",
    "{",
    "{]",
    '{"a" 1}',
    '{"a":}',
    "{1:2}",
    "{'a':1}",
    '"a',
    r'"\x"',
    r'"\u12"',
    '"\x01"',
    "01",
    "+1",
    ".5",
    "1.",
    "[] []",
    "[]x",
    "\u00a0[]",
    "9" * 5000,
]


def anything(chance: random.Random, depth: int = 4) -> Any:
    """Give a value that JSON has, of any kind, with others in it up to a depth."""
    kind = chance.randrange(8 if depth else 6)
    if kind == 6:
        return [anything(chance, depth - 1) for _ in range(chance.randrange(5))]
    if kind == 7:
        return {text(chance): anything(chance, depth - 1) for _ in range(chance.randrange(5))}
    plain = (None, True, False, chance.randrange(-(10**20), 10**20), chance.uniform(-1e9, 1e9), text(chance))
    return plain[kind]


def text(chance: random.Random) -> str:
    letters = [*string.printable, "\0", "\x1f", "\x7f", "é", "宽", "😀", "\ud800", "\u2028", "\\", '"']
    return "".join(chance.choices(letters, k=chance.randrange(12)))


@pytest.mark.parametrize("seed", range(50))
def test_a_value_is_written_and_read_as_the_standard_library_does(seed: int) -> None:
    value = anything(random.Random(seed))

    written = dumps(value)

    assert written == json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert loads(written) == value == loads(json.dumps(value, indent=2))


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_read_as_the_standard_library_does_from_letters_and_from_bytes(text: str) -> None:
    assert repr(loads(text)) == repr(loads(text.encode())) == repr(json.loads(text))


def test_a_lone_surrogate_in_bytes_is_read_as_the_standard_library_does() -> None:
    assert loads(b'"\xed\xa0\x80"') == json.loads(b'"\xed\xa0\x80"') == "\ud800"


def test_what_is_no_number_is_read_and_written_as_the_standard_library_does() -> None:
    assert math.isnan(loads("NaN"))
    assert dumps([math.nan, math.inf, -math.inf]) == "[NaN,Infinity,-Infinity]"


@pytest.mark.parametrize("text", NO_TEXTS)
def test_what_is_no_json_text_is_a_value_error_as_in_the_standard_library(text: str) -> None:
    with pytest.raises(ValueError, match="JSON text"):
        loads(text)
    with pytest.raises(ValueError):  # noqa: PT011 - its words are not ours
        json.loads(text)


@pytest.mark.parametrize(
    "text", [b"\xff", b"\xef\xbb\xbf{}", "{}".encode("utf-16"), "{}".encode("utf-16-le")]
)
def test_bytes_that_are_no_utf_8_or_begin_with_a_mark_are_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of the codec or of the text
        loads(text)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_what_is_nested_too_deep_is_a_recursion_error(text: str) -> None:
    with pytest.raises(RecursionError):
        loads(text)


def test_a_value_inside_itself_is_a_recursion_error_and_one_without_json_a_type_error() -> None:
    itself: list[Any] = []
    itself.append(itself)

    with pytest.raises(RecursionError):
        dumps(itself)
    with pytest.raises(TypeError, match="set has no JSON"):
        dumps({"a": {1}})
