"""One home on a disk of its own, kept from round to round, and the rounds."""

from __future__ import annotations

import contextlib
import os
import random
import select
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from spl.errors import RunFinished, StoreDamaged
from tests.disk import disk
from tests.end_to_end.crash import checks
from tests.end_to_end.crash.clients import LONG, Clients, Told
from tests.end_to_end.crash.faults import DAMAGES, FAULTS, STEPS, Scene, set_clock
from tests.end_to_end.crash.figures import Figures, told
from tests.end_to_end.crash.program import GOAL
from tests.end_to_end.daemon import SECONDS
from tests.end_to_end.faults import become

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from spl.client import Client
    from tests.disk import Disk
    from tests.end_to_end.crash.faults import Fault
    from tests.end_to_end.daemon import Daemon, Shape

ORDINARY = 23460
"""The same-user daemon's uid: one of this harness's own, so that whatever runs under it is the daemon's."""
UIDS = range(60920, 60940)
"""The hosted workers', for the same reason."""

START, DAMAGE = "killed while it started", "the log damaged between two starts"
"""Faults without a daemon that announces itself; the others are `FAULTS`."""
EACH = (START, DAMAGE, *FAULTS)
AT_ONCE = 2
"""Runs that a member may have going on."""
ORDINARY_CODES = frozenset({"WORK_CONCURRENCY_EXCEEDED", "RUN_FINISHED"})

AFTERWARDS = 40
"""Answers that clients wait for once a fault is over, all of them good."""

_STARTING = 0.6
_SHOWN = 100
_VERIFIED_EVERY = 20

__all__ = ["Figures", "rounds", "told"]


