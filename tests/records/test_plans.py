"""How SQLite goes about each query that the log is asked: by which indexes, and where it walks or sorts after all."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from spl.records import examination, formats, queries, restore
from spl.records.filter import Search, filter_of, sort_of
from spl.records.verification import log
from tests.claims import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS: Final = ROOT / "spl" / "records"


class Query(NamedTuple):
    """A query as it is sent, by the place in spl.records that its text stands in, and how SQLite must go about it."""

    place: str
    sql: str
    plan: str


def select(*given: str) -> str:
    """Give the query for records of what is given, of `thread`, `actor`, `kind` and `owner`."""
    named = [name if name in given else None for name in ("thread", "actor", "kind", "owner")]
    return queries.selection(*named, newest_first=False)[0]


def newest(*given: str) -> str:
    """Give that query with the newest first."""
    named = [name if name in given else None for name in ("thread", "actor", "kind", "owner")]
    return queries.selection(*named, newest_first=True)[0]


def walk(*given: str, newest_first: bool = False) -> str:
    """Give the query for an owner's records in a part of the log, of what is given, of `actor` and `kind`."""
    actor, kind = (name if name in given else None for name in ("actor", "kind"))
    return queries.walk(actor, kind, "x", newest_first=newest_first)[0]


def search(filter_: dict[str, Any], owner: str | None = None, **sort: int) -> str:
    """Give the query of a search."""
    return queries.search(Search(filter_of(filter_), sort_of(sort)), owner)[0]


ONE: Final = "sequence (rowid=?)"
FIRST: Final = "thread (thread=?)"
THREAD: Final = "thread (thread=? AND rowid>?)"
THREAD_KIND: Final = "thread_kind (thread=? AND kind=? AND rowid>?)"
KIND: Final = "kind (kind=? AND rowid>?)"
OWNERS: Final = "owner (<expr>=?)"
PART: Final = "sequence (rowid>? AND rowid<?)"
PART_OF_KIND: Final = "kind (kind=? AND rowid>? AND rowid<?)"

