"""What is asked of a log by a filter: a client's document, checked, as a tree of conditions for a store to carry out.

A filter is an object; a record matches where all that it names does. It names fields, each with a value it equals or
with an object of operators, and may name `$and`, `$or` (lists of filters) and `$not` (a filter). A field is a column,
or a path of keys into the body behind `body.`. Nothing is converted: a number equals numbers alone, `true` is not 1,
null equals null and not what is missing. An array or an object is neither looked into nor equal to anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from spl.errors import InvalidBody

MOST_CONDITIONS: Final = 100
"""Filters and operators in one filter, those in others among them."""
MOST_VALUES: Final = 500
MOST_NESTED: Final = 10
MOST_KEYS: Final = 16
LONGEST_PATH: Final = 400
LONGEST_TEXT: Final = 4096
LONGEST_PATTERN: Final = 256
MOST_FITTED: Final = 1 << 24
"""Characters of a text of a body times those of a pattern; where it is more, the text fits the pattern in no case.

SQLite takes as many steps, and is not to be interrupted in between: ten seconds for a megabyte of one letter.
"""
MOST_SORTED: Final = 3
MOST_OFFSET: Final = 10_000
"""Records passed over. All of them are found first, and put in order where they are sorted."""

TEXTS: Final = ("id", "thread", "actor", "act", "data_type", "judged_by")
NUMBERS: Final = ("clock", "sequence")
KIND: Final = "body.kind"
"""A column too: the one key of a body that an index is kept over."""

Scalar: TypeAlias = str | int | float | bool | None
Order = Literal["$gt", "$gte", "$lt", "$lte"]
Operator: TypeAlias = Literal["$in", "$like", "$ilike", "$exists"] | Order

_ORDERS: Final = ("$gt", "$gte", "$lt", "$lte")
_OPERATORS: Final = ("$eq", "$ne", *_ORDERS, "$in", "$nin", "$like", "$ilike", "$exists", "$not")


@dataclass(frozen=True, slots=True)
class Field:
    """A field by its name: a column, or a path of keys into the body. `body.kind` is a column."""

    name: str
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """One thing said of one field. `values` has one value, but for `$in`, which may have any number."""

    field: Field
    operator: Operator
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Every:
    """All of the parts; of no parts, what every record matches."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one of the parts."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """What does not match the part, be it that the field is not there."""

    part: Filter


Filter: TypeAlias = Term | Every | Some | Not


class Search(NamedTuple):
    """A filter, the fields to sort by (each with whether it falls), and which of what matches is wanted."""

    filter: Filter = Every(())
    sort: tuple[tuple[Field, bool], ...] = ()
    limit: int = 100
    offset: int = 0


def filter_of(document: object, thread: str | None = None) -> Filter:
    """Give the filter that a document is, on one thread where that is given.

    Raises InvalidBody, its message beginning with the place of what is wrong: `filter.$and[1].body.x: ...`.
    """
    found = _Reader().filter(document, "filter", MOST_NESTED)
    return found if thread is None else Every((Term(Field("thread"), "$in", (thread,)), found))


def sort_of(document: dict[str, Any]) -> tuple[tuple[Field, bool], ...]:
    """Give the fields to sort by, the first before the others; raises InvalidBody as `filter_of` does."""
    if len(document) > MOST_SORTED:
        raise _wrong("sort", f"it has over {MOST_SORTED} fields")
    found = []
    for name, said in document.items():
        here = f"sort.{_shown(name)}"
        if type(said) is not int or said not in (1, -1):
            raise _wrong(here, "it must be 1, which rises, or -1, which falls")
        found.append((_field(name, here), said == -1))
    return tuple(found)


def fields_of(found: Filter) -> set[str]:
    """Give the names of the fields that a filter says something of."""
    match found:
        case Term(field):
            return {field.name}
        case Not(part):
            return fields_of(part)
        case Every(parts) | Some(parts):
            return {name for part in parts for name in fields_of(part)}


def is_of_few_threads(found: Filter) -> bool:
    """Tell whether a filter names the threads, or the records, that alone can match it."""
    match found:
        case Term(field, operator):
            return operator == "$in" and field.name in ("thread", "id", "sequence")
        case Every(parts):
            return any(is_of_few_threads(part) for part in parts)
        case _:
            return False


