"""Standby workers: made, confirmed and held before their credential, so that a start need not wait for a process.

A start takes one of just its plan, which serves that run and none other. Whatever else makes one unfit, a profile that
changed, a capacity that was set lower, has it killed. None is made while a start is on its way, and one at a time.

Each is reckoned as the run it may become: there are never more of them than runs there is room for, so that the memory
and the uids of starts are never theirs. They take no place of admission: a start that can use none has one go for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from bwrap.errors import LayerError
from spl.errors import DaemonStopping
from spl.transports.plans import stopping
from spl.transports.sandboxed import Sandbox
from spl.transports.trouble import ENDED, Troubles

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from bwrap.plan import Plan
    from bwrap.supervise import Exit
    from spl.kernel.admission import Admission
    from spl.transports.plans import Plans
    from spl.transports.sandboxed import Worker

_QUIET_SECONDS: Final = 0.02
"""How long no start has come before one is made: the run that was just begun is about to ask for its first things."""

_OTHERS_SECONDS: Final = 60.0
"""How long after an actor's last start the last standby is kept for it."""

_log = structlog.get_logger("spl.transports")


@dataclass(eq=False)
class _Standby:
    """A worker that waits for a run, and what sees it end if it does before that."""

    plan: Plan
    worker: Worker
    watch: asyncio.Task[Exit]


@dataclass(eq=False)
class _Making:
    """One that is being made; `claim` is a start that waits for it, and is given None if it comes to nothing."""

    plan: Plan
    task: asyncio.Task[Worker]
    claim: asyncio.Future[Worker | None] | None = None

    async def give_up(self) -> None:
        """Have it come to nothing, and see it gone; who has it given up twice would be told before it is."""
        if not self.task.cancelling():
            self.task.cancel()
        await asyncio.wait((self.task,))


