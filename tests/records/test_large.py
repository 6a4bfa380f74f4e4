"""That no query takes longer for a log being long, as far as SQLite's own instructions tell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import QueryExceeded, StoreUnavailable
from spl.kernel.names import LOOP
from spl.records import queries, sqlite
from spl.records.filter import Search, filter_of
from spl.records.record import record_id
from spl.records.sqlite import SqliteStore
from tests.records import large

if TYPE_CHECKING:
    from pathlib import Path

    from spl.records.record import Record

SMALL, LARGE = 10_000, 100_000


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Give a log, and one ten times as long."""
    folder = tmp_path_factory.mktemp("large")
    small, long = folder / "small.db", folder / "large.db"
    large.fill(small, SMALL)
    large.fill(long, LARGE)
    return small, long


def test_no_query_takes_more_work_in_a_log_of_ten_times_the_records(logs: tuple[Path, Path]) -> None:
    small, long = logs
    little, much = large.queries(SMALL), large.queries(LARGE)
    for name in little:
        work, more = large.steps(small, *little[name]), large.steps(long, *much[name])
        assert 0 < more <= 1.2 * work + 10, f"{name}: {work} instructions, and {more}"


def test_no_query_scans_a_log_or_sorts_what_it_finds(logs: tuple[Path, Path]) -> None:
    _, long = logs
    for name, (query, values) in large.queries(LARGE).items():
        found = large.plan(long, query, values)
        assert "SCAN" not in found, f"{name}: {found}"
        assert "TEMP B-TREE" not in found, f"{name}: {found}"


def test_a_search_along_an_index_takes_no_more_work_in_a_log_of_ten_times_the_records(
    logs: tuple[Path, Path],
) -> None:
    def work(log: Path, asked: dict[str, Any], owner: str | None) -> int:
        query, values = queries.search(Search(filter_of(asked), (), large.PAGE), owner)
        return large.steps(log, query, values)

    run = f"th_run_{SMALL // large.LONG // large.OF_A_RUN:024x}"
    for asked in (
        {"thread": run, "body.text": {"$like": "%"}},
        {"thread": run, "body.kind": LOOP},
        {"body.kind": large.NOTE},
        {"sequence": {"$gt": SMALL // 2}},
        {"body.text": {"$exists": True}},
    ):
        for owner in (None, large.OPERATOR) if "thread" in asked else (None,):
            little, much = work(logs[0], asked, owner), work(logs[1], asked, owner)
            assert 0 < much <= 1.2 * little + 10, f"{asked}: {little} instructions, and {much}"


def test_a_search_of_a_whole_log_is_broken_off_when_its_time_is_over_and_others_read_meanwhile(
    logs: tuple[Path, Path],
) -> None:
    async def search() -> None:
        store = await SqliteStore.open(logs[1])
        try:
            slow = Search(filter_of({"$not": {f"body.k{n}": {"$ne": 1} for n in range(98)}}))
            with pytest.raises(QueryExceeded, match=r"takes over 0\.05 seconds"):
                await store.search(slow, seconds=0.05)
            searching = asyncio.ensure_future(store.search(slow, seconds=600))
            assert len(await store.select()) == 100
            assert not searching.done()
            # No search keeps a store from its end either.
            await store.close()
            with pytest.raises(StoreUnavailable):
                await searching
        finally:
            await store.close()

    asyncio.run(search())


def test_an_owner_of_much_is_given_the_same_pages_as_one_of_little(
    logs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pages(owner: str, named: dict[str, Any]) -> list[tuple[int, ...]]:
        store = await SqliteStore.open(logs[1])
        try:
            return [
                tuple(
                    record.sequence
                    for record in await store.select(
                        owner=owner,
                        since=since,
                        limit=30,
                        newest_first=newest_first,
                        most_bytes=most_bytes,
                        **named,
                    )
                )
                for newest_first in (False, True)
                for since in (0, 1, LARGE // 2, LARGE - 40, LARGE)
                for most_bytes in (None, 500)
            ]
        finally:
            await store.close()

    asked: list[dict[str, str]] = [
        {},
        {"kind": LOOP},
        {"actor": large.MIA},
        {"kind": large.NOTE},
        {"kind": "no.such"},
    ]
    for owner in (large.OPERATOR, large.MIA, large.OTHERS[3], large.NEW):
        for named in asked:
            found = []
            for many, walked in ((1 << 30, 0), (0, sqlite._WALKED), (0, 50), (2, 50)):
                monkeypatch.setattr(sqlite, "_MANY_THREADS", many)
                monkeypatch.setattr(sqlite, "_WALKED", walked)
                found.append(asyncio.run(pages(owner, named)))
            assert found[0] == found[1] == found[2] == found[3]
            assert named or any(found[0]) == (owner != large.NEW)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("kind", [None, LOOP])
@pytest.mark.parametrize("owner", [large.OPERATOR, large.MIA])
def test_a_page_of_an_owner_takes_no_more_work_in_a_log_of_ten_times_the_records(
    logs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, owner: str, kind: str | None, newest_first: bool
) -> None:
    monkeypatch.setattr(sqlite, "_MANY_THREADS", 1)
    # Of mia's records there are fewer than a page in the first part that is walked.
    monkeypatch.setattr(sqlite, "_WALKED", 20)

    async def work(log: Path) -> int:
        store = await SqliteStore.open(log)
        taken = 0

        def count() -> None:
            nonlocal taken
            taken += 1

        try:
            for connection in store._reader_connections:
                connection.set_progress_handler(count, 1)
            found = await store.select(owner=owner, kind=kind, limit=4, newest_first=newest_first)
            assert len(found) == 4
            return taken
        finally:
            await store.close()

    little, much = (asyncio.run(work(log)) for log in logs)
    assert 0 < much <= 1.2 * little + 10, f"{little} instructions, and {much}"


def test_such_a_log_is_one_that_was_appended_to(logs: tuple[Path, Path]) -> None:
    async def read() -> list[Record]:
        store = await SqliteStore.open(logs[0])
        try:
            assert await store.count() == SMALL
            records = await store.select(limit=SMALL)
            # Of what was made as rows, and of what is appended to it, the store makes no difference.
            [(record, created)] = await store.append([large.draft("th_long", large.MIA)])
            assert created
            assert (record.clock, record.sequence) == (SMALL // large.LONG + 1, SMALL + 1)
            return records
        finally:
            await store.close()

    for each in asyncio.run(read()):
        made = record_id(
            each.parents, each.thread, each.actor, each.act, each.body, each.clock, each.data_type
        )
        assert each.id == made