class _Reader:
    """Reads one filter, and counts what is in it."""

    def __init__(self) -> None:
        self._conditions = 0
        self._values = 0

    def filter(self, document: object, here: str, depth: int) -> Filter:
        """Read a filter."""
        if not isinstance(document, dict):
            raise _wrong(here, "a filter is an object")
        if depth == 0:
            raise _wrong(here, f"filters are nested over {MOST_NESTED} deep")
        self._count(here)
        return _every(
            [self._named(name, said, f"{here}.{_shown(name)}", depth) for name, said in document.items()]
        )

    def _named(self, name: str, said: object, here: str, depth: int) -> Filter:
        if name in ("$and", "$or"):
            if not isinstance(said, list) or not said:
                raise _wrong(here, "it takes a list of filters, at least one")
            parts = [self.filter(each, f"{here}[{at}]", depth - 1) for at, each in enumerate(said)]
            return _every(parts) if name == "$and" else Some(tuple(parts))
        if name == "$not":
            return Not(self.filter(said, here, depth - 1))
        if name.startswith("$"):
            raise _wrong(here, "there is no such operator: filters are joined by $and, $or and $not")
        field = _field(name, here)
        return (
            self._said(field, said, here, depth)
            if isinstance(said, dict)
            else self._is(field, "$eq", said, here)
        )

    def _said(self, field: Field, said: dict[str, object], here: str, depth: int) -> Filter:
        """Read an object of operators."""
        if not said:
            raise _wrong(here, "it has no operator")
        found = []
        for operator, value in said.items():
            place = f"{here}.{_shown(operator)}"
            if operator not in _OPERATORS:
                raise _wrong(place, f"there is no such operator: a field takes {' '.join(_OPERATORS)}")
            if operator != "$not":
                found.append(self._is(field, operator, value, place))
                continue
            if not isinstance(value, dict):
                raise _wrong(place, "it takes an object of operators")
            if depth == 1:
                raise _wrong(place, f"filters are nested over {MOST_NESTED} deep")
            found.append(Not(self._said(field, value, place, depth - 1)))
        return _every(found)

    def _is(self, field: Field, operator: str, value: object, here: str) -> Filter:
        """Read what one operator says."""
        self._count(here)
        if operator in ("$eq", "$ne"):
            term = Term(field, "$in", (self._scalar(value, here),))
            return term if operator == "$eq" else Not(term)
        if operator in ("$in", "$nin"):
            if not isinstance(value, list):
                raise _wrong(here, "it takes a list")
            values = tuple(self._scalar(each, f"{here}[{at}]") for at, each in enumerate(value))
            return Term(field, "$in", values) if operator == "$in" else Not(Term(field, "$in", values))
        if operator == "$exists":
            if not isinstance(value, bool):
                raise _wrong(here, "it takes true or false")
            return Term(field, "$exists", (value,))
        if operator in ("$like", "$ilike"):
            return Term(field, cast("Operator", operator), (_pattern(value, here),))
        found = self._scalar(value, here)
        if found is None or isinstance(found, bool):
            raise _wrong(here, "it takes a number or a text")
        if isinstance(found, str) and "\0" in found:
            raise _wrong(here, "the text holds a U+0000")
        return Term(field, cast("Operator", operator), (found,))

    def _scalar(self, value: object, here: str) -> Scalar:
        self._values += 1
        if self._values > MOST_VALUES:
            raise _wrong(here, f"the filter has over {MOST_VALUES} values")
        if isinstance(value, str):
            if len(value) > LONGEST_TEXT:
                raise _wrong(here, f"the text has over {LONGEST_TEXT} characters")
            return value
        if isinstance(value, float) and math.isfinite(value):
            # As a body is written down: a float that is whole is that integer.
            return int(value) if value.is_integer() else value
        if value is None or isinstance(value, bool | int):
            return value
        raise _wrong(here, "a value is a text, a number, true, false or null")

    def _count(self, here: str) -> None:
        self._conditions += 1
        if self._conditions > MOST_CONDITIONS:
            raise _wrong(here, f"the filter has over {MOST_CONDITIONS} conditions")


def _every(parts: list[Filter]) -> Filter:
    return parts[0] if len(parts) == 1 else Every(tuple(parts))


def _field(name: str, here: str) -> Field:
    if name in (*TEXTS, *NUMBERS, KIND):
        return Field(name)
    first, *keys = name.split(".")
    if first != "body" or not keys:
        known = " ".join((*TEXTS, *NUMBERS))
        raise _wrong(
            here,
            f"there is no such field to ask for: there are {known}, and what is in the body, as body.key",
        )
    if len(name) > LONGEST_PATH or len(keys) > MOST_KEYS:
        raise _wrong(here, f"the path is over {LONGEST_PATH} characters or {MOST_KEYS} keys long")
    if "" in keys or '"' in name:
        # SQLite (3.40 is one) takes a quotation mark in a path for the end of its key, whatever stands before it.
        raise _wrong(here, "a key that is empty, or that holds a dot or a quotation mark, cannot be named")
    return Field(name, tuple(keys))


def _pattern(value: object, here: str) -> str:
    if not isinstance(value, str):
        raise _wrong(here, "it takes a text: % stands for any characters, _ for one")
    if len(value) > LONGEST_PATTERN:
        raise _wrong(here, f"the pattern has over {LONGEST_PATTERN} characters")
    if "\0" in value:
        raise _wrong(here, "the pattern holds a U+0000")
    if (len(value) - len(value.rstrip("\\"))) % 2:
        raise _wrong(
            here, "the pattern ends in a backslash, which makes the character after it stand for itself"
        )
    return value


def _shown(name: str) -> str:
    """Show a name of the client's in a message: it may hold anything."""
    shown = ascii(name)[1:-1]
    return shown if len(shown) <= 80 else f"{shown[:80]}..."


def _wrong(here: str, what: str) -> InvalidBody:
    return InvalidBody(f"{here}: {what}")
