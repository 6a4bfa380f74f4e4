"""The stream of what is no record: the engine's health, its workers' use of the host, and its log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from spl.api import events
from spl.api.endless import Endless
from spl.errors import SplError
from spl.kernel.principals import ADMIN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from spl.api.endless import Writer
    from spl.api.watching import Queue, Watching
    from spl.kernel.principals import Principal
    from spl.logs import Recent

    Json = dict[str, Any]

_LOOK_SECONDS: Final = 1.0
_FIRST_LINES: Final = 200
_RESTLESS: Final = frozenset({"uptime_secs"})
"""What of the health changes by itself, and is no reason to tell of it."""


class Engine:
    """What is told of the engine; for all streams together it is looked at once a second at most.

    `metrics` gives their text, and its content type, for what a request accepts.
    """

    def __init__(
        self,
        health: Callable[[], Awaitable[Json]],
        workers: Callable[[], list[Json]],
        log: Recent,
        metrics: Callable[[str], Awaitable[tuple[bytes, str]]],
    ) -> None:
        self.health = health
        self.log = log
        self.metrics = metrics
        self._workers = workers
        self._looking = asyncio.Lock()
        self._look_at = 0.0
        self._seen: tuple[Json, list[Json]] = ({}, [])

    async def look(self) -> tuple[Json, list[Json]]:
        """Give the health and the workers, as they were within the last second."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if loop.time() >= self._look_at:
                self._seen = await self.health(), self._workers()
                self._look_at = loop.time() + _LOOK_SECONDS
            return self._seen


class EngineStream(Endless):
    """The engine as it is, and then each change of it, as Server-Sent Events without an end.

    Health and workers are looked at once a second, and told where they differ from what was told last; a line of the
    log is told at once, the newest 200 at the start. A reader that is slow is told less often, and misses lines of
    which the daemon keeps no more; their `number` says so.
    """

    def __init__(
        self,
        watching: Watching,
        principal: Principal,
        judge: Callable[[], Principal],
        engine: Engine,
    ) -> None:
        super().__init__()
        self._watching = watching
        self._principal = principal
        self._judge = judge
        self._engine = engine
        self._log = engine.log
        self._number = 0
        self._told_health: Json | None = None
        self._told_workers: list[Json] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream to its end; raises, before anything is sent, what refuses it."""
        del scope
        with self._watching.held(self._principal) as queue:
            loop = asyncio.get_running_loop()

            def another() -> None:
                loop.call_soon_threadsafe(queue.woken.set)

            self._log.tell(another)
            try:
                async with self._begun(queue, receive, send) as writer:
                    await self._tell(queue, writer)
            finally:
                self._log.untell(another)

    async def _tell(self, queue: Queue, writer: Writer) -> None:
        loop = asyncio.get_running_loop()
        look_at = loop.time()
        try:
            while not writer.gone:
                queue.woken.clear()
                frames = self._lines(_FIRST_LINES if self._told_health is None else None)
                if loop.time() >= look_at:
                    frames = await self._changes() + frames
                    look_at = loop.time() + _LOOK_SECONDS
                if not frames and writer.silent_for(self._watching.heartbeat):
                    frames = events.alive()
                if frames:
                    self._judge().require(ADMIN)
                    await writer.send(frames)
                if self._watching.stopping:
                    await writer.send(events.shutdown())
                    return
                await writer.rest_until(look_at)
        except SplError as error:
            await writer.send(events.failed(error))

    async def _changes(self) -> bytes:
        """Give the events of what is not as it was told last."""
        found = []
        health, workers = await self._engine.look()
        lasting = {name: value for name, value in health.items() if name not in _RESTLESS}
        if lasting != self._told_health:
            self._told_health = lasting
            found.append(events.engine("health", health))
        if workers != self._told_workers:
            self._told_workers = workers
            found.append(events.engine("workers", {"workers": workers}))
        return b"".join(found)

    def _lines(self, most: int | None) -> bytes:
        lines = self._log.after(self._number, *(() if most is None else (most,)))
        if not lines:
            return b""
        self._number = lines[-1].number
        return b"".join(events.engine("log", {"number": line.number, "line": line.fields}) for line in lines)
