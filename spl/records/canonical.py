"""JSON in the one form that ids are taken over, and the strict reading of JSON from outside.

Both ends share their limits, so whatever `parse` lets in `canonical` can write, and the reverse.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, Final, NamedTuple, NoReturn

from spl.errors import InvalidBody

MAX_DEPTH: Final = 64
"""How many arrays and objects may stand inside each other."""

MAX_DIGITS: Final = 309
"""Digits an integer may have: those of the largest float, whose integral value must be readable again."""

_FORMED_DEPTH: Final = MAX_DEPTH // 2
"""Of what is formed ahead, so that there is room around it."""

_INTEGER_BOUND: Final = 10**MAX_DIGITS

# Possessive, and the closing quote optional: an unterminated string is passed over in one go, in linear time.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

# Most of what is recorded is text: a call for each would take longer than the encoding.
_AS_IT_IS: Final = frozenset((str, bool, type(None)))


class Formed(NamedTuple):
    """A value whose canonical form is made already; it may stand in an object that is yet to be brought into it.

    Only as the value of one of the object's own keys: anywhere else it is refused.
    """

    form: bytes

    @classmethod
    def of(cls, value: object) -> Formed:
        """Make the form of a value; raises InvalidBody as `canonical` does."""
        return cls(canonical(value, max_depth=_FORMED_DEPTH))


def canonical(value: object, *, max_depth: int = MAX_DEPTH) -> bytes:
    """Give the canonical JSON of a value of dicts, lists, tuples, strings, numbers, booleans and None.

    Keys are sorted by code point at every depth, nothing is padded, text is UTF-8 with only the escapes JSON
    demands, and a float with an integral value is written as that integer (-0.0 as 0).
    Raises InvalidBody on anything that has no such form: NaN, infinities, lone surrogates, keys that are not
    strings, other types, integers over `MAX_DIGITS` digits, nesting over `max_depth`.
    """
    if isinstance(value, dict) and any(type(each) is Formed for each in value.values()):
        return _put_together(value, max_depth)
    try:
        if type(value) is str:
            return _encoder.encode(value).encode()
        if type(value) is int:
            return b"%d" % _bounded(value)
        return _encoder.encode(_plain(value, max_depth)).encode()
    except UnicodeEncodeError:
        raise InvalidBody("the value has no canonical form: a string holds a lone surrogate") from None


def _put_together(value: dict[str, object], depth: int) -> bytes:
    """Give the form of an object of which parts have theirs."""
    _require_depth(depth)
    _require_keys(value)
    parts = (
        b"%b:%b"
        % (canonical(key), each.form if type(each) is Formed else canonical(each, max_depth=depth - 1))
        for key, each in sorted(value.items())
    )
    return b"{%b}" % b",".join(parts)


def _plain(value: object, depth: int) -> object:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return _bounded(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidBody(f"the value has no canonical form: a number is {value}")
        return int(value) if value.is_integer() else value
    if not isinstance(value, dict | list | tuple):
        raise InvalidBody(f"the value has no canonical form: {type(value).__name__} is not a JSON type")
    _require_depth(depth)
    if isinstance(value, dict):
        _require_keys(value)
        return {
            key: item if type(item) in _AS_IT_IS else _plain(item, depth - 1) for key, item in value.items()
        }
    return [item if type(item) in _AS_IT_IS else _plain(item, depth - 1) for item in value]


def _require_depth(left: int) -> None:
    if left == 0:
        raise InvalidBody("the value has no canonical form: it is nested too deep")


def _bounded(value: int) -> int:
    if not -_INTEGER_BOUND < value < _INTEGER_BOUND:
        raise InvalidBody(f"the value has no canonical form: an integer has over {MAX_DIGITS} digits")
    return value


def _require_keys(value: dict[Any, object]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise InvalidBody(f"the value has no canonical form: the key {key!a:.80} is not a string")


def parse(raw: bytes | str) -> Any:
    """Read one JSON value, strictly.

    Raises InvalidBody, with the line and column where they are known, on malformed JSON or UTF-8, a key twice
    in one object, NaN, infinities and numbers that overflow to them, lone surrogates, integers over
    `MAX_DIGITS` digits and nesting over `MAX_DEPTH`.
    """
    text = raw if isinstance(raw, str) else _decode(raw)
    _refuse_deep(text)
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidBody(f"the JSON is malformed at {_place(text, error.pos)}: {error.msg}") from None
    # Only an escape or a str can bring in a surrogate, for UTF-8 has none; an escaped pair is one character.
    if _ESCAPED_SURROGATE.search(text) or (isinstance(raw, str) and _SURROGATE.search(raw)):
        try:
            _encoder.encode(value).encode()
        except UnicodeEncodeError:
            raise InvalidBody("the JSON has a string with a lone surrogate, which is no character") from None
    return value


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidBody(f"the JSON is not UTF-8 at byte {error.start}: {error.reason}") from None


def _refuse_deep(text: str) -> None:
    """Refuse nesting before the decoder meets it: the decoder recurses once a level."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        mark = token[0]
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                where = _place(text, token.start())
                raise InvalidBody(f"the JSON is nested over {MAX_DEPTH} deep at {where}")
        elif mark in "]}":
            depth -= 1


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return f"line {line}, column {column}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InvalidBody(f"the JSON has the key {key!a:.80} twice in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > MAX_DIGITS:
        raise InvalidBody(f"the JSON has an integer of over {MAX_DIGITS} digits, starting {digits[:20]}")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise InvalidBody(f"the JSON has a number beyond the range of floats, {digits:.80}")
    return value


def _constant(name: str) -> NoReturn:
    raise InvalidBody(f"the JSON has {name}, which is no JSON number")


_encoder = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
_decoder = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
