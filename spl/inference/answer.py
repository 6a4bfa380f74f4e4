"""What the answers of all providers are read with: JSON that the log can take, and the parts of a reply.

An answer is a stranger's. What it lacks is told without its words, for they could be anything.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from spl.inference.broker import CALLS_MOST, ID_LIMIT, usage_fault
from spl.inference.model import Call, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEPTH_MOST: Final = 32
"""Arrays and objects inside each other: a record takes 64, and a call's arguments stand a few deep in theirs."""
DIGITS_MOST: Final = 309
"""Digits of an integer: as many as a record takes."""
MALFORMED_MOST: Final = 1000
"""Characters that are kept of arguments which are no JSON object."""

_MODEL_MOST = 200
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Malformed(ValueError):
    """An answer that is no reply; the text says what is wrong with it and holds nothing of it."""


class Asked(NamedTuple):
    """A tool call as an answer has it, its id and name not looked at yet."""

    id: object
    name: object
    arguments: Mapping[str, Any]
    malformed: str | None = None


def strict(text: str) -> Any:
    """Read one JSON value that a record can hold.

    Raises Malformed on anything else: NaN, infinities and numbers that overflow to them, integers over `DIGITS_MOST`
    digits, nesting over `DEPTH_MOST`, lone surrogates.
    """
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_constant)
        # UTF-8 has no surrogates, so only an escape can bring one in.
        if _ESCAPED_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise Malformed("it is not JSON") from None
    level = [value]
    for _ in range(DEPTH_MOST + 1):
        level = [inner for outer in level for inner in _within(outer)]
        if not level:
            return value
    raise Malformed(f"it is nested over {DEPTH_MOST} deep")


def _within(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _integer(digits: str) -> int:
    # Python itself refuses to read one of over 4300 digits, but not to hold it.
    if len(digits.removeprefix("-")) > DIGITS_MOST:
        raise ValueError
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError
    return value


def _constant(_: str) -> NoReturn:
    raise ValueError


def an_object(value: object, what: str) -> dict[str, Any]:
    """Give a value that must be an object; raises Malformed."""
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not an object")
    return value


def a_list(value: object, what: str) -> list[Any]:
    """Give a value that must be a list; raises Malformed."""
    if not isinstance(value, list):
        raise Malformed(f"{what} is not a list")
    return value


def a_string(value: object, what: str) -> str:
    """Give a value that must be a string; raises Malformed."""
    if not isinstance(value, str):
        raise Malformed(f"{what} is not a string")
    return value


def calls(asked: Sequence[Asked], turn: int) -> tuple[Call, ...]:
    """Give an answer's calls, in their order; one without an id of its own is given one.

    Raises Malformed if one has no name or there are too many. `turn` counts from 0.
    """
    if len(asked) > CALLS_MOST:
        raise Malformed(f"it has more than {CALLS_MOST} calls")
    taken: set[str] = set()
    found = []
    for number, each in enumerate(asked, start=1):
        name, own = _word(each.name), _word(each.id)
        if name is None:
            raise Malformed(f"a call's name is not a string of 1 to {ID_LIMIT} characters")
        if own is None or own in taken:
            own = _free(turn, number, taken | {other.id for other in asked if isinstance(other.id, str)})
        taken.add(own)
        found.append(Call(own, name, each.arguments, each.malformed))
    return tuple(found)


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= ID_LIMIT else None


def _free(turn: int, number: int, taken: set[str]) -> str:
    while (made := f"call_{turn + 1}_{number}") in taken:
        number += 1
    return made


def tokens(usage: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Give a count of an answer's usage; one that is absent or null is the default, if there is one.

    Raises Malformed if there is no count.
    """
    value = usage.get(name)
    if value is None:
        value = default
    if type(value) is not int or value < 0:
        raise Malformed("its usage is not in whole numbers from 0")
    return value


def usage(input_tokens: int, output_tokens: int, cached_tokens: int) -> Usage:
    """Give the usage of a reply; raises Malformed if nothing can be charged by it."""
    taken = Usage(input_tokens, output_tokens, cached_tokens)
    if fault := usage_fault(taken):
        raise Malformed(fault)
    return taken


def answered_by(value: object, asked: str) -> str:
    """Give the model that an answer names, or the one that was asked if it names none in a plain word."""
    is_plain = isinstance(value, str) and value.isprintable() and 0 < len(value) <= _MODEL_MOST
    return str(value) if is_plain else asked