@dataclass(eq=False)
class Standbys:
    """The standby workers of one daemon; `target` gives how many there are to be of each profile that `wanted` gives.

    `sandbox` is what they are made from, or why this host can have none. `now` is a clock in seconds that never goes
    back.
    """

    sandbox: Sandbox | LayerError
    admission: Admission
    target: Callable[[], int]
    wanted: Callable[[], Sequence[str]]
    now: Callable[[], float] = time.monotonic
    _ready: list[_Standby] = field(default_factory=list, init=False)
    _going: dict[asyncio.Task[None], Plan] = field(default_factory=dict, init=False)
    _making: _Making | None = field(default=None, init=False)
    _keeper: asyncio.Task[None] | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)
    _look: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _starts: int = field(default=0, init=False)
    _started: float = field(default=0.0, init=False)
    _asked: dict[str, float] = field(default_factory=dict, init=False)
    _given: str | None = field(default=None, init=False)
    _troubles: Troubles = field(init=False)

    def __post_init__(self) -> None:
        self._troubles = Troubles(self.now)

    @property
    def ready(self) -> int:
        """How many wait for a run."""
        return len(self._ready)

    def begin(self) -> None:
        """Have those that are to be there made, and kept, from now on until `stop`."""
        if isinstance(self.sandbox, Sandbox):
            self._keeper = asyncio.create_task(self._keep(self.sandbox))

    def look(self) -> None:
        """Have it seen to soon that those are there that are to be."""
        self._look.set()

    @contextlib.contextmanager
    def held_off(self) -> Iterator[None]:
        """Have none begun while a start is on its way."""
        self._starts += 1
        try:
            yield
        finally:
            self._starts -= 1
            self._started = self.now()
            self.look()

    async def take(self, sandbox: Sandbox, plan: Plan, actor: str, *, first: bool) -> tuple[Worker, bool]:
        """Give a worker for a run of this actor, which has its place, and whether it stood by.

        The plan must have been given just now. One that stood by is yet to be looked at again. Where there is none,
        it is the one that is being made, or a new one. With `first` the actor goes before all others. Raises
        `LayerError`, and `DaemonStopping` once the daemon stops.
        """
        self._refuse_late()
        # As a launch does; that what is shown is unchanged was asked when the plan was given.
        plan.host.bubblewrap.require_unchanged()
        kept = not first and self._keeps_last_from(actor)
        self._asked[actor] = self.now()
        ready = [each for each in self._ready if each.plan is plan and each.worker.confined.alive]
        if len(ready) > kept:
            self._given = actor
            self._troubles.lasted(plan.profile)
            return self._let_go(ready[0]), True
        worker = await self._claimed(plan)
        if worker is None:
            await self._make_room()
            self._refuse_late()
            worker = await sandbox.make(plan)
            self._troubles.made(plan.profile)
        return worker, False

    async def stop(self) -> None:
        """Make no more, and have those that are there go; nothing of them is left when this returns."""
        self._stopped = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
        await self._discard(self._ready, "daemon")
        if self._going:
            await asyncio.wait(self._going)

    def _refuse_late(self) -> None:
        if self._stopped:
            raise stopping()

    def _keeps_last_from(self, actor: str) -> bool:
        """Tell whether the last one is for others: they start runs as well, and this actor was given the one before."""
        since = self.now() - _OTHERS_SECONDS
        self._asked = {other: asked for other, asked in self._asked.items() if asked > since}
        return actor == self._given and not self._asked.keys() <= {actor}

    async def _claimed(self, plan: Plan) -> Worker | None:
        """Wait for the one that is being made, if it is of this plan and no other start does."""
        making = self._making
        if making is None or making.plan is not plan or making.claim is not None:
            return None
        making.claim = asyncio.get_running_loop().create_future()
        return await making.claim

    # --- those that are there ---

    def _add(self, plan: Plan, worker: Worker) -> None:
        watch = asyncio.create_task(worker.confined.wait())
        standby = _Standby(plan, worker, watch)
        self._ready.append(standby)
        watch.add_done_callback(lambda _: self._ended(standby))

    def _ended(self, standby: _Standby) -> None:
        """Notice the end of one that nobody had go."""
        if standby not in self._ready:
            return
        self._ready.remove(standby)
        profile, pid, fault = standby.plan.profile, standby.worker.pid, standby.watch.exception()
        if self._troubles.is_news(profile, ENDED):
            ended = None if fault is not None else standby.watch.result()
            _log.warning(
                "a standby worker ended",
                profile=profile,
                pid=pid,
                exit=ended and ended.wire(),
                cause=ended and ended.killed,
            )
        self.look()

    def _let_go(self, standby: _Standby) -> Worker:
        """Take one from those that are there: its end is somebody else's to see from now on."""
        self._ready.remove(standby)
        standby.watch.cancel()
        return standby.worker

    async def _discard(self, standbys: Sequence[_Standby], why: str) -> None:
        """Have these go; one whose end cannot be seen stays in the ledger, for the next daemon to look for."""
        # None of them is given to a start once this has begun. Each has its memory and its uid until it is gone.
        going = {asyncio.create_task(self._end(self._let_go(each), why)): each.plan for each in [*standbys]}
        self._going |= going
        for ending in going:
            ending.add_done_callback(self._going.pop)
        if going:
            await asyncio.wait(going)

    async def _end(self, worker: Worker, why: str) -> None:
        try:
            await worker.confined.stop(why)
        except Exception as error:  # noqa: BLE001 - whatever it was, the others are to go as well
            _log.error("something of a standby worker may be left", pid=worker.pid, error=str(error))

    async def _make_room(self) -> None:
        """Have those go for which there is no room beside the runs, the newest first, and see them gone."""
        making = self._making
        if making is not None and not self._fit(self._ready, making.plan):
            await making.give_up()
        fitting = len(self._ready)
        while fitting and not self._fit(self._ready[:fitting]):
            fitting -= 1
        await self._discard(self._ready[fitting:], "no room")
        while self._going and not self._fit(self._ready, *self._going.values(), *self._being_made()):
            await asyncio.wait(self._going, return_when=asyncio.FIRST_COMPLETED)

    def _being_made(self) -> list[Plan]:
        return [] if self._making is None else [self._making.plan]

    def _fit(self, standbys: Sequence[_Standby], *plans: Plan) -> bool:
        """Tell whether runs could be started now in the place of these and by these plans, all of them at once."""
        return self.admission.fits([plan.worst_case for plan in (*(each.plan for each in standbys), *plans)])

    # --- those that are to be there ---

    async def _keep(self, sandbox: Sandbox) -> None:
        with contextlib.suppress(DaemonStopping):
            while True:
                await self._quiet()
                self._look.clear()
                target = self.target()
                plans = (
                    {name: await self._plan(sandbox.plans, name) for name in self.wanted()} if target else {}
                )
                await self._discard(self._needless(plans, target), "not needed")
                await self._make_room()
                plan = self._lacking(plans, target)
                if plan is not None:
                    await self._make(sandbox, plan)
                else:
                    await self._wait(plans)

    async def _quiet(self) -> None:
        """Wait until no start is on its way, and the last one's run has asked for its first things."""
        while True:
            if self._starts:
                self._look.clear()
                await self._look.wait()
            elif (left := self._started + _QUIET_SECONDS - self.now()) > 0:
                await asyncio.sleep(left)
            else:
                return

    async def _plan(self, plans: Plans, name: str) -> Plan | None:
        """Give a profile's plan as the last start had it, after trouble as it is now; None where there is none."""
        last = plans.last(name)
        if self._troubles.waits(name) or (self._troubles.cause(name) is None and last is not None):
            return last
        try:
            return await plans.plan(name)
        except DaemonStopping:
            raise
        except Exception as error:  # noqa: BLE001 - told, and tried again: the keeper is to outlive it
            self._failed(plans, name, error)
            return None

    def _needless(self, plans: Mapping[str, Plan | None], target: int) -> list[_Standby]:
        """Give those of another plan than is asked for now, and those that are too many."""
        kept = Counter[str]()
        found = []
        for each in self._ready:
            name = each.plan.profile
            if plans.get(name) is each.plan and kept[name] < target:
                kept[name] += 1
            else:
                found.append(each)
        return found

    def _lacking(self, plans: Mapping[str, Plan | None], target: int) -> Plan | None:
        """Give the plan by which one is to be made: of those with too few, and with room for one more, the scarcest."""
        there = Counter(each.plan.profile for each in self._ready)
        for name, plan in sorted(plans.items(), key=lambda item: there[item[0]]):
            if (
                plan is not None
                and there[name] < target
                and not self._troubles.waits(name)
                and self._fit(self._ready, plan, *self._going.values())
            ):
                return plan
        return None

    async def _make(self, sandbox: Sandbox, plan: Plan) -> None:
        making = self._making = _Making(plan, asyncio.create_task(sandbox.make(plan)))
        try:
            await asyncio.wait((making.task,))
        except asyncio.CancelledError:
            await making.give_up()
            raise
        finally:
            self._making = None
            worker = self._outcome(sandbox.plans, making)
            if making.claim is not None and not making.claim.done():
                making.claim.set_result(worker)
            elif worker is not None:
                self._add(plan, worker)

    def _outcome(self, plans: Plans, making: _Making) -> Worker | None:
        """Give what was made, or None where that came to nothing: given up, or refused by a layer."""
        if making.task.cancelled():
            return None
        error = making.task.exception()
        if error is None:
            self._troubles.made(making.plan.profile)
            return making.task.result()
        self._failed(plans, making.plan.profile, error)
        return None

    async def _wait(self, profiles: Collection[str]) -> None:
        """Wait until something may have changed, or what was in trouble is to be tried again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._troubles.seconds(profiles)):
                await self._look.wait()

    def _failed(self, plans: Plans, name: str, error: BaseException) -> None:
        if not isinstance(error, LayerError):
            fault = f"{type(error).__name__}: {error}"
            error = LayerError("sandbox", expected="one more worker", observed=fault, remedy="report this")
        if self._troubles.is_news(name, error.layer):
            _log.warning("no standby worker can be made", profile=name, **plans.told(name, error).wire())
