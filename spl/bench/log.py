"""The log by itself: one made long by its own appends, the rate of appends, and how long a thread's page takes."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import TYPE_CHECKING, Any, Final

from spl.home import Home
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATOR: Final = "did:sync:user:bench"
PAGED: Final = "th_bench_paged"
PAGE: Final = 100
"""Records of the thread whose page is read; they lie evenly over the log."""

_OF_A_RUN: Final = 20
_AT_ONCE: Final = 2000
_WRITERS: Final = 16
_EACH: Final = 50

_ANCHOR: Final[dict[str, Any]] = {
    "kind": "core.work.loop.v1",
    "goal": "Note what you see.",
    "actor": OPERATOR,
    "tier": "operator",
    "transport": "sandboxed",
    "started_at": "2020-01-01T00:00:00.000Z",
}
_OUTCOME: Final[dict[str, Any]] = {
    "kind": "core.work.loop_outcome.v1",
    "state": "done",
    "outcome": "completed",
    "spent_usd": 0.0,
    "ended_at": "2020-01-01T00:00:01.000Z",
}
_NOTE: Final[dict[str, Any]] = {"kind": "core.work.note.v1", "text": "What was seen, said in a few words."}


async def build(home: str, records: int) -> float:
    """Make a home whose log holds so many records, written by its own appends; gives how many seconds that took."""
    began = time.monotonic()
    store = await SqliteStore.open(Home.open(home, create=True).database)
    try:
        drafts = _drafts(records)
        while some := list(itertools.islice(drafts, _AT_ONCE)):
            await store.append(some)
    finally:
        await store.close()
    return time.monotonic() - began


def _drafts(records: int) -> Iterator[Draft]:
    """Give records as runs of days long ago leave them, and among them those of the thread that is paged."""
    every = records // PAGE
    for number in range(records):
        run, place = divmod(number, _OF_A_RUN)
        if number % every == every - 1:
            yield Draft(PAGED, OPERATOR, "KNOW", _NOTE)
        else:
            body = _ANCHOR if place == 0 else _OUTCOME if place == _OF_A_RUN - 2 else _NOTE
            yield Draft(f"th_bench_{run:024x}", OPERATOR, "KNOW", body)


async def append_rates(folder: str, rounds: int) -> list[list[float]]:
    """Give, of each round, how many records a second one writer appended and how many 16 did, each durable."""
    os.mkdir(folder, 0o700)
    store = await SqliteStore.open(f"{folder}/hub.db")
    try:
        return [[await _rate(store, 1), await _rate(store, _WRITERS)] for _ in range(rounds)]
    finally:
        await store.close()


async def _rate(store: SqliteStore, writers: int) -> float:
    async def write(writer: int) -> None:
        for _ in range(_EACH):
            await store.append([Draft(f"th_bench_{writer}", OPERATOR, "KNOW", _NOTE)])

    began = time.monotonic()
    await asyncio.gather(*map(write, range(writers)))
    return writers * _EACH / (time.monotonic() - began)


async def page_times(few: str, many: str, rounds: int) -> list[list[int]]:
    """Give, of each round, the nanoseconds of the page in the log of one home and in that of another."""
    stores = [await SqliteStore.open(Home.open(home, create=False).database) for home in (few, many)]
    try:
        # The first of each finds nothing in memory.
        return [[await _page(store) for store in stores] for _ in range(rounds + 1)][1:]
    finally:
        for store in stores:
            await store.close()


async def _page(store: SqliteStore) -> int:
    began = time.monotonic_ns()
    found = await store.select(thread=PAGED, limit=PAGE)
    took = time.monotonic_ns() - began
    if len(found) != PAGE:
        raise ValueError("a page that is not whole")
    return took
