"""A filter as SQL over the log's table: the text holds no value and no key of the client's, only places for them."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NamedTuple

from spl.records.canonical import canonical
from spl.records.filter import KIND, MOST_FITTED, NUMBERS, Every, Field, Filter, Not, Scalar, Some, Term
from spl.records.record import is_record_id

SORTED: Final = 100
"""Characters of a text that it is put in order by: as many as the offset and the limit are kept at once."""

_SIGNS: Final = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_MIN, _MAX = -(2**63), 2**63 - 1
_WILD = re.compile(r"\\(.)|([%_*?\[])", re.DOTALL)
_GLOBS: Final = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}


class Sql(NamedTuple):
    """A piece of SQL, and the values for the places in it, in their order."""

    text: str
    values: tuple[Any, ...] = ()


_TRUE: Final = Sql("1")
_FALSE: Final = Sql("0")


def condition(found: Filter) -> Sql:
    """Give a filter as what may stand in a WHERE.

    It is true of what matches; of the rest it is false or null, which is the same below AND and OR, and made the same
    by `IS NOT TRUE`. Not with a function, which would keep SQLite from its indexes.
    """
    match found:
        case Every(parts):
            return _joined(" AND ", parts) if parts else _TRUE
        case Some(parts):
            return _joined(" OR ", parts)
        case Not(part):
            text, values = condition(part)
            return Sql(f"({text}) IS NOT TRUE", values)
        case Term():
            return _in_body(found) if found.field.path else _of_column(found)


def order(sort: tuple[tuple[Field, bool], ...]) -> Sql:
    """Give what may stand in an ORDER BY: the fields, and the sequence where they leave it open."""
    texts: list[str] = []
    values: list[Any] = []
    for field, falls in sort:
        way = " DESC" if falls else ""
        for text, more in _keys(field):
            texts.append(f"{text}{way}")
            values += more
    if not any(field.name == "sequence" for field, _ in sort):
        texts.append("sequence")
    return Sql(", ".join(texts), tuple(values))


def _joined(by: str, parts: tuple[Filter, ...]) -> Sql:
    texts, values = zip(*map(condition, parts), strict=True)
    return Sql(by.join(f"({text})" for text in texts), sum(values, ()))


# --- columns ---


def _of_column(term: Term) -> Sql:
    name, values = term.field.name, term.values
    column = _column(name)
    match term.operator:
        case "$exists":
            there = bool(values[0])
            if name == KIND:
                return Sql("kind IS NOT NULL" if there else "kind IS NULL")
            return _TRUE if there else _FALSE
        case "$in":
            return _column_in(name, column, values)
        case "$like" | "$ilike":
            return _FALSE if name in NUMBERS else _like(_text_of(column), term)
    [value] = values
    if isinstance(value, str) == (name in NUMBERS):
        return _FALSE
    sign = _SIGNS[term.operator]
    return Sql(f"{_text_of(column)} {sign} ?", (_bound(value),))


def _column_in(name: str, column: str, values: tuple[Scalar, ...]) -> Sql:
    bound: list[Any]
    if name in NUMBERS:
        bound = [each for each in values if type(each) is int and _MIN <= each <= _MAX]
    elif name == "id":
        bound = [bytes.fromhex(str(each)) for each in values if is_record_id(each)]
    else:
        bound = [each for each in values if isinstance(each, str)]
    found = _one_of(column, bound)
    if name == "judged_by" and None in values:
        return Sql(f"{found.text} OR judged_by IS NULL", found.values)
    return found


def _column(name: str) -> str:
    return "kind" if name == KIND else name


def _text_of(column: str) -> str:
    """Give a column as it is to whoever reads a record: an id is kept as its bytes."""
    return "lower(hex(id))" if column == "id" else column


def _bound(value: Scalar) -> Scalar:
    """Give a number as SQLite can have it: an integer beyond its own as the nearest float."""
    if not isinstance(value, int) or _MIN <= value <= _MAX:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


# --- the body ---


def _in_body(term: Term) -> Sql:
    path = _path(term.field)
    match term.operator:
        case "$exists":
            return Sql(f"json_type(body, ?) IS {'NOT ' if term.values[0] else ''}NULL", (path,))
        case "$in":
            return _body_in(path, term.values)
        case "$like" | "$ilike":
            text, values = _like("json_extract(body, ?)", term)
            longest = MOST_FITTED // max(1, len(str(term.values[0])))
            return Sql(
                "CASE WHEN json_type(body, ?) = 'text' AND length(json_extract(body, ?)) <= ?"
                f" THEN {text} END",
                (path, path, longest, path, *values),
            )
    [value] = term.values
    sign = _SIGNS[term.operator]
    if isinstance(value, str):
        return Sql(f"json_type(body, ?) = 'text' AND json_extract(body, ?) {sign} ?", (path, path, value))
    # SQLite reads both: it and Python may differ in the last digit of a float.
    return Sql(
        f"json_type(body, ?) IN ('integer', 'real') AND json_extract(body, ?) {sign} json_extract(?, '$')",
        (path, path, canonical(value).decode()),
    )


def _body_in(path: str, values: tuple[Scalar, ...]) -> Sql:
    # A body stands in canonical JSON, so values are equal where their texts are, however large a number is; and of two
    # paths SQLite gives the text of what is there, of one a number or a text of its own.
    texts = [canonical(each).decode() for each in values if each is not None]
    found = _one_of("json_extract(body, ?, ?)", [f"[{each},{each}]" for each in texts])
    if found.values:
        found = Sql(found.text, (path, path, *found.values))
    if None not in values:
        return found
    null = Sql("json_type(body, ?) = 'null'", (path,))
    return Sql(f"{found.text} OR {null.text}", found.values + null.values) if found.values else null


def _path(field: Field) -> str:
    """Give the path of SQLite's JSON functions; each key is quoted, and written as it stands in a body."""
    return "$" + "".join(f".{json.dumps(key, ensure_ascii=False)}" for key in field.path)


