"""What a run may read: its own thread, and others of the same actor's runs; the operator's runs read everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spl.kernel.names import LOOP

if TYPE_CHECKING:
    from spl.records.record import Record
    from spl.records.store import Store


class RunReader:
    """Reads threads for one run's actor."""

    def __init__(self, store: Store, actor: str, *, everything: bool) -> None:
        self._store = store
        self._actor = actor
        self._everything = everything

    async def read(self, thread: str, since: int, limit: int) -> list[Record] | None:
        """Give at most `limit` records of a thread above a sequence, or None where the actor may not read."""
        if not self._everything and not await self._own(thread):
            return None
        return await self._store.select(thread=thread, since=since, limit=limit)

    async def _own(self, thread: str) -> bool:
        anchors = await self._store.select(thread=thread, kind=LOOP, limit=1)
        return bool(anchors) and anchors[0].body.get("actor") == self._actor
