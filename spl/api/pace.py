"""The pace at which requests begin, however many are there: what is written down for a run waits for few of them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

AT_ONCE: Final = 2
"""Requests that begin in one turn of the event loop. A thousand clients may all ask at once, and a verdict, which takes
a dozen turns, would wait a dozen times for all of them."""


class Pace:
    """Lets a few requests begin in each turn of the event loop, in the order in which they have come."""

    def __init__(self) -> None:
        self._left = AT_ONCE
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def begin(self) -> None:
        """Wait until a request may begin."""
        loop = asyncio.get_running_loop()
        if self._left == AT_ONCE:
            loop.call_soon(self._turn)
        if self._left:
            self._left -= 1
            return
        waiting = loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _turn(self) -> None:
        self._left = AT_ONCE
        while self._left and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                self._left -= 1
        if self._left < AT_ONCE:
            asyncio.get_running_loop().call_soon(self._turn)