# A step is the index that is searched, and by what: `sequence` is the table itself, which stands in that order. `walk`
# goes through all that there is, and `sort` puts what was found in order: each only where nothing else is meant.
QUERIES: Final = (
    # The writer's.
    Query("queries.HEAD", queries.HEAD, f"clock (thread=? AND actor=?); {FIRST}"),
    Query("queries.AT_CLOCK", queries.AT_CLOCK, "clock (thread=? AND actor=? AND clock=?)"),
    Query("queries.insertion", queries.insertion(1), ""),
    Query("queries.insertion", queries.insertion(3), ""),
    # The API's and the kernel's.
    Query("queries.GET", queries.GET, "id (id=?)"),
    Query("queries.AT", queries.AT, ONE),
    Query("queries.COUNT", queries.COUNT, "sequence"),
    Query("queries.OWNER_OF", queries.OWNER_OF, FIRST),
    Query("queries.HAS_MANY", queries.HAS_MANY, OWNERS),
    Query("queries.UNFINISHED", queries.UNFINISHED, "kind (kind=?); thread_kind (thread=? AND kind=?)"),
    Query("queries._THREADS", queries.openings(None)[0], f"opening (sequence>?); {FIRST}; {FIRST}"),
    Query("queries._THREADS", queries.openings("x")[0], f"owner (<expr>=? AND rowid>?); {FIRST}; {FIRST}"),
    Query("queries.selection", select(), "sequence (rowid>?)"),
    Query("queries.selection", select("actor"), "actor (actor=? AND rowid>?)"),
    Query("queries.selection", select("kind"), KIND),
    Query("queries.selection", select("actor", "kind"), KIND),
    # The kernel's own actor has most of the log: its index is no way to a thread.
    Query("queries.selection", select("thread"), THREAD),
    Query("queries.selection", select("thread", "actor"), THREAD),
    Query("queries.selection", select("thread", "kind"), THREAD_KIND),
    Query("queries.selection", select("thread", "actor", "kind"), THREAD_KIND),
    Query("queries.selection", select("thread", "owner"), f"{THREAD}; {FIRST}"),
    Query("queries.selection", select("thread", "actor", "owner"), f"{THREAD}; {FIRST}"),
    Query("queries.selection", select("thread", "kind", "owner"), f"{THREAD_KIND}; {FIRST}"),
    Query("queries.selection", select("thread", "actor", "kind", "owner"), f"{THREAD_KIND}; {FIRST}"),
    # Sorted are the sequences of what an owner has above `since`: nothing of anyone else's is touched.
    Query("queries.selection", select("owner"), f"{ONE}; {OWNERS}; {THREAD}; sort"),
    Query("queries.selection", select("actor", "owner"), f"{ONE}; {OWNERS}; {THREAD}; sort"),
    Query("queries.selection", select("kind", "owner"), f"{ONE}; {OWNERS}; {THREAD_KIND}; sort"),
    Query("queries.selection", select("actor", "kind", "owner"), f"{ONE}; {OWNERS}; {THREAD_KIND}; sort"),
    Query("queries.selection", newest(), "sequence (rowid>?)"),
    Query("queries.selection", newest("actor"), "actor (actor=? AND rowid>?)"),
    Query("queries.selection", newest("kind"), KIND),
    Query("queries.selection", newest("thread"), THREAD),
    Query("queries.selection", newest("thread", "actor", "kind", "owner"), f"{THREAD_KIND}; {FIRST}"),
    Query("queries.selection", newest("owner"), f"{ONE}; {OWNERS}; {THREAD}; sort"),
    Query("queries.walk", walk(), f"{PART}; {FIRST}"),
    Query("queries.walk", walk("actor"), f"{PART}; {FIRST}"),
    Query("queries.walk", walk("kind"), f"{PART_OF_KIND}; {FIRST}"),
    Query("queries.walk", walk("actor", "kind"), f"{PART_OF_KIND}; {FIRST}"),
    Query("queries.walk", walk(newest_first=True), f"{PART}; {FIRST}"),
    Query("queries.walk", walk("actor", newest_first=True), f"{PART}; {FIRST}"),
    Query("queries.walk", walk("kind", newest_first=True), f"{PART_OF_KIND}; {FIRST}"),
    Query("queries.walk", walk("actor", "kind", newest_first=True), f"{PART_OF_KIND}; {FIRST}"),
    # A search goes as its filter lets it; in time it is bounded.
    Query("queries.search", search({"thread": "x"}), FIRST),
    Query("queries.search", search({"thread": "x"}, "x"), f"{FIRST}; {FIRST}"),
    Query("queries.search", search({"thread": "x"}, act=1), f"{FIRST}; sort"),
    Query("queries.search", search({"sequence": {"$gt": 5}}), "sequence (rowid>?)"),
    Query("queries.search", search({"body.x": 1}), "walk sequence"),
    Query("queries.search", search({"body.x": 1}, "x"), f"{OWNERS}; {FIRST}; sort"),
    # Of a whole log, at its opening only the newest of it, or at rest.
    Query("examination._NEWEST_ROWS", examination._NEWEST_ROWS, "walk sequence"),
    Query("examination._ALL_ROWS", examination._ALL_ROWS, "walk sequence"),
    Query("examination._ORDINALS", examination._ORDINALS, "walk thread"),
    Query("verification.log._SEQUENCES", log._SEQUENCES, "walk sequence"),
    Query("verification.log._ROWS", log._ROWS, "walk thread"),
    Query("verification.log._EXISTS", log._EXISTS, "id (id=?)"),
    Query("restore._NEWEST", restore._NEWEST, "walk sequence"),
    Query("restore._ROW", restore._ROW, ONE),
    Query("restore._ID_AT", restore._ID_AT, ONE),
    Query("queries.LAST_ORDINAL", queries.LAST_ORDINAL, FIRST),
    Query("formats._PARTS", formats._PARTS, "walk sqlite_schema"),
)

_INDEXES: Final = {
    "records": "sequence",
    "sqlite_autoindex_records_1": "id",
    "sqlite_autoindex_records_2": "clock",
}
_STEP: Final = re.compile(
    r"(SEARCH|SCAN) (\w+)(?: USING (?:COVERING )?(?:INDEX (\w+)|INTEGER PRIMARY KEY))?( \(.*\))?"
)


def plan(sql: str) -> str:
    """Give how SQLite goes about a query, in the words of the table above."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(formats.script())
        details = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?"))]
    return "; ".join(filter(None, map(_step, details)))


def _step(detail: str) -> str | None:
    if detail.startswith("USE TEMP B-TREE"):
        return "sort"
    # What is left out is where a part of the query begins, and what has been found already.
    if (found := _STEP.fullmatch(detail)) is None:
        return None
    way, table, index, terms = found.groups()
    name = index or (table if table == "sqlite_schema" else "records")
    return (
        f"{'walk ' if way == 'SCAN' else ''}{_INDEXES.get(name, name.removeprefix('records_'))}{terms or ''}"
    )


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.place}: {query.plan}")
def test_a_query_goes_along_the_indexes_that_it_is_meant_to(query: Query) -> None:
    assert plan(query.sql) == query.plan


def texts() -> Iterator[str]:
    """Give the place of each query's text in spl.records: its module and the name at the top that it belongs to."""
    for path in sorted(RECORDS.rglob("*.py")):
        module = ".".join(path.relative_to(RECORDS).with_suffix("").parts)
        for statement in ast.parse(path.read_text()).body:
            for text in _strings(statement):
                if re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|VALUES)\b", text):
                    yield f"{module}.{_name(statement)}"


def _strings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(child)


def _name(statement: ast.stmt) -> str:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return f"line {statement.lineno}"


def test_every_query_is_one_whose_plan_is_known() -> None:
    known = Counter(query.place for query in QUERIES)
    assert set(texts()) == set(known)
    assert not Counter(texts()) - known
