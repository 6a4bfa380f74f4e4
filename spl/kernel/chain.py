"""A run's records as a chain: each names the one before it as its parent, and the outcome closes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from spl.errors import InvalidBody, RunFinished
from spl.kernel.names import ENGINE
from spl.records.canonical import canonical
from spl.records.record import MAX_BODY_DEPTH, Draft, record_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spl.records.record import Record
    from spl.records.store import Store

_DATA_TYPE = "SCALAR"


class Entry(NamedTuple):
    """One record to come: its act, and its body, which may be made from the ids of those before it in the batch."""

    act: str
    body: dict[str, Any] | Callable[[Sequence[str]], dict[str, Any]]


class Chain:
    """The one way a run's records are written.

    The kernel alone writes on a run's thread as the engine, so it knows the next clock, and with it each id, before
    the log does: a call and the verdict that names it go into one durable batch.
    """

    def __init__(self, store: Store, thread: str) -> None:
        self._store = store
        self._thread = thread
        self._lock = asyncio.Lock()
        self._clock = 0
        self._head: str | None = None
        self._closed = False

    async def append(
        self,
        *entries: Entry,
        actor: str = ENGINE,
        close: bool = False,
        then: Callable[[], None] | None = None,
    ) -> list[Record]:
        """Write entries, all or none; they are durable when this returns. `close` lets none follow.

        A caller that is cancelled does not take its records back, nor leave the chain behind them: it goes once they
        are durable. `then` is called at that moment, cancelled or not and before anything else is written: what
        counts records counts there. Raises `RunFinished` on a closed chain, and what the store raises.
        """
        writing = asyncio.ensure_future(self._append(entries, actor, close=close, then=then))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait((writing,))
            # Asked for here, though its caller is gone: it would be logged as a fault that nobody saw.
            writing.exception()
            raise

    async def _append(
        self, entries: Sequence[Entry], actor: str, *, close: bool, then: Callable[[], None] | None
    ) -> list[Record]:
        async with self._lock:
            if self._closed:
                raise RunFinished(f"the run on {self._thread} has ended")
            drafts = self._drafts(entries) if actor == ENGINE else self._foreign(entries, actor)
            records = [each.record for each in await self._store.append(drafts)]
            self._head = records[-1].id
            self._clock += len(records) if actor == ENGINE else 0
            self._closed = close
            if then is not None:
                then()
            return records

    def _drafts(self, entries: Sequence[Entry]) -> list[Draft]:
        drafts: list[Draft] = []
        ids: list[str] = []
        for clock, (act, said) in enumerate(entries, self._clock + 1):
            body = said(ids) if callable(said) else said
            parents, form = (ids[-1],) if ids else self._parents(), _form(body)
            drafts.append(Draft(self._thread, ENGINE, act, body, parents, clock, _DATA_TYPE, canonical=form))
            if len(drafts) < len(entries):
                # What follows names it. The last one's is for the log alone to reckon.
                ids.append(record_id(parents, self._thread, ENGINE, act, form or body, clock, _DATA_TYPE))
        return drafts

    def _foreign(self, entries: Sequence[Entry], actor: str) -> list[Draft]:
        """Give the draft of a run's own words: its actor may write elsewhere too, so the log gives the clock."""
        act, said = entries[0]
        return [Draft(self._thread, actor, act, said([]) if callable(said) else said, self._parents())]

    def _parents(self) -> tuple[str, ...]:
        return () if self._head is None else (self._head,)


def _form(body: dict[str, Any]) -> bytes | None:
    """Give a body in canonical form; None where it is nested too deep, of which the log says why.

    Raises `InvalidBody` where it has no such form at all.
    """
    try:
        return canonical(body, max_depth=MAX_BODY_DEPTH)
    except InvalidBody:
        canonical(body)
        return None
