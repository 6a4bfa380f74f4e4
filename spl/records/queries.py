"""What is asked of the log's table, as SQL: each question goes along an index."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from spl.records.conditions import condition, order
from spl.records.filter import KIND, fields_of, is_of_few_threads
from spl.records.formats import OWNER
from spl.records.rows import COLUMNS

if TYPE_CHECKING:
    from spl.records.filter import Search

LAST_ORDINAL: Final = "SELECT ordinal FROM records WHERE thread = ? ORDER BY sequence DESC LIMIT 1"
HEAD: Final = f"""
SELECT (SELECT max(clock) FROM records WHERE thread = ? AND actor = ?), coalesce(({LAST_ORDINAL}), 0)
"""  # noqa: S608 - constants
AT_CLOCK: Final = f"SELECT {COLUMNS} FROM records WHERE thread = ? AND actor = ? AND clock = ?"  # noqa: S608 - constants

GET: Final = f"SELECT {COLUMNS} FROM records WHERE id = ?"  # noqa: S608 - constants
_THREADS: Final = """
SELECT
    thread,
    (SELECT last.ordinal FROM records AS last WHERE last.thread = records.thread ORDER BY last.sequence DESC LIMIT 1),
    sequence,
    (SELECT max(last.sequence) FROM records AS last WHERE last.thread = records.thread)
FROM records WHERE ordinal = 1 {belonging} AND sequence > ? ORDER BY sequence LIMIT ?
"""
OWNER_OF: Final = f"SELECT {OWNER} FROM records WHERE thread = ? ORDER BY sequence LIMIT 1"  # noqa: S608 - constants
HAS_MANY: Final = f"SELECT 1 FROM records WHERE ordinal = 1 AND {OWNER} = ? LIMIT 1 OFFSET ?"  # noqa: S608 - constants
UNFINISHED: Final = f"""
SELECT {COLUMNS} FROM records AS opening WHERE kind = ? AND NOT EXISTS (
    SELECT 1 FROM records AS closing WHERE closing.thread = opening.thread AND closing.kind = ?
) ORDER BY sequence
"""  # noqa: S608 - constants
AT: Final = f"SELECT {COLUMNS} FROM records WHERE sequence = ?"  # noqa: S608 - constants
_STEP: Final = re.compile(r"USING [^(]*\((.*)\)")
# Nothing is deleted and a refused insert gives its number back, so the last sequence is the count.
COUNT: Final = "SELECT coalesce(max(sequence), 0) FROM records"


@cache
def insertion(records: int) -> str:
    """Give the statement that adds so many records, each with all its columns and its ordinal."""
    values = ", ".join([f"({', '.join('?' * (COLUMNS.count(',') + 2))})"] * records)
    return f"INSERT INTO records ({COLUMNS}, ordinal) VALUES {values}"  # noqa: S608 - no value is in it


def openings(owner: str | None) -> tuple[str, list[str]]:
    """Give the query that lists threads by their first records, and its values before `since` and `limit`."""
    belonging = "" if owner is None else f"AND {OWNER} = ?"
    return _THREADS.format(belonging=belonging), [] if owner is None else [owner]


def walk(actor: str | None, kind: str | None, owner: str, *, newest_first: bool) -> tuple[str, list[str]]:
    """Give the query that finds an owner's records among all of a part of the log, and its values before the others."""
    # The plus keeps SQLite from the index over actors; the one over kinds is in sequence order too, and shorter.
    given = [
        (term, value) for term, value in (("+actor = ?", actor), ("kind = ?", kind)) if value is not None
    ]
    where = " AND ".join([*(term for term, _ in given), f"? = ({OWNER_OF.replace('?', 'each.thread')})"])
    query = f"""
        SELECT {COLUMNS} FROM records AS each
        WHERE {where} AND sequence > ? AND sequence <= ? {_in_order(newest_first)} LIMIT ?
    """  # noqa: S608 - no value is in it
    return query, [*(value for _, value in given), owner]


def selection(
    thread: str | None, actor: str | None, kind: str | None, owner: str | None, *, newest_first: bool
) -> tuple[str, list[str]]:
    """Give the query that finds records, and its values before `since` and `limit`."""
    terms: list[str] = []
    values: list[str] = []
    # The plus keeps SQLite from the index over actors: the kernel's own has most of the log, and a thread little.
    by_actor = "actor = ?" if thread is None and owner is None else "+actor = ?"
    for term, value in (("thread = ?", thread), (by_actor, actor), ("kind = ?", kind)):
        if value is not None:
            terms.append(term)
            values.append(value)
    if owner is not None and thread is not None:
        terms.append(f"? = ({OWNER_OF})")
        values += [owner, thread]
    where = " AND ".join([*terms, "sequence > ?"])
    order = _in_order(newest_first)
    if owner is None or thread is not None:
        return f"SELECT {COLUMNS} FROM records WHERE {where} {order} LIMIT ?", values  # noqa: S608 - no value is in it
    # CROSS JOIN keeps SQLite from walking the log in sequence order, past all that others own. What it sorts
    # instead is no more than the owner has above `since`: sequences, taken from an index.
    page = f"""
        SELECT sequence FROM (SELECT thread FROM records WHERE ordinal = 1 AND {OWNER} = ?) AS opening
            CROSS JOIN records ON records.thread = opening.thread
        WHERE {where} {order} LIMIT ?
    """  # noqa: S608 - no value is in it
    return f"SELECT {COLUMNS} FROM records WHERE sequence IN ({page}) {order}", [owner, *values]  # noqa: S608


def search(asked: Search, owner: str | None) -> tuple[str, list[Any]]:
    """Give the query that finds the sequences of what a search is for, one more than its limit, and its values."""
    where, by = condition(asked.filter), order(asked.sort)
    values = [*where.values, *by.values, asked.limit + 1, asked.offset]
    rest = f"ORDER BY {by.text} LIMIT ? OFFSET ?"
    if owner is None:
        return f"SELECT sequence FROM records WHERE {where.text} {rest}", values  # noqa: S608 - no value is in it
    if is_of_few_threads(asked.filter):
        belongs = f"? = ({OWNER_OF.replace('?', 'each.thread')})"
        query = f"SELECT sequence FROM records AS each WHERE ({where.text}) AND {belongs} {rest}"  # noqa: S608
        return query, [*where.values, owner, *values[len(where.values) :]]
    # See `selection` for the CROSS JOIN. The opening's thread has another name: the filter's is the record's.
    query = f"""
        SELECT sequence FROM (SELECT thread AS begun FROM records WHERE ordinal = 1 AND {OWNER} = ?) AS opening
            CROSS JOIN records ON records.thread = opening.begun
        WHERE {where.text} {rest}
    """  # noqa: S608 - no value is in it
    return query, [owner, *values]


def _in_order(newest_first: bool) -> str:
    return f"ORDER BY sequence {'DESC' if newest_first else 'ASC'}"


def indexed(asked: Search, steps: list[str]) -> list[str]:
    """Give which of a filter's fields SQLite looks up, of the steps that it says it takes."""
    terms = ",".join(found[1] for step in steps if (found := _STEP.search(step)))
    columns = {"sequence" if name == "rowid" else name for name in re.findall(r"(\w+)(?=[=<>])", terms)}
    return sorted(fields_of(asked.filter) & {KIND if name == "kind" else name for name in columns})
