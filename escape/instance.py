"""A real daemon in this process, whose workers' image is given, and members whose runs are what is tried."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from escape.attempt import REPORT, STAY
from escape.judge import told_end
from spl.client import Client, segment
from spl.daemon import assemble
from spl.errors import EscapeUnfinished, RunFinished
from spl.settings import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from bwrap import host as hosts
    from bwrap.sealed import Sealed

Json = dict[str, Any]

VERIFY_GOAL: Final = (
    "Record a note whose text is exactly: transport-check . "
    "Use the record_note tool with only the text argument. Then stop."
)

_OUTCOME, _ISOLATION = "core.work.loop_outcome.v1", "core.work.isolation.v1"
_LOOK_SECONDS: Final = 0.02
_RUN_SECONDS: Final = 60.0
_SETTINGS: Final = {"port": 0, "run_grace_seconds": 0.5, "probe_seconds": 30.0, "admission_capacity": 8}


@dataclass
class Finished:
    """A run that is over: its row, its receipt, what its worker told, and how that ended."""

    row: Json
    receipt: Json
    answers: dict[str, list[str]] = field(default_factory=dict)
    exit: str = ""


class Instance:
    """One daemon and those it serves: its operator, by their socket, and members that are added as they are needed."""

    def __init__(self, home: str) -> None:
        self._operator = Client(f"{home}/run/spl.sock")
        self._port = 0
        self._members = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def serving(
        cls, home: str, *, image: Callable[[hosts.Python], Sealed] | None = None
    ) -> AsyncIterator[Instance]:
        """Serve in a home that is made, until the context ends; without an `image`, with the installed worker's."""
        async with contextlib.AsyncExitStack() as stack:
            settings = load({"home": home, **_SETTINGS}, {})
            chosen: dict[str, Any] = {} if image is None else {"image": image}
            daemon = await assemble(settings, stack, asyncio.Event(), **chosen)
            here = cls(home)
            here._port = daemon.port
            yield here

    async def set_profile(self, name: str) -> None:
        """Have every run from now on confined by a profile."""
        body = {"kind": "core.engine.config.v1", "topic": "work_loop_profile", "profile": name}
        said = {"thread": "th_engine_config", "actor": "did:sync:system:engine", "act": "LEARN", "body": body}
        await self._ask(self._operator, "POST", "/v1/records", said)

    async def try_all(self, ids: Sequence[str], world: Json) -> Finished:
        """Have a member's run make attempts; gives what they came to once it is over."""
        return await self._finished(await self._start(json.dumps({"attempts": list(ids), "world": world})))

    async def work(self, goal: str) -> Finished:
        """Have a member's run work towards a goal; gives it once it is over."""
        return await self._finished(await self._start(goal))

    @contextlib.asynccontextmanager
    async def neighbour(self) -> AsyncIterator[Json]:
        """Have another member's run going on: gives its pid, its credential and its thread."""
        row = await self._start(json.dumps({"attempts": [STAY], "world": {}}))
        thread = row["thread"]
        try:
            told = await self._heard(thread)
            (receipt,) = [body for body in await self._bodies(thread) if body["kind"] == _ISOLATION]
            yield {
                "neighbour_pid": receipt["pid"],
                "neighbour_credential": told["credential"],
                "neighbour_thread": thread,
            }
        finally:
            await self._stop(thread)
            await self._over(thread)

    async def _start(self, goal: str) -> Json:
        self._members += 1
        asked = {"label": f"escape-{self._members}", "tier": "team"}
        member = await self._ask(self._operator, "POST", "/v1/members", asked)
        client = Client(("127.0.0.1", self._port), bearer=member["token"])
        return await self._ask(client, "POST", "/v1/work/loop", {"goal": goal})

    async def _finished(self, started: Json) -> Finished:
        thread = started["thread"]
        stopped = False
        try:
            row = await self._over(thread)
        except EscapeUnfinished:
            # What it told until then stands, and what it did not is a red row.
            stopped = True
            await self._stop(thread)
            row = await self._over(thread)
        bodies = await self._bodies(thread)
        finished = Finished(row, next(body for body in bodies if body["kind"] == _ISOLATION))
        for body in bodies:
            if body["kind"] == REPORT:
                finished.answers |= body.get("answers", {})
        outcome = next(body for body in bodies if body["kind"] == _OUTCOME)
        finished.exit = "stopped, since it did not end" if stopped else told_end(outcome["exit"])
        return finished

    async def _heard(self, thread: str) -> Json:
        """Wait for the first report of a run that is to go on; raises `EscapeUnfinished` when it ends before."""
        async with _bounded(f"the run {thread} told nothing"):
            while True:
                told = [body for body in await self._bodies(thread) if body["kind"] == REPORT]
                if told:
                    return told[0]
                if (await self._row(thread))["state"] != "running":
                    raise EscapeUnfinished(f"the run {thread}, which was to be a neighbour, has ended")
                await asyncio.sleep(_LOOK_SECONDS)

    async def _over(self, thread: str) -> Json:
        async with _bounded(f"the run {thread} did not end"):
            while True:
                row = await self._row(thread)
                if row["state"] != "running":
                    return row
                await asyncio.sleep(_LOOK_SECONDS)

    async def _stop(self, thread: str) -> None:
        path = f"/v1/runs/{segment(thread)}/events"
        with contextlib.suppress(RunFinished):
            await self._ask(self._operator, "POST", path, {"type": "stop"})

    async def _row(self, thread: str) -> Json:
        return await self._ask(self._operator, "GET", f"/v1/runs/{segment(thread)}")

    async def _bodies(self, thread: str) -> list[Json]:
        query = {"thread": thread, "limit": 1000}
        found = await asyncio.to_thread(self._operator.request, "GET", "/v1/records", query=query)
        return [record["body"] for record in found["data"]]

    async def _ask(self, client: Client, method: str, path: str, body: Json | None = None) -> Json:
        # Beside the event loop: it is the daemon's own that must answer.
        return await asyncio.to_thread(client.request, method, path, body)


@contextlib.asynccontextmanager
async def _bounded(what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_RUN_SECONDS):
            yield
    except TimeoutError:
        raise EscapeUnfinished(f"{what} within {_RUN_SECONDS:g} s") from None
