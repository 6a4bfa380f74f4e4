"""Clients at work, several at once, and what they were told: everything that was acknowledged, and every refusal."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from escape.instance import VERIFY_GOAL
from spl.errors import SplError
from tests.end_to_end.crash.program import GOAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.client import Client

Json = dict[str, Any]

ENGINE = "did:sync:system:engine"
CONFIG_THREAD = "th_engine_config"

MOST_TURNS = 12
LONG = 100_000
"""Turns of a run that goes on until something ends it."""


class Refusal(NamedTuple):
    """An answer that was an error, to what was asked for in that phase."""

    phase: int
    code: str
    message: str


@dataclass
class Told:
    """What the daemon has acknowledged over all rounds, and the refusals of the present one."""

    records: dict[str, Json] = field(default_factory=dict)
    """By id: as the answer to the append gave it, or as a read showed it, which is as good."""
    runs: dict[str, Json] = field(default_factory=dict)
    """By thread: the row that the start was answered with."""
    ended: dict[str, Json] = field(default_factory=dict)
    """By thread: the row of a run that was seen to have ended."""
    transport: str | None = None
    """What the operator's transport was set to last; None while an answer to that is missing."""
    refused: list[Refusal] = field(default_factory=list)
    phase: int = 0
    """Counts up where other answers may be expected than before."""
    newest: int = 0
    """The highest sequence of those records."""
    number: int = 0
    grown: threading.Condition = field(default_factory=threading.Condition)

    def record(self, record: Json) -> None:
        """Keep a record that was written."""
        with self.grown:
            self.seen(record)
            self.number += 1
            self.grown.notify_all()

    def seen(self, record: Json) -> None:
        """Keep a record that was read; the same one must have been the same before."""
        with self.grown:
            known = self.records.setdefault(record["id"], record)
            assert known == record, f"a record is not what it was: {known} then, {record} now"
            self.newest = max(self.newest, record["sequence"])

    def run(self, row: Json) -> None:
        """Keep the row of a run that was started."""
        with self.grown:
            self.runs[row["thread"]] = row
            self.number += 1
            self.grown.notify_all()

    def error(self, phase: int, error: SplError) -> None:
        """Keep a refusal."""
        with self.grown:
            self.refused.append(Refusal(phase, error.code, error.message))
            self.number += 1
            self.grown.notify_all()

    def wait_for(self, more: int, seconds: float) -> None:
        """Wait until so many more things have been written or refused."""
        with self.grown:
            least = self.number + more
            found = self.grown.wait_for(lambda: self.number >= least, seconds)
            assert found, f"nothing is answered any more: {self.refused}"

    def wait_for_refusal(self, codes: set[str], seconds: float) -> None:
        """Wait until something that was asked for in this phase is answered with an error of one of these codes."""

        def is_there() -> bool:
            return any(each.phase == self.phase and each.code in codes for each in self.refused)

        with self.grown:
            assert self.grown.wait_for(is_there, seconds), f"nothing is answered with {codes}: {self.refused}"


@dataclass
class Clients:
    """One thread for each thing that is done again and again, until `stop`.

    `bearers` has a client for each actor; the first is the operator's.
    """

    told: Told
    bearers: dict[str, Client]
    chance: random.Random
    stopping: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> Self:
        operator = next(iter(self.bearers))
        works: list[tuple[Callable[[str, random.Random], None], str]] = [
            (self._read, operator),
            (self._configure, operator),
            *((self._write, actor) for actor in self.bearers),
            *((self._run, actor) for actor in self.bearers),
        ]
        for work, actor in works:
            chance = random.Random(self.chance.random())
            thread = threading.Thread(target=self._again, args=(work, actor, chance))
            self.threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Have each end what it is about, and give what went wrong on this side."""
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        for fault in self.faults:
            raise fault

    def _again(self, work: Callable[[str, random.Random], None], actor: str, chance: random.Random) -> None:
        while not self.stopping.is_set():
            phase = self.told.phase
            try:
                work(actor, chance)
            except SplError as error:
                self.told.error(phase, error)
                if error.code == "DAEMON_UNREACHABLE":
                    return
                self._settle(chance)
            except BaseException as error:
                self.faults.append(error)
                raise

    def _write(self, actor: str, chance: random.Random) -> None:
        thread = f"th_{actor.rpartition(':')[2]}_{chance.randrange(3)}"
        draft = {"thread": thread, "actor": actor, "act": "KNOW", "body": {"said": chance.random()}}
        client = self.bearers[actor]
        record = client.request("POST", "/v1/records", draft)
        self.told.record(record)
        if not chance.randrange(3):
            # The same once more is the same one.
            self.told.record(client.request("POST", "/v1/records", {**draft, "clock": record["clock"]}))
        self._settle(chance)

    def _configure(self, actor: str, chance: random.Random) -> None:
        transport = chance.choice(("in_process", "sandboxed"))
        body = {"kind": "core.engine.config.v1", "topic": "work_loop_transport", "transport": transport}
        draft = {"thread": CONFIG_THREAD, "actor": ENGINE, "act": "LEARN", "body": body}
        self.told.transport = None
        self.told.record(self.bearers[actor].request("POST", "/v1/records", draft))
        self.told.transport = transport
        self._settle(chance)

    def _run(self, actor: str, chance: random.Random) -> None:
        client = self.bearers[actor]
        turns = chance.choice((0, chance.randrange(1, MOST_TURNS), LONG))
        goal = GOAL.format(turns=turns) if turns else VERIFY_GOAL
        row = client.request("POST", "/v1/work/loop", {"goal": goal})
        self.told.run(row)
        self._settle(chance)
        if turns == LONG:
            client.request("POST", f"/v1/runs/{row['thread']}/events", {"type": "stop"})

    def _read(self, actor: str, chance: random.Random) -> None:
        client = self.bearers[actor]
        query = {"since": max(0, self.told.newest - 10), "limit": 100}
        for record in client.request("GET", "/v1/records", query=query)["data"]:
            self.told.seen(record)
        for thread in chance.sample(list(self.told.runs), min(2, len(self.told.runs))):
            row = client.request("GET", f"/v1/runs/{thread}")
            if row["state"] != "running":
                known = self.told.ended.setdefault(thread, row)
                assert known == row, f"a run ended otherwise: {known} then, {row} now"

    def _settle(self, chance: random.Random) -> None:
        """Leave the daemon to it for a moment."""
        self.stopping.wait(chance.uniform(0, 0.05))
