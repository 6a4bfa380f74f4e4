"""Runs of every kind, written by the real kernel into one real log, and what an export of each holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from spl.errors import SplError
from spl.inference.model import Unanswered
from spl.kernel.outcome import Ending
from spl.records.record import Draft, record_id
from spl.transports import in_process
from tests.kernel.doors import BOTH, CLEAN, SUM, own_result
from tests.kernel.instance import (
    MEMBER,
    MIA,
    NOTE,
    OPERATOR,
    Priced,
    call,
    calls,
    carry_out,
    instance,
    propose,
    replies_of,
    says,
    turn,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from spl.inference.script import ScriptProvider
    from spl.kernel.runs import Run
    from tests.kernel.instance import Instance

Json = dict[str, Any]

RECEIPT: Json = {"shape": "same-user", "profile_digest": "d" * 64,
                 "layers": [{"layer": name, "claim": "of its own", "confirmed": True, "observed": []}
                            for name in ("network", "home")]}  # fmt: skip
ENGINE = "did:sync:system:engine"
DENIED = calls(call("bash", command="id"))
CUT_OFF = calls(call("record_note", text="half"), stop_reason="length")
USED = {"input_tokens": 3, "output_tokens": 1000}


class Broken(Priced):
    """A model that is paid for a second reply that is no use: two calls of one id."""

    async def complete(self, request: Any) -> Any:
        """Give the reply, the second with its call twice."""
        reply = await super().complete(request)
        if request.turn == 0:
            return reply
        twice = replies_of(self.folder, BOTH)[0]
        assert not isinstance(twice, Unanswered)
        same = (twice.calls[0], twice.calls[0])
        return type(reply)(reply.text, same, reply.stop_reason, reply.usage, reply.model)

    def __init__(self, folder: Path) -> None:
        super().__init__(replies_of(folder, {**NOTE, "usage": USED}, {**NOTE, "usage": USED}))
        self.folder = folder


async def every_step(here: Instance, run: Run) -> None:
    """Have a note made, a sum done by the run itself, a tool denied, a plan told, and strangers beside it."""
    await turn(run)
    await propose(run, "c1")
    await run.door("call", {"call_id": "c1"})
    await here.kernel.write(MIA, Draft(run.terms.thread, MEMBER, "KNOW", {"text": "well done"}))
    await propose(run, "c2")
    await run.door("record", own_result("c2"))
    await run.door("record", {"kind": "core.work.plan.v1", "body": {"text": "to end"}})
    await carry_out(run)
    await turn(run)


async def stopped(here: Instance, run: Run) -> None:
    """Have a run stopped between its turn and its call."""
    await turn(run)
    run.stop(OPERATOR)
    await propose(run)
    await turn(run)


async def broken_off(here: Instance, run: Run) -> None:
    """Leave a call allowed and never run."""
    await turn(run)
    await propose(run)


async def in_turns(here: Instance, run: Run) -> None:
    """Go on until the kernel ends it or the model has no more to ask for."""
    try:
        while (await carry_out(run)).get("reply", {}).get("calls"):
            pass
    except SplError:
        return


async def driven(here: Instance, run: Run) -> None:
    """Have the loop go through it in process."""
    assert await in_process.drive(run, grace=1) == CLEAN


@dataclass(frozen=True)
class Kind:
    """A run as it is had: the model's replies, the start's fields, the steps, and how its loop ended."""

    outcome: str
    replies: tuple[Json, ...] = ()
    steps: Callable[[Instance, Run], Awaitable[None]] = in_turns
    asked: tuple[tuple[str, Any], ...] = ()
    ending: Ending | None = CLEAN
    provider: Callable[[Path], ScriptProvider] | None = None


KINDS = {
    "completed": Kind("completed", (BOTH, DENIED, says("Done.")), every_step),
    "in_process": Kind("completed", (BOTH, DENIED, says("Done.")), driven, (("actor", OPERATOR),)),
    "stopped": Kind("cancelled", (NOTE,), stopped),
    "denied": Kind("blocked", (DENIED, says("I may not."))),
    "halted": Kind("guardrail_halt", (DENIED,) * 6),
    "cut_off": Kind("blocked", (CUT_OFF, says("No."))),
    "max_turns": Kind("max_turns", (NOTE, NOTE), asked=(("max_turns", 1),)),
    "no_turn": Kind("failed", (NOTE,), lambda *_: asyncio.sleep(0)),
    "no_money": Kind(
        "budget_exhausted", steps=in_turns, asked=(("budget_usd", Decimal("0.1")),),
        provider=lambda folder: Priced(replies_of(folder, {**NOTE, "usage": USED}, NOTE)),
    ),
    "useless_reply": Kind("failed", provider=Broken, asked=(("actor", OPERATOR),)),
    "wall_clock": Kind("budget_exhausted", (NOTE,), broken_off, ending=Ending(clean=False, cause="wall_clock")),
    "killed": Kind("failed", (SUM,), broken_off, ending=Ending(clean=False, exit={"signal": 9})),
    "daemon": Kind("failed", (NOTE,), broken_off, ending=Ending(clean=False, cause="daemon")),
    "orphan": Kind("failed", (BOTH,), broken_off, ending=None),
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """The log's file, and each kind of run's records as the API gives them."""

    log: Path
    runs: dict[str, list[Json]]


def write(folder: Path, *kinds: str) -> Written:
    """Write a run of these kinds, or of every kind."""
    threads = {name: asyncio.run(_write_one(folder, KINDS[name])) for name in kinds or KINDS}
    return Written(folder / "hub.db", asyncio.run(_exports(folder, threads)))


async def _write_one(folder: Path, kind: Kind) -> str:
    provider = None if kind.provider is None else kind.provider(folder)
    async with instance(folder, *kind.replies, provider=provider) as here:
        run = await here.open(receipt=RECEIPT, **dict(kind.asked))
        await kind.steps(here, run)
        if kind.ending is None:
            here.kernel.live.clear()
            assert await here.kernel.close_orphans() == [run.terms.thread]
        else:
            await here.kernel.finish(run, kind.ending)
        (outcome,) = await here.bodies(run.terms.thread, "core.work.loop_outcome.v1")
        assert outcome["outcome"] == kind.outcome
        return run.terms.thread


async def _exports(folder: Path, threads: dict[str, str]) -> dict[str, list[Json]]:
    async with instance(folder) as here:
        return {name: [each.wire() for each in await here.on(thread)] for name, thread in threads.items()}


def hashed_anew(records: Iterable[Json]) -> list[Json]:
    """Give records with every id made anew, and every parent and `fulfills` that names one moved with it."""
    moved: dict[str, str] = {}
    made = []
    for record in records:
        body = dict(record["body"])
        if body.get("fulfills") in moved:
            body["fulfills"] = moved[body["fulfills"]]
        new = {**record, "body": body, "parents": sorted(moved.get(each, each) for each in record["parents"])}
        given = (new[name] for name in ("parents", "thread", "actor", "act", "body", "clock", "data_type"))
        new["id"] = moved[record["id"]] = record_id(*given)
        made.append(new)
    return made


def chained_anew(records: Iterable[Json]) -> list[Json]:
    """Give records of a run as a forger would who makes its whole chain anew: parents, clocks and ids."""
    made: list[Json] = []
    clocks: dict[str, int] = {}
    for record in records:
        clocks[record["actor"]] = clocks.get(record["actor"], 0) + 1
        made.append({**record, "clock": clocks[record["actor"]], "sequence": len(made) + 1})
    last: str | None = None
    for record in made:
        if str(record["body"].get("kind")).startswith("core.work."):
            record["parents"] = [] if last is None else [last]
            last = record["id"]
    return hashed_anew(made)
