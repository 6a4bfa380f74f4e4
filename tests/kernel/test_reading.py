from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from spl.errors import ActorNotCovered
from spl.kernel.names import CONFIG_THREAD, ENGINE, LOOP
from spl.kernel.reading import Reading
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MIA, NED = "did:sync:user:mia", "did:sync:user:ned"
NO_THREADS = ("th_none", "", "a\0b")


@asynccontextmanager
async def threads(folder: Path) -> AsyncIterator[SqliteStore]:
    """Give a log with a run and a thread of Mia's and of Ned's, on each of which both have written."""
    store = await SqliteStore.open(folder / "hub.db")
    try:
        for owner, name in ((MIA, "mia"), (NED, "ned")):
            await store.append([Draft(f"th_run_{name}", ENGINE, "INTEND", {"kind": LOOP, "actor": owner})])
            await store.append([Draft(f"th_{name}", owner, "KNOW", {"kind": "my.own.note.v1"})])
        for thread in ("th_run_mia", "th_mia", "th_run_ned", "th_ned"):
            await store.append([Draft(thread, actor, "KNOW", {"x": 1}) for actor in (MIA, NED)])
        await store.append([Draft(CONFIG_THREAD, ENGINE, "LEARN", {"x": 1})])
        yield store
    finally:
        await store.close()


def test_a_member_reads_the_threads_that_belong_to_it_and_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with threads(tmp_path) as store:
            reading = Reading(store, MIA, everything=False)
            for thread in ("th_run_mia", "th_mia"):
                assert await reading.may_read(thread)
            for thread in ("th_run_ned", "th_ned", CONFIG_THREAD, *NO_THREADS):
                assert not await reading.may_read(thread)
            assert [row.thread for row in await store.threads(owner=MIA)] == ["th_run_mia", "th_mia"]

    asyncio.run(run())


@pytest.mark.parametrize("body", [{}, {"actor": MIA}, {"kind": "my.work.loop.v1", "actor": MIA}])
def test_a_thread_is_not_made_ones_own_by_writing_on_it(tmp_path: Path, body: dict[str, str]) -> None:
    async def run() -> None:
        async with threads(tmp_path) as store:
            await store.append([Draft("th_ned", MIA, "INTEND", dict(body))])
            await store.append([Draft("th_new", NED, "INTEND", dict(body))])
            reading = Reading(store, MIA, everything=False)
            assert [await reading.may_read(thread) for thread in ("th_ned", "th_new")] == [False, False]

    asyncio.run(run())


def test_the_operator_reads_and_writes_every_thread(tmp_path: Path) -> None:
    async def run() -> None:
        async with threads(tmp_path) as store:
            reading = Reading(store, "did:sync:user:op", everything=True)
            for thread in ("th_run_mia", "th_ned", CONFIG_THREAD, *NO_THREADS):
                assert await reading.may_read(thread)
                await reading.refuse_write(thread)

    asyncio.run(run())


def test_nobody_begins_a_thread_that_passes_for_the_kernels(tmp_path: Path) -> None:
    async def run() -> None:
        async with threads(tmp_path) as store:
            for reading in (
                Reading(store, "did:sync:user:op", everything=True),
                Reading(store, MIA, everything=False),
            ):
                for thread in ("th_run_new", "TH_RUN_new", "th_engine_new"):
                    with pytest.raises(ActorNotCovered):
                        await reading.refuse_write(thread)

    asyncio.run(run())


def test_a_member_writes_to_threads_of_its_own_and_to_new_ones(tmp_path: Path) -> None:
    async def run() -> None:
        async with threads(tmp_path) as store:
            reading = Reading(store, MIA, everything=False)
            for thread in ("th_run_mia", "th_mia", "th_new", "th_runner", "th_engine"):
                await reading.refuse_write(thread)
            for thread in ("th_run_ned", "th_ned", CONFIG_THREAD):
                with pytest.raises(ActorNotCovered, match="does not belong"):
                    await reading.refuse_write(thread)

    asyncio.run(run())


@pytest.mark.claim("K5")
@pytest.mark.parametrize(
    "thread",
    ["th_engine_principals", "th_engine_new", "th_engine_", "th_run_1", "TH_RUN_1", "Th_Engine_config"],
)
def test_no_member_begins_a_thread_that_looks_like_the_engines_or_a_runs(tmp_path: Path, thread: str) -> None:
    async def run() -> None:
        async with threads(tmp_path) as store:
            with pytest.raises(ActorNotCovered, match="cannot be begun"):
                await Reading(store, MIA, everything=False).refuse_write(thread)

    asyncio.run(run())


def test_a_members_run_is_given_the_records_of_its_own_threads_and_of_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with threads(tmp_path) as store:
            reader = Reading(store, MIA, everything=False)
            for thread in ("th_run_mia", "th_mia"):
                records = await store.select(thread=thread)
                assert await reader.read(thread, 0, 100) == records
                assert await reader.read(thread, records[0].sequence, 1) == records[1:2]
            for thread in ("th_run_ned", "th_ned", CONFIG_THREAD, *NO_THREADS):
                assert await reader.read(thread, 0, 100) == []

    asyncio.run(run())


def test_the_operators_run_is_given_the_records_of_every_thread(tmp_path: Path) -> None:
    async def run() -> None:
        async with threads(tmp_path) as store:
            reader = Reading(store, "did:sync:user:op", everything=True)
            records = await store.select(thread="th_run_mia")
            assert await reader.read("th_run_mia", 0, 100) == records
            assert await reader.read("th_none", 0, 100) == []

    asyncio.run(run())


def test_a_run_is_given_fewer_records_where_they_are_large_and_never_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spl.kernel.reading._READ_BYTES", 2500)

    async def run() -> None:
        async with threads(tmp_path) as store:
            large = [Draft("th_large", MIA, "KNOW", {"x": "x" * size}) for size in (1000, 1000, 1000, 9000)]
            written = [each.record for each in await store.append(large)]
            for everything in (False, True):
                reader = Reading(store, MIA, everything=everything)
                assert await reader.read("th_large", 0, 100) == written[:3]
                assert await reader.read("th_large", written[2].sequence, 100) == written[3:]

    asyncio.run(run())
