from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from spl.kernel.names import CONFIG_THREAD
from spl.records.record import Draft
from tests.kernel.instance import MEMBER, OPERATOR, TRANSPORT, instance

if TYPE_CHECKING:
    from pathlib import Path


def test_a_members_run_reads_its_own_threads_and_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            first, second = await here.open(), await here.open()
            strangers = await here.open(actor="did:sync:user:ned")
            await here.configure(TRANSPORT, "in_process")
            # A thread on which the member has written is not a run of the member's.
            await here.store.append([Draft("th_shared", MEMBER, "KNOW", {"x": 1})])
            for thread in (first.terms.thread, second.terms.thread):
                assert [record.thread for record in await first.reader.read(thread, 0, 100) or ()] == [
                    thread
                ] * 2
            for thread in (strangers.terms.thread, CONFIG_THREAD, "th_shared", "th_none", "", "a\0b"):
                assert await first.reader.read(thread, 0, 100) is None

    asyncio.run(run())


def test_the_operators_run_reads_every_thread(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            other = await here.open()
            own = await here.open(actor=OPERATOR)
            records = await own.reader.read(other.terms.thread, 0, 100)
            assert records is not None
            assert len(records) == 2
            assert await own.reader.read(other.terms.thread, records[0].sequence, 100) == records[1:]
            assert await own.reader.read("th_none", 0, 100) == []

    asyncio.run(run())


@pytest.mark.parametrize("body", [{}, {"actor": MEMBER}, {"kind": "my.work.loop.v1", "actor": MEMBER}])
def test_a_thread_is_not_made_ones_own_by_writing_on_it(tmp_path: Path, body: dict[str, str]) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open()
            await here.store.append([Draft("th_x", MEMBER, "INTEND", dict(body))])
            assert await opened.reader.read("th_x", 0, 100) is None

    asyncio.run(run())