# --- both ---


def _one_of(expression: str, bound: list[Any]) -> Sql:
    if not bound:
        return _FALSE
    if len(bound) == 1:
        return Sql(f"{expression} = ?", tuple(bound))
    return Sql(f"{expression} IN ({', '.join('?' * len(bound))})", tuple(bound))


def _like(expression: str, term: Term) -> Sql:
    pattern = str(term.values[0])
    if term.operator == "$ilike":
        return Sql(f"{expression} LIKE ? ESCAPE '\\'", (pattern,))
    # SQLite's LIKE takes a letter of ASCII in either case; what it calls GLOB does not.
    return Sql(f"{expression} GLOB ?", (_WILD.sub(_glob, pattern),))


def _glob(found: re.Match[str]) -> str:
    literal, wild = found.groups()
    if literal is None:
        return _GLOBS[wild]
    return _GLOBS[literal] if literal in "*?[" else str(literal)


def _keys(field: Field) -> list[Sql]:
    """Give what puts records in the order of a field: what is missing, null, false, true, numbers, texts, the rest."""
    if not field.path:
        return [Sql(_column(field.name))]
    path = _path(field)
    of_type = (
        "CASE json_type(body, ?) WHEN 'null' THEN 1 WHEN 'false' THEN 2 WHEN 'true' THEN 3 WHEN 'integer' THEN 4"
        " WHEN 'real' THEN 4 WHEN 'text' THEN 5 WHEN 'array' THEN 6 WHEN 'object' THEN 7 ELSE 0 END"
    )
    of_value = (
        "CASE WHEN json_type(body, ?) IN ('integer', 'real') THEN json_extract(body, ?)"
        f" WHEN json_type(body, ?) = 'text' THEN substr(json_extract(body, ?), 1, {SORTED}) END"
    )
    return [Sql(of_type, (path,)), Sql(of_value, (path,) * 4)]
