"""An instance in this process under bad requests, where everything can be seen: its tasks, its log, what it logs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from spl.kernel.outcome import Ending
from tests.api.served import TOKEN, serving
from tests.fuzz import http
from tests.fuzz.judge import require, understood
from tests.fuzz.requests import Case
from tests.kernel.instance import call, calls, turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, MutableMapping
    from pathlib import Path

    from spl.kernel.runs import Run
    from tests.api.served import Served
    from tests.fuzz.judge import Answer

_EACH = 100
"""Cases that one run has its doors knocked at by, before another takes its place: a run has few turns."""

_HEARTBEAT = 0.05
"""Seconds: an event stream whose reader has gone, and has sent more than it is read, is over by then."""

_REPLY = calls(
    call("record_note", text="x"), call("calculate", "c2", expression="1"), call("nothing", "c3"), text="x"
)
_WRITTEN_ALL_THE_SAME = {"ISOLATION_UNAVAILABLE", "PROVIDER_FAILED"}
"""Refusals that are themselves on record."""


@dataclass
class Attacked:
    """The instance, and what must stay as it is."""

    served: Served
    faults: list[str]
    logs: list[MutableMapping[str, Any]]
    member: str

    async def send(self, number: int, seed: int, figures: http.Figures) -> None:
        """Send so many cases to the three sockets, with every kind of bearer; raises `Wrong`."""
        rng = Random(seed)
        for done in range(0, number, _EACH):
            async with self.a_run() as (run, credential):
                await turn(run)
                target = self.target(credential)
                before = asyncio.all_tasks()
                await http.attack(
                    target,
                    min(_EACH, number - done),
                    Random(rng.random()),
                    figures,
                    after=self.watch(target, await self.served.here.store.count()),
                )
                await self.settle(before)

    def target(self, credential: str) -> http.Target:
        """Give the sockets, and whom to pretend to be there."""
        served, bearers = self.served, (TOKEN, TOKEN, self.member, "dead", "", credential)
        return http.Target(
            {
                "tcp": ("127.0.0.1", served.port),
                "operator": f"{served.folder}/operator.sock",
                "worker": f"{served.folder}/worker.sock",
            },
            {"tcp": bearers, "operator": bearers, "worker": (*[credential] * 3, "dead", "", TOKEN)},
        )

    @contextlib.asynccontextmanager
    async def a_run(self) -> AsyncIterator[tuple[Run, str]]:
        """Give a run that goes on meanwhile, and its credential."""
        run = await self.served.here.open()
        try:
            yield run, self.served.entrust(run)
        finally:
            await self.served.here.kernel.finish(run, Ending(clean=True))

    def watch(self, target: http.Target, count: int) -> Any:
        """Give what is to be called after each case: what was refused has written nothing, and nothing has failed."""
        before: set[asyncio.Task[Any]] | None = None

        async def after(case: Case, answers: list[Answer]) -> None:
            nonlocal before, count
            if before is None:
                before = asyncio.all_tasks()
            if case.end != "half":
                # Connections are accepted in their order: the one that was left is among the tasks by now.
                for address in target.sockets.values():
                    await http.exchange(address, Case("health", (http.HEALTH,)))
            await self.settle(before, case)
            written = await self.served.here.store.count() - count
            count += written
            accepted = any(answer.status < 300 or answer.code in _WRITTEN_ALL_THE_SAME for answer in answers)
            unheard = case.end != "half" or len(answers) < len(understood(case.sent))
            if written and not (accepted or unheard):
                store = self.served.here.store
                found = await store.select(since=count - written, limit=written)
                require(False, "what was refused was written", case.sent, answers, found)
            self.look(case.sent, answers)

        return after

    def look(self, *facts: object) -> None:
        """Require that no fault was logged; raises `Wrong`."""
        told = [str(each) for each in self.logs if each.get("exc_info")]
        faults, self.faults[:] = [*self.faults, *told], []
        self.logs.clear()
        require(not faults, "a fault of the daemon's own", *faults[:2], *facts)

    async def settle(self, tasks: set[asyncio.Task[Any]], *facts: object) -> None:
        """Wait until no other tasks are left than these; raises `Wrong`."""
        known = {*tasks, asyncio.current_task()}
        left: set[asyncio.Task[Any]] = set()
        try:
            async with asyncio.timeout(http.SECONDS):
                while left := asyncio.all_tasks() - known:
                    await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            require(False, "tasks that do not end", *map(str, left), *facts)


class _Kept(logging.Handler):
    """Keeps what is logged as an error, whoever logs it."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self.faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.faults.append(self.format(record))


@contextlib.asynccontextmanager
async def attacked(folder: Path) -> AsyncIterator[Attacked]:
    """Serve an instance whose every fault is seen."""
    faults: list[str] = []
    kept = _Kept(faults)
    logging.getLogger().addHandler(kept)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(str(context)))
    try:
        with capture_logs() as logs:
            async with serving(folder, *[_REPLY] * 5, heartbeat=_HEARTBEAT) as served:
                yield Attacked(served, faults, logs, await served.member("ned"))
    finally:
        logging.getLogger().removeHandler(kept)
