"""Logs for tests of what lies on the disk: written, and read again whole."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from spl.records.sqlite import SqliteStore
from tests.records.contract import draft

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from spl.records.record import Record


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    """Open a log for a while."""
    store = await SqliteStore.open(path)
    try:
        yield store
    finally:
        await store.close()


def write(path: Path, records: int, word: str = "text") -> None:
    """Append so many records to a log, on seven threads, and close it."""

    async def run() -> None:
        async with opened(path) as store:
            for at in range(0, records, 50):
                drafts = [
                    draft(f"{word} {n}", thread=f"th_{n % 7}") for n in range(at, min(at + 50, records))
                ]
                await store.append(drafts)

    asyncio.run(run())


def read(path: Path) -> list[Record]:
    """Give all records of a log, as a store that opens it does."""

    async def run() -> list[Record]:
        async with opened(path) as store:
            return await store.select(limit=100_000)

    return asyncio.run(run())
