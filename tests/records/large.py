"""A log of many records, made fast, and how it answers: the work each query takes, and the time."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from contextlib import closing
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from spl.kernel.names import LOOP, OUTCOME
from spl.records import queries as asked
from spl.records.record import Draft, record_id
from spl.records.rows import COLUMNS, Checked
from spl.records.schema import open_writer
from spl.records.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

OPERATOR, MIA, NEW = "did:sync:user:op", "did:sync:user:mia", "did:sync:user:new"
OTHERS = [f"did:sync:user:m{number:02}" for number in range(50)]
ENGINE = "did:sync:system:engine"
NOTE = "core.work.note.v1"

OF_A_RUN = 20
"""Records, on a thread of their own."""
LONG = 10
"""One record in so many is on one long thread."""

PAGE = 20

Row = tuple[Any, ...]

_ANCHOR: dict[str, Any] = {
    "goal": "Note what you see.",
    "tier": "paid",
    "transport": "sandboxed",
    "profile": "worker",
    "model": "echo",
    "tools": ["calculate", "read_thread", "record_note"],
    "narrowed": [],
    "ceilings": {"max_turns": 16, "wall_clock_secs": 600, "token_budget": 200_000, "budget_usd": 1.0},
    "started_at": "2020-01-01T00:00:00Z",
}
_OUTCOME: dict[str, Any] = {
    "state": "done",
    "outcome": "completed",
    "summary": "It was noted.",
    "turns": 2,
    "spent_usd": 0.0,
    "tool_calls_ok": 1,
    "tool_calls_failed": 0,
    "ended_at": "2020-01-01T00:00:01Z",
}

_PIECE = 20_000


def owner_of(run: int) -> str:
    """Give whom a run is for: in ten runs four are the operator's, one is mia's, five are others'."""
    of_ten = run % 10
    if of_ten < 4:
        return OPERATOR
    return MIA if of_ten == 4 else OTHERS[run // 10 * 5 % len(OTHERS) + of_ten - 5]


def draft(thread: str, actor: str) -> Draft:
    """Give what a member might write."""
    return Draft(
        thread, actor, "KNOW", {"kind": "app.note.text.v1", "text": "What was seen, said in a few words."}
    )


@cache
def _checked(kind: str | None, actor: str) -> Checked:
    body: dict[str, Any] = {"kind": kind or "app.note.text.v1", "text": "What was seen, said in a few words."}
    if kind == LOOP:
        body |= {"actor": actor, **_ANCHOR}
    elif kind == OUTCOME:
        body |= _OUTCOME
    return Checked.of(Draft("th_any", actor, "KNOW", body))


def _rows(first: int, last: int) -> list[Row]:
    """Give the rows of these records, from 0."""
    return [_row(number) for number in range(first, last)]


def _row(number: int) -> Row:
    on_long, rest = number % LONG == 0, number - number // LONG - 1
    run, place = divmod(rest, OF_A_RUN)
    if on_long:
        thread, actor, kind, place = "th_long", MIA, None, number // LONG
    else:
        thread, actor = f"th_run_{run:024x}", ENGINE if place in (0, OF_A_RUN - 1) else owner_of(run)
        kind = LOOP if place == 0 else OUTCOME if place == OF_A_RUN - 1 else NOTE
    checked = _checked(kind, owner_of(run) if kind == LOOP else actor)
    checked = checked._replace(draft=replace(checked.draft, thread=thread, actor=actor))
    clock = place + 1
    draft = checked.draft
    id_ = record_id((), thread, actor, draft.act, checked.body, clock, draft.data_type)
    return (number + 1, *checked.row(id_, (), clock), clock)


def fill(path: Path, number: int, *, processes: int = 1) -> None:
    """Make a log of so many records, as appending would have left it; their ids are their own."""
    with closing(open_writer(str(path))) as connection:
        listed = connection.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        )
        indexes = dict(listed.fetchall())
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = {-min(number, 1 << 20)}"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        connection.execute("BEGIN")
        for name in indexes:
            connection.execute(f"DROP INDEX {name}")
        insert = f"INSERT INTO records ({COLUMNS}, ordinal) VALUES ({', '.join('?' * 12)})"
        for rows in _pieces(number, processes):
            connection.executemany(insert, rows)
        for sql in indexes.values():
            connection.execute(sql)
        connection.execute("COMMIT")


def _pieces(number: int, processes: int) -> Iterator[list[Row]]:
    spans = [(first, min(first + _PIECE, number)) for first in range(0, number, _PIECE)]
    if processes == 1:
        yield from (_rows(*span) for span in spans)
        return
    with get_context("fork").Pool(processes) as pool:
        yield from pool.imap(_rows_of, spans)


def _rows_of(span: tuple[int, int]) -> list[Row]:
    return _rows(*span)


# --- the work of each query ---


