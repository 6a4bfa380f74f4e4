"""Turns: what is long and asked for by members is done one piece after another, and runs are judged in between."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


_MOST_REST: Final = 0.1
"""Seconds; what takes longer than that waits for the log, and keeps nobody waiting but those for whom it is."""


class Turns:
    """One turn at a time for all members, and no more than one waiting of each: whoever asks more often waits longer.

    Made all at once, a dozen pages of a megabyte would keep every other's work on the event loop waiting for all of
    them. With one at a time, and a rest after each, that has half of the loop, and one of the log's two readers.
    """

    def __init__(self) -> None:
        self._all = asyncio.Lock()
        self._each: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, member: str | None) -> AsyncIterator[None]:
        """Wait for a member's turn and hold it; None is the operator, who waits for nobody."""
        if member is None:
            yield
            return
        loop = asyncio.get_running_loop()
        async with self._each.setdefault(member, asyncio.Lock()):
            await self._all.acquire()
            began = loop.time()
            try:
                yield
            finally:
                # The next begins when as long has been left to all others as this one took.
                loop.call_later(min(loop.time() - began, _MOST_REST), self._all.release)