class World:
    """A home, what its clients were told of it, and what is known of its log."""

    def __init__(self, shape: Shape, home: Path, drive: Disk, figures: Figures) -> None:
        hosted = not shape.uid
        self.uid = 0 if hosted else ORDINARY
        shape = replace(shape, uid=self.uid, program="tests.end_to_end.crash.program")
        self.shape = shape.as_root_first()
        self.uids = UIDS if hosted else range(ORDINARY, ORDINARY + 1)
        self.disk = drive
        self.home = drive.path / "home"
        self.clock = home.with_name("clock")
        set_clock(self.clock, 0)
        self.prefix = [*drive.prefix, *become(shape)]
        self.told = Told()
        self.log = checks.Log()
        self.tokens: dict[str, str] = {}
        self.figures = figures

    @contextlib.contextmanager
    def daemon(self, **environment: str) -> Iterator[Daemon]:
        """Run the daemon on this home."""
        said = {**self.environment(), **environment}
        with self.shape.daemon(self.home, prefix=self.prefix, **said) as daemon:
            try:
                yield replace(daemon, home=self.disk.seen(self.home))
            except BaseException as error:
                error.add_note("".join(("the daemon's log:\n", *daemon.log.lines[-_SHOWN:])))
                raise

    def command(self) -> list[str]:
        """Give the command of a daemon that is not expected to announce itself."""
        return [*self.prefix, *self.shape.spl("serve", "--home", str(self.home), "--port", "0")]

    def verify(self) -> None:
        """Have the whole log verified by the command for it, with no daemon running."""
        plain = replace(self.shape, program="spl.cli.main")
        command = [*self.prefix, *plain.spl("verify", str(self.home / "hub.db"), "-o", "json")]
        done = subprocess.run(
            command, env=self.shape.environment, cwd="/", text=True, capture_output=True, timeout=2 * SECONDS
        )
        assert done.returncode == 0, f"the log cannot be verified:\n{done.stdout}{done.stderr}"

    def environment(self) -> dict[str, str]:
        """Give what the daemon is told beside its flags."""
        return {
            "CRASH_CLOCK": str(self.clock),
            "SPL_WORKER_UIDS": f"{UIDS[0]}-{UIDS[-1]}",
            "SPL_BACKUPS_KEPT": "0",
        }

    def bearers(self, daemon: Daemon) -> dict[str, Client]:
        """Give a client for each actor: the operator first, and two members, who are added at the first start."""
        if not self.tokens:
            ceilings = {"concurrent_runs": AT_ONCE, "daily_runs": 1_000_000, "max_turns": LONG}
            daemon.configure(kind="core.engine.tier.v1", tier="team", **ceilings)
            for label in ("mia", "ben"):
                added = daemon.request("POST", "/v1/members", {"label": label, "tier": "team"})
                self.tokens[f"did:sync:user:{label}"] = added["token"]
        operator = daemon.request("POST", "/v1/work/loop/preview", {"goal": "Who am I?"})["actor"]
        return {
            operator: daemon.client,
            **{actor: daemon.client_of(token) for actor, token in self.tokens.items()},
        }

    def round(self, fault: Fault, chance: random.Random) -> None:
        """Start a daemon, look at what it found, have clients at it, let the fault strike, and see its end."""
        environment = fault.environment(chance)
        if environment:
            self.look()  # apart: what is looked at would bring the daemon's own moment nearer
        backups = {} if chance.randrange(3) else {"SPL_BACKUPS_KEPT": "2"}
        with self.daemon(**environment, **backups) as daemon:
            bearers = self.bearers(daemon)
            if not environment:
                self.found(daemon, bearers)
            with Clients(self.told, bearers, chance):
                fault.strike(Scene(daemon, self.disk, self.told, chance, self.clock))
                if fault.dies:
                    daemon.process.wait(SECONDS)
                else:
                    self.told.phase += 1
                    self.told.wait_for(AFTERWARDS, SECONDS)
            checks.clean(daemon.log.lines)
            self.refusals(fault)
            if not fault.dies:
                self.settle(daemon)
                self.idle(daemon, bearers)
                self.stop(daemon)
        checks.clean(daemon.log.lines)
        self.gone()
        if fault.mend is not None:
            fault.mend(self.disk)

    def start_killed(self, chance: random.Random) -> None:
        """Kill a daemon before it has announced itself: some time after its beginning, or in its trial of a worker."""
        moment = {"CRASH_AT": f"launch {chance.choice(STEPS)} 1"} if chance.randrange(2) else {}
        process = subprocess.Popen(
            self.command(),
            env={**self.shape.environment, **self.environment(), **moment},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with process:
            assert process.stdout is not None
            if not moment:
                # Readable is the announcement, or the end.
                select.select([process.stdout], [], [], chance.uniform(0, _STARTING))
                process.kill()
            process.wait(SECONDS)
        self.gone()

    def damaged(self, chance: random.Random) -> None:
        """Damage the log while nobody has it open: no daemon starts with it, and one does once it is put back."""
        self.look()  # whose end folds the write-ahead log into the file
        log = self.disk.seen(self.home / "hub.db")
        whole = log.read_bytes()
        DAMAGES[chance.choice([*DAMAGES])](log)
        done = subprocess.run(
            self.command(),
            env={**self.shape.environment, **self.environment()},
            cwd="/",
            text=True,
            capture_output=True,
            timeout=SECONDS,
        )
        assert done.returncode == StoreDamaged.exit_status, done
        assert StoreDamaged.code in done.stderr, done.stderr
        with log.open("wb") as file:
            file.write(whole)
            os.fchmod(file.fileno(), 0o600)
            os.fchown(file.fileno(), self.uid, self.uid)
            file.flush()
            os.fsync(file.fileno())

    def look(self) -> None:
        """Start a daemon, look at what it found, and stop it."""
        with self.daemon() as daemon:
            self.found(daemon, self.bearers(daemon))
            self.stop(daemon)
        checks.clean(daemon.log.lines)
        self.gone()

    def stop(self, daemon: Daemon) -> None:
        """Have a daemon end as an operator would, and see that it gives its sockets back."""
        status = daemon.stop()
        assert status == 0, f"it ended with {status}"
        left = {"spl.sock", "spl-worker.sock"} & {*os.listdir(daemon.home / "run")}
        assert not left, f"sockets that are left: {left}"

    def found(self, daemon: Daemon, bearers: dict[str, Client]) -> None:
        """See that a daemon has everything that was acknowledged, and that nothing goes on."""
        said = checks.closed(daemon.log.lines)
        self.figures.closed += said["closed runs of an earlier daemon"]
        self.figures.swept += said["killed workers of an earlier daemon"]
        self.log.read_on(daemon, self.told)
        checks.runs(daemon, self.told)
        self.idle(daemon, bearers)

    def settle(self, daemon: Daemon) -> None:
        """Have every run end, those that nobody was told of among them."""
        while going := daemon.request("GET", "/v1/runs", state="running")["data"]:
            for row in going:
                with contextlib.suppress(RunFinished):
                    daemon.request("POST", f"/v1/runs/{row['thread']}/events", {"type": "stop"})
                daemon.finish(row["thread"])

    def idle(self, daemon: Daemon, bearers: dict[str, Client]) -> None:
        """Check a daemon that has nothing to do, and that every place of a member is free."""
        checks.idle(daemon, self.told)
        threads: list[str] = []
        for actor in self.tokens:
            for _ in range(AT_ONCE):
                row = bearers[actor].request("POST", "/v1/work/loop", {"goal": GOAL.format(turns=LONG)})
                self.told.run(row)
                threads.append(row["thread"])
        for thread in threads:
            daemon.request("POST", f"/v1/runs/{thread}/events", {"type": "stop"})
        for thread in threads:
            row = daemon.finish(thread)
            assert row["outcome"] == "cancelled", row
        checks.no_child(daemon)
        checks.nothing_left(
            self.disk.namespace, self.uids, {self.disk.holder, daemon.process.pid}, daemon.home / "run"
        )
        daemon.configure(topic="standby_workers", workers=None)
        checks.idle(daemon, self.told)

    def gone(self) -> None:
        """Check that nothing of a daemon that has ended runs on."""
        checks.nothing_left(
            self.disk.namespace, self.uids, {self.disk.holder}, self.disk.seen(self.home) / "none"
        )

    def refusals(self, fault: Fault) -> None:
        """Check the answers that were errors, and count them: once a fault is over, it explains none."""
        for phase, code, message in self.told.refused:
            assert code in ORDINARY_CODES or (phase == 0 and code in fault.allowed), f"{code}: {message}"
            assert "is no daemon" not in message, message
            self.figures.refused[code] += 1
        self.told.refused.clear()
        self.told.phase = 0


def rounds(shape: Shape, home: Path, number: int, seed: int, *, faults: Collection[str] = EACH) -> Figures:
    """Do so many rounds on one home, each fault in turn in an order of the seed's; the home's folder holds the disk.

    An error says the seed, the round and the fault.
    """
    figures = Figures(shape.name, seed)
    began = time.monotonic()
    with disk(home.parent, 512) as drive:
        world = World(shape, home, drive, figures)
        order = _order(number, seed, faults)
        for at, name in enumerate([*order, None]):
            try:
                # A round's own chance, so that it can be repeated by itself.
                chance = random.Random(f"{seed} {at}")
                if name is None:
                    world.look()
                    world.verify()
                    break
                if name == START:
                    world.start_killed(chance)
                elif name == DAMAGE:
                    world.damaged(chance)
                else:
                    world.round(FAULTS[name], chance)
                if not at % _VERIFIED_EVERY:
                    world.verify()
            except BaseException as error:
                before = order[at - 1] if at else "nothing"
                error.add_note(f"{shape.name}, seed {seed}, round {at} of {number}: {name}, after {before}")
                raise
            figures.rounds[name] += 1
            sys.stderr.write(f"{shape.name}: round {at + 1} of {number}, {name}\n")
        figures.records, figures.acknowledged = world.log.sequence, len(world.told.records)
        figures.runs = len(world.log.outcomes)
        for outcome in world.log.outcomes.values():
            figures.outcomes[outcome["outcome"], outcome["summary"]] += 1
    figures.seconds = time.monotonic() - began
    return figures


def _order(number: int, seed: int, faults: Collection[str]) -> list[str]:
    chance = random.Random(seed)
    order: list[str] = []
    while len(order) < number:
        each = [*faults]
        chance.shuffle(each)
        order += each
    return order[:number]