def queries(number: int) -> dict[str, tuple[str, list[Any]]]:
    """Give the queries of the API over a log of so many records, by what they are asked for, each with its values."""
    late, page = number * 9 // 10, PAGE

    def selection(
        since: int = 0, *, newest_first: bool = False, **named: str | None
    ) -> tuple[str, list[Any]]:
        given = [named.get(name) for name in ("thread", "actor", "kind", "owner")]
        query, values = asked.selection(*given, newest_first=newest_first)
        return query, [*values, since, page]

    def walk(since: int, kind: str | None = None, *, newest_first: bool = False) -> tuple[str, list[Any]]:
        query, values = asked.walk(None, kind, OPERATOR, newest_first=newest_first)
        return query, [*values, since, number, page]

    run = f"th_run_{number // LONG // OF_A_RUN:024x}"
    return {
        "the first page": selection(),
        "a late page": selection(late),
        "the newest": selection(newest_first=True),
        "a kind's first page": selection(kind=NOTE),
        "a kind's newest": selection(kind=OUTCOME, newest_first=True),
        "a kind of which there is none": selection(kind="no.such.kind.v1"),
        "an actor of whom there is nothing": selection(actor=NEW),
        "an actor on a run's thread": selection(thread=run, actor=ENGINE),
        "an actor's late page": selection(late, actor=ENGINE),
        "a run's thread": selection(thread=run),
        "a run's thread as its owner": selection(thread=run, owner=OPERATOR),
        "a long thread's first page": selection(thread="th_long"),
        "a long thread's late page": selection(late, thread="th_long"),
        "a run's anchor": selection(thread=run, kind=LOOP),
        "the first page of an owner of much": walk(0),
        "a late page of an owner of much": walk(late),
        "the runs of an owner of much": walk(0, LOOP),
        "the newest runs of an owner of much": walk(0, LOOP, newest_first=True),
        "whether an owner has much": (asked.HAS_MANY, [OPERATOR, PAGE]),
        "the threads": (asked.openings(None)[0], [0, page]),
        "an owner's threads": (asked.openings(OPERATOR)[0], [OPERATOR, 0, page]),
        "a thread's owner": (asked.OWNER_OF, ["th_long"]),
        "a record": (asked.GET, [bytes(32)]),
        "the count": (asked.COUNT, []),
    }


def steps(path: Path, query: str, values: list[Any]) -> int:
    """Give how many instructions of SQLite's machine a query takes, which is the same on any host."""
    taken = 0

    def count() -> None:
        nonlocal taken
        taken += 1

    with closing(sqlite3.connect(path)) as connection:
        connection.set_progress_handler(count, 1)
        connection.execute(query, values).fetchall()
    return taken


def plan(path: Path, query: str, values: list[Any]) -> str:
    """Give how SQLite goes about a query."""
    with closing(sqlite3.connect(path)) as connection:
        return "; ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values))


# --- the time it takes ---

_TIMES = 20
_WRITERS, _EACH = 16, 200


async def measure(path: Path) -> dict[str, float]:
    """Give what a store takes over its log, in milliseconds, by what is asked for: the median of so many times."""
    began = time.perf_counter()
    store = await SqliteStore.open(path)
    found = {"opening the log": 1000 * (time.perf_counter() - began)}
    number = await store.count()
    late, run = number * 9 // 10, f"th_run_{number // LONG // OF_A_RUN:024x}"
    record = (await store.select(since=late, limit=1))[0]
    asked: dict[str, Callable[[], Awaitable[object]]] = {
        "a record by its id": lambda: store.get(record.id),
        "the first page": store.select,
        "the last page": lambda: store.select(since=number - 100),
        "a run's thread": lambda: store.select(thread=run),
        "a page late on a long thread": lambda: store.select(thread="th_long", since=late),
        "the newest of a kind": lambda: store.select(kind=OUTCOME, newest_first=True),
        "the first page of a member with a tenth of all": lambda: store.select(owner=MIA),
        "its last page": lambda: store.select(owner=MIA, since=number - 100),
        "its runs": lambda: store.select(owner=MIA, kind=LOOP),
        "its newest runs": lambda: store.select(owner=MIA, kind=LOOP, newest_first=True),
        "a page of a member with a hundredth of all": lambda: store.select(owner=OTHERS[3], since=late),
        "a page of a member with nothing": lambda: store.select(owner=NEW),
        "the threads": store.threads,
        "a member's threads": lambda: store.threads(owner=MIA),
        "the count": store.count,
    }
    for name, ask in asked.items():
        taken = []
        for _ in range(_TIMES):
            began = time.perf_counter()
            await ask()
            taken.append(1000 * (time.perf_counter() - began))
        found[name] = statistics.median(taken)
    began = time.perf_counter()
    await store.unfinished(LOOP, OUTCOME)
    found["what was left unfinished, at the start"] = 1000 * (time.perf_counter() - began)

    async def write(thread: str) -> None:
        for _ in range(_EACH):
            await store.append([draft(thread, MIA)])

    began = time.perf_counter()
    await asyncio.gather(*(write(f"th_of_writer_{number}") for number in range(_WRITERS)))
    found[APPENDS] = _WRITERS * _EACH / (time.perf_counter() - began)
    await store.close()
    return found


APPENDS = f"records appended a second by {_WRITERS} writers"


def told(found: Mapping[int, Mapping[str, float]]) -> str:
    """Give the section of docs/soak.md, from what was measured over logs of so many records."""

    def figure(value: float) -> str:
        return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"

    rows = "".join(
        f"| {name} | {' | '.join(figure(figures[name]) for figures in found.values())} |\n"
        for name in next(iter(found.values()))
    )
    heads = " | ".join(f"{number:,} records" for number in found)
    return f"""
## A long log

What the store takes over logs of different length, in milliseconds where nothing else is said; pages of 100. In runs of
{OF_A_RUN} records each, four in ten are the operator's, one is a member's, five are {len(OTHERS)} others'; every tenth
record is on one long thread.

| | {heads} |
|---|{"---|" * len(found)}
{rows}"""
