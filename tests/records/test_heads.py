from __future__ import annotations

import asyncio
import os
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from spl.errors import IngestFailed, SplError
from spl.records import heads, writer
from spl.records.examination import examine
from tests.records.contract import draft
from tests.records.logs import opened

if TYPE_CHECKING:
    from pathlib import Path

    from spl.records.record import Draft
    from spl.records.store import Store

BEN = "did:sync:user:ben"
SECONDS = 20
"""How long what is waited for here may take."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


async def places(store: Store) -> list[tuple[int, str, int]]:
    """Give where each record is: its sequence, its thread and its clock."""
    return [(record.sequence, record.thread, record.clock) for record in await store.select(limit=10_000)]


def require_whole(path: Path, records: int) -> None:
    """See that a log holds so many records, each counted rightly on its thread."""
    assert examine(os.fspath(path), "the log") == records


def test_records_follow_those_of_another_program_that_has_written_meanwhile(path: Path) -> None:
    async def run() -> None:
        async with opened(path) as one, opened(path) as other:
            for store in (one, other, one, one, other, one):
                results = await asyncio.gather(
                    store.append([draft(), draft(actor=BEN)]), store.append([draft()])
                )
                assert all(appended.created for result in results for appended in result)
            assert [record.clock for record in await one.select(actor=BEN)] == [1, 2, 3, 4, 5, 6]
            assert [record.clock for record in await one.select(actor=draft().actor)] == [*range(1, 13)]
            assert [record.sequence for record in await one.select()] == [*range(1, 19)]

    asyncio.run(run())
    require_whole(path, 18)


def test_no_append_is_refused_for_what_another_program_writes_between_it_and_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with opened(path) as one, opened(path) as other:
            alone = writer.Writer._write_alone

            def after_another(self: writer.Writer, append: writer.Append) -> Any:
                if self is one._writer:
                    asyncio.run_coroutine_threadsafe(other.append([draft(actor=BEN)]), loop).result(SECONDS)
                return alone(self, append)

            await one.append([draft()])
            await other.append([draft()])
            monkeypatch.setattr(writer.Writer, "_write_alone", after_another)
            await asyncio.gather(*(one.append([draft(), draft(thread="th_2")]) for _ in range(3)))

    asyncio.run(run())
    require_whole(path, 11)


def test_an_append_that_is_refused_gives_its_places_to_those_it_is_written_with(path: Path) -> None:
    async def run() -> None:
        async with opened(path) as store:
            await store.append([draft(clock=7)])
            refused, *_ = await asyncio.gather(
                store.append([draft(), draft(thread="th_2"), draft(actor=BEN), draft(clock=1)]),
                store.append([draft(), draft(thread="th_2")]),
                store.append([draft(actor=BEN)]),
                return_exceptions=True,
            )
            assert isinstance(refused, IngestFailed)
            assert await places(store) == [(1, "th_1", 7), (2, "th_1", 8), (3, "th_2", 1), (4, "th_1", 1)]

    asyncio.run(run())
    require_whole(path, 4)


def test_appends_written_together_are_held_against_each_other(path: Path) -> None:
    async def run() -> None:
        async with opened(path) as store:
            first, again, other, below = await asyncio.gather(
                *(
                    store.append([draft(text, clock=clock)])
                    for text, clock in (("a", 5), ("a", 5), ("b", 5), ("a", 4))
                ),
                return_exceptions=True,
            )
            assert isinstance(first, list)
            assert isinstance(again, list)
            assert (first[0].created, again[0].created) == (True, False)
            assert first[0].record == again[0].record
            assert "DuplicateClock" in str(other)
            assert "ClockNotRising" in str(below)

    asyncio.run(run())
    require_whole(path, 1)


def test_clocks_go_on_where_more_are_at_work_than_are_kept_in_mind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "_KEPT", 3)

    async def run() -> None:
        async with opened(path) as store:
            for _ in range(3):
                await asyncio.gather(*(store.append([draft(thread=f"th_{n}")]) for n in range(5)))
                await store.append([draft(thread="th_0")])
            assert [record.clock for record in await store.select(thread="th_0")] == [1, 2, 3, 4, 5, 6]
            assert [record.clock for record in await store.select(thread="th_4")] == [1, 2, 3]
            assert len(store._writer._heads._clocks) <= 3

    asyncio.run(run())
    require_whole(path, 18)


ANY_DRAFT = some.builds(
    draft,
    some.sampled_from(["a", "b", "x" * 20_000]),
    thread=some.sampled_from(["th_1", "th_2"]),
    actor=some.sampled_from([BEN, draft().actor]),
    clock=some.none() | some.integers(0, 6),
)


class Expected:
    """A log as its documentation has it, in a dict: what each append must be answered."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str, int], Draft] = {}
        self.written: list[tuple[int, str, int]] = []

    def append(self, drafts: list[Draft]) -> list[tuple[int, bool]] | None:
        held, written, answer = dict(self.held), list(self.written), []
        for each in drafts:
            clocks = [clock for *place, clock in held if place == [each.thread, each.actor]]
            clock = max(clocks, default=0) + 1 if each.clock is None else each.clock
            stands = held.get((each.thread, each.actor, clock))
            if stands is None and clock <= max(clocks, default=-1):
                return None
            if (stands is not None and stands.body != each.body) or len(each.body["text"]) > 10_000:
                return None
            if stands is None:
                held[each.thread, each.actor, clock] = each
                written.append((len(written) + 1, each.thread, clock))
            answer.append((clock, stands is None))
        self.held, self.written = held, written
        return answer


@settings(max_examples=60, deadline=None)
@given(
    groups=some.lists(
        some.lists(some.lists(ANY_DRAFT, min_size=1, max_size=4), min_size=1, max_size=6), max_size=5
    )
)
def test_whatever_is_appended_together_is_answered_as_if_each_came_by_itself(
    groups: list[list[list[Draft]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "hub.db"
    expected = Expected()

    def answer(result: Any) -> list[tuple[int, bool]] | None:
        if isinstance(result, SplError):
            return None
        return [(appended.record.clock, appended.created) for appended in result]

    async def run() -> None:
        async with opened(path) as store:
            store._writer_connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
            for group in groups:
                results = await asyncio.gather(*map(store.append, group), return_exceptions=True)
                assert [*map(answer, results)] == [*map(expected.append, group)]
            assert await places(store) == expected.written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_AT_ONCE", 3)
        asyncio.run(run())
    require_whole(path, len(expected.written))
