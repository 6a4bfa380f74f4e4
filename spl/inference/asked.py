"""The calls of a reply, as both APIs give them: with ids that are unique in it, whatever the provider called them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from spl.inference.broker import ID_LIMIT
from spl.inference.endpoint import Malformed
from spl.inference.model import Call, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MODEL_LIMIT: Final = 200
"""Characters of a model's name."""

_KEPT = 1000


def calls(made: Iterable[tuple[object, object, object]], turn: int) -> tuple[Call, ...]:
    """Give calls from the id, name and arguments of each; `turn` counts from 0.

    An id that is missing, too long or there before is replaced: servers of local models give the same one to all, or
    none. Arguments are an object or the text of one; what is neither makes the call malformed. Raises Malformed for a
    name that is none.
    """
    found: list[Call] = []
    for number, (said, name, arguments) in enumerate(made, start=1):
        if not isinstance(name, str) or not 0 < len(name) <= ID_LIMIT:
            raise Malformed("a call in it names no tool")
        taken = {call.id for call in found}
        known = (
            isinstance(said, str) and 0 < len(said) <= ID_LIMIT and said.isprintable() and said not in taken
        )
        found.append(Call(str(said) if known else _id(turn, number, taken), name, *_arguments(arguments)))
    return tuple(found)


def counted(usage: object, *, input: tuple[str, ...], output: str, cached: int) -> Usage:  # noqa: A002 - its name
    """Give what a reply took, by the names of its counts of input, which are added up, and of its output.

    Raises Malformed where one that must be there is no whole number from 0: nothing could be charged by it.
    """
    if not isinstance(usage, dict):
        raise Malformed("it does not say what it took")
    counts = [usage.get(name) or 0 for name in input[1:]]
    counts += [usage.get(input[0]), usage.get(output)]
    whole = [each for each in counts if type(each) is int and each >= 0]
    if len(whole) < len(counts):
        raise Malformed("what it took is not in whole numbers")
    taken = sum(whole[:-1])
    return Usage(taken, whole[-1], min(cached, taken))


def whole(value: object) -> int:
    """Give a count that may be missing: 0 for what is no whole number from 0."""
    return value if type(value) is int and value >= 0 else 0


def model_named(said: object, asked: str | None) -> str:
    """Give the model that an answer names, or the one that was asked where it names none that can be shown."""
    if isinstance(said, str) and 0 < len(said) <= MODEL_LIMIT and said.isprintable():
        return said
    return asked or ""


def field(document: object, name: str) -> Any:
    """Give a field of what must be an object; raises Malformed."""
    if not isinstance(document, dict):
        raise Malformed("a part of it is not an object")
    return document.get(name)


def _arguments(said: object) -> tuple[Mapping[str, Any], str | None]:
    if said is None or said == "":
        return {}, None
    if isinstance(said, dict):
        return said, None
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    try:
        parsed = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        return parsed, None
    return {}, text[:_KEPT].encode("utf-8", "replace").decode()


def _refuse(_: str) -> object:
    raise ValueError("not JSON")


def _id(turn: int, number: int, taken: set[str]) -> str:
    made = f"call_{turn + 1}_{number}"
    while made in taken:
        made += "x"
    return made
