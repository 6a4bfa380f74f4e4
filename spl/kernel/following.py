"""A thread of the log folded into what is in force: all that stands on it, then each record as it becomes durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.records.record import Record
    from spl.records.store import Store

_PAGE = 1000


async def follow(store: Store, thread: str, take: Callable[[Record], None]) -> None:
    """Give `take` every record of a thread once, in order: those there are before this returns, the rest as they come.

    A record is taken before the append that wrote it returns to its writer.
    """
    newest, reading = 0, True
    # What is told of while the log is read waits until it has been.
    early: list[Record] = []

    def tell(record: Record) -> None:
        nonlocal newest
        if record.thread != thread:
            return
        if reading:
            early.append(record)
        elif record.sequence > newest:
            newest = record.sequence
            take(record)

    store.subscribe(tell)
    while page := await store.select(thread=thread, since=newest, limit=_PAGE):
        for record in page:
            take(record)
        newest = page[-1].sequence
    reading = False
    for record in early:
        tell(record)
