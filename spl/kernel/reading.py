"""What an actor may read and where it may write: on the threads that belong to it; the operator everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spl.errors import ActorNotCovered

if TYPE_CHECKING:
    from spl.records.record import Record
    from spl.records.store import Store

_READ_BYTES = 2 << 20
_RESERVED = ("th_engine_", "th_run_")


class Reading:
    """One actor's reach among the threads; `everything` is for the operator."""

    def __init__(self, store: Store, actor: str, *, everything: bool) -> None:
        self._store = store
        self._actor = actor
        self._everything = everything

    async def may_read(self, thread: str) -> bool:
        """Tell whether the actor may read a thread; one that nobody has begun is nobody's but the operator's."""
        return self._everything or await self._store.owner(thread) == self._actor

    async def read(self, thread: str, since: int, limit: int) -> list[Record]:
        """Give at most `limit` records of a thread above a sequence; none where the actor may not read.

        Fewer, but never none, where their bodies are large: a tool shows little of that anyway.
        """
        owner = None if self._everything else self._actor
        return await self._store.select(
            thread=thread, owner=owner, since=since, limit=limit, most_bytes=_READ_BYTES
        )

    async def refuse_write(self, thread: str) -> None:
        """Refuse a thread the actor may not write to; raises `ActorNotCovered`.

        It may write to its own and begin new ones, but none that would pass for the engine's or a run's by its name.
        """
        reserved = thread.lower().startswith(_RESERVED)
        if self._everything and not reserved:
            return
        owner = await self._store.owner(thread)
        if owner is None and reserved:
            # Whoever began it would own it: the operator too, who may write it for another.
            raise ActorNotCovered(
                f"the thread {thread!r} cannot be begun by {self._actor}: such names are the kernel's to give"
            )
        if self._everything:
            return
        if owner not in (None, self._actor):
            raise ActorNotCovered(f"the thread {thread!r} does not belong to {self._actor}")
