"""Which standby workers there are, and who is given one, by workers that are none; real ones are in standing.py."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from bwrap.errors import LayerError
from bwrap.supervise import Exit
from spl.errors import DaemonStopping
from spl.kernel.admission import Admission
from spl.transports import standby
from spl.transports.sandboxed import Sandbox
from spl.transports.standby import Standbys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from bwrap.plan import Plan
    from spl.transports.sandboxed import Worker

MIA, NED, OPERATOR = "mia", "ned", "op"
SECONDS = 20
"""How long anything here waits for may take."""

NO_NETWORK = LayerError("network", expected="loopback alone", observed="eth0", remedy="mend it")


class Process:
    """A worker's process, as far as anyone here looks."""

    def __init__(self) -> None:
        self.alive = True
        self.why: str | None = None
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    def end(self, why: str | None = None) -> None:
        """Have it killed."""
        self.alive, self.why = False, why
        self._ended.set_result(Exit(None, "SIGKILL", why))

    async def wait(self) -> Exit:
        """Wait for its end."""
        return await asyncio.shield(self._ended)

    async def stop(self, why: str) -> Exit:
        """Kill it."""
        self.end(why)
        return await self.wait()


def held_back(process: Process, held: asyncio.Event) -> Callable[[str], Coroutine[Any, Any, Exit]]:
    """Give a way to have a process killed that comes to its end when it is let."""

    async def stop(why: str) -> Exit:
        await held.wait()
        process.end(why)
        return await process.wait()

    return stop


class Workshop(Sandbox):
    """What makes workers that are none, once it is `open`; `failing` is why it cannot, `gone` lets it give one up."""

    def __init__(self, *plans: Plan) -> None:
        known = {plan.profile: plan for plan in plans}

        async def plan(name: str) -> Plan:
            return known[name]

        self.plans: Any = SimpleNamespace(plan=plan, last=known.get, told=lambda _, error: error)
        self.known = known
        self.made: list[Worker] = []
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.gone = asyncio.Event()
        self.gone.set()
        self.failing: Exception | None = None

    async def make(self, plan: Plan) -> Worker:
        self.begun.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            await self.gone.wait()
            raise
        if self.failing is not None:
            raise self.failing
        worker: Worker = cast("Any", SimpleNamespace(confined=Process(), pid=len(self.made), plan=plan))
        self.made.append(worker)
        return worker


def a_plan(profile: str = "worker", size: int = 1) -> Plan:
    bubblewrap = SimpleNamespace(require_unchanged=lambda: None)
    made: Plan = cast(
        "Any", SimpleNamespace(profile=profile, worst_case=size, host=SimpleNamespace(bubblewrap=bubblewrap))
    )
    return made


class Here:
    """Standbys of a workshop, with what they go by in a test's hands."""

    def __init__(self, plans: tuple[Plan, ...], *, target: int, capacity: int) -> None:
        self.shop = Workshop(*plans)
        self.plan = plans[0]
        self.capacity, self.target, self.clock = capacity, target, 0.0
        self.wanted = [plan.profile for plan in plans]
        self.admission = Admission(0, lambda: self.capacity)
        self.standbys = Standbys(
            self.shop, self.admission, lambda: self.target, lambda: self.wanted, lambda: self.clock
        )

    async def take(self, actor: str = MIA, plan: Plan | None = None, *, first: bool = False) -> bool:
        """Take one for a run that has its place; gives whether it stood by."""
        plan = plan or self.plan
        self.admission.take(plan.worst_case, actor, first=True)
        return (await self.standbys.take(self.shop, plan, actor, first=first))[1]

    async def ready(self, number: int) -> None:
        """Wait until so many stand by, and nothing more is done."""
        await self.settled()
        assert (self.standbys.ready, self.standbys._making) == (number, None)

    async def settled(self) -> None:
        """Let everything happen that needs nothing more to happen."""
        for _ in range(50):
            await asyncio.sleep(0)


def standing_by(
    talk: Callable[[Here], Coroutine[Any, Any, None]],
    *plans: Plan,
    target: int = 2,
    capacity: int = 10,
    begin: bool = True,
) -> None:
    """Have a talk with standbys."""

    @asynccontextmanager
    async def here() -> AsyncIterator[Here]:
        made = Here(plans or (a_plan(),), target=target, capacity=capacity)
        if begin:
            made.standbys.begin()
        try:
            yield made
        finally:
            made.shop.open.set()
            made.shop.gone.set()
            await made.standbys.stop()

    async def run() -> None:
        async with asyncio.timeout(SECONDS), here() as found:
            await talk(found)

    asyncio.run(run())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_QUIET_SECONDS", 0.0)


def test_so_many_stand_by_of_each_profile_and_each_serves_one_start() -> None:
    worker, strict = a_plan(), a_plan("strict")

    async def talk(here: Here) -> None:
        await here.ready(4)
        assert [each.plan.profile for each in here.shop.made].count("strict") == 2  # type: ignore[attr-defined]
        found = [await here.standbys.take(here.shop, strict, MIA, first=False) for _ in range(3)]
        assert [stood_by for _, stood_by in found] == [True, True, False]
        assert len({id(each) for each, _ in found}) == 3

    standing_by(talk, worker, strict)


def test_whoever_is_alone_is_given_every_one_of_them() -> None:
    async def talk(here: Here) -> None:
        await here.ready(2)
        here.shop.failing = NO_NETWORK
        assert [await here.take() for _ in range(2)] == [True, True]

    standing_by(talk)


def test_the_last_one_is_kept_from_who_was_given_the_one_before_while_others_start_runs_too() -> None:
    async def talk(here: Here) -> None:
        await here.ready(2)
        here.standbys._asked[NED] = 0.0
        here.shop.open.clear()
        assert await here.take(MIA)
        here.shop.open.set()
        assert not await here.take(MIA)
        assert await here.take(NED)

    standing_by(talk, target=2, begin=True)


def test_the_last_one_is_nobodys_who_has_started_no_run_for_a_minute() -> None:
    async def talk(here: Here) -> None:
        await here.ready(2)
        here.standbys._asked[NED] = 0.0
        here.clock = standby._OTHERS_SECONDS
        assert [await here.take(MIA) for _ in range(2)] == [True, True]

    standing_by(talk)


def test_the_operator_is_kept_from_none() -> None:
    async def talk(here: Here) -> None:
        await here.ready(2)
        here.standbys._asked[NED] = 0.0
        assert [await here.take(OPERATOR, first=True) for _ in range(2)] == [True, True]

    standing_by(talk)


def test_a_start_waits_for_the_one_that_is_being_made_and_a_second_start_does_not() -> None:
    async def talk(here: Here) -> None:
        here.shop.open.clear()
        await here.shop.begun.wait()
        starts = [asyncio.create_task(here.take()) for _ in range(2)]
        await here.settled()
        here.target = 0
        here.shop.open.set()
        assert await asyncio.gather(*starts) == [False, False]
        # The one that was being made already, and one that the second start made.
        assert len(here.shop.made) == 2
        await here.ready(0)

    standing_by(talk)


def test_a_start_that_waited_for_one_that_could_not_be_made_makes_its_own() -> None:
    async def talk(here: Here) -> None:
        here.shop.open.clear()
        here.shop.failing = NO_NETWORK
        await here.shop.begun.wait()
        make = here.shop.make

        async def mended(plan: Plan) -> Worker:
            here.shop.failing = None
            return await make(plan)

        here.shop.make = mended  # type: ignore[method-assign]
        start = asyncio.create_task(here.take())
        await here.settled()
        here.shop.open.set()
        assert not await start

    standing_by(talk)


def test_a_start_that_can_use_none_has_one_go_for_its_place() -> None:
    worker, strict = a_plan(), a_plan("strict")

    async def talk(here: Here) -> None:
        here.wanted = ["worker"]
        await here.ready(2)
        here.shop.failing = None
        assert not await here.take(plan=strict)
        assert here.standbys.ready == 1
        assert [each.confined.why for each in here.shop.made] == [None, "no room", None]  # type: ignore[attr-defined]

    standing_by(talk, worker, strict, capacity=2)


def test_the_one_that_is_being_made_is_given_up_for_a_start_that_needs_its_place() -> None:
    worker, strict = a_plan(), a_plan("strict")

    async def talk(here: Here) -> None:
        here.wanted = ["worker"]
        here.shop.open.clear()
        await here.shop.begun.wait()
        start = asyncio.create_task(here.take(plan=strict))
        await here.settled()
        here.shop.open.set()
        assert not await start
        assert [each.plan.profile for each in here.shop.made] == ["strict"]  # type: ignore[attr-defined]
        assert here.standbys._troubles.known == {}

    standing_by(talk, worker, strict, capacity=1)


@pytest.mark.claim("A1")
def test_a_start_waits_until_one_that_is_not_needed_has_given_its_place_back() -> None:
    worker, strict = a_plan(), a_plan("strict")

    async def talk(here: Here) -> None:
        here.wanted = ["worker"]
        await here.ready(2)
        held = asyncio.Event()
        for each in here.shop.made:
            each.confined.stop = held_back(cast("Any", each.confined), held)  # type: ignore[method-assign, assignment]
        here.target = 0
        here.standbys.look()
        await here.settled()
        assert here.standbys.ready == 0
        start = asyncio.create_task(here.take(plan=strict))
        await here.settled()
        assert len(here.shop.made) == 2
        held.set()
        assert not await start
        assert len(here.shop.made) == 3

    standing_by(talk, worker, strict, capacity=2)


@pytest.mark.claim("A1")
def test_two_starts_wait_until_the_one_that_is_given_up_for_them_has_given_its_place_back() -> None:
    worker, strict = a_plan(), a_plan("strict")

    async def talk(here: Here) -> None:
        here.wanted = ["worker"]
        await here.ready(1)
        for each in (here.shop.begun, here.shop.open, here.shop.gone):
            each.clear()
        here.target = 2
        here.standbys.look()
        await here.shop.begun.wait()
        starts = []
        for _ in range(2):
            starts.append(asyncio.create_task(here.take(plan=strict)))
            await here.settled()
        here.shop.open.set()
        await here.settled()
        assert len(here.shop.made) == 1
        here.shop.gone.set()
        assert await asyncio.gather(*starts) == [False, False]
        assert [each.confined.alive for each in here.shop.made] == [False, True, True]

    standing_by(talk, worker, strict, target=1, capacity=2)


@pytest.mark.claim("A1")
@pytest.mark.parametrize(("capacity", "number"), [(0, 0), (1, 1), (3, 2)])
def test_there_are_never_more_of_them_than_runs_there_is_room_for(capacity: int, number: int) -> None:
    async def talk(here: Here) -> None:
        await here.ready(number)
        here.capacity = 0
        here.standbys.look()
        await here.ready(0)

    standing_by(talk, capacity=capacity)


def test_none_is_begun_while_a_start_is_on_its_way() -> None:
    async def talk(here: Here) -> None:
        with here.standbys.held_off():
            here.standbys.look()
            await here.settled()
            assert not here.shop.begun.is_set()
        await here.ready(2)

    standing_by(talk)


@pytest.mark.parametrize("change", ["a lower target", "another profile", "another plan", "nothing sandboxed"])
def test_those_that_are_not_needed_any_more_go(change: str) -> None:
    worker, strict = a_plan(), a_plan("strict")

    async def talk(here: Here) -> None:
        here.wanted = ["worker"]
        await here.ready(2)
        old = list(here.shop.made)
        match change:
            case "a lower target":
                here.target = 1
            case "another profile":
                here.wanted = ["strict"]
            case "another plan":
                here.shop.known["worker"] = a_plan()
            case _:
                here.wanted = []
        here.standbys.look()
        await here.ready({"a lower target": 1, "nothing sandboxed": 0}.get(change, 2))
        left = sum(each.confined.alive for each in old)
        assert left == (1 if change == "a lower target" else 0)

    standing_by(talk, worker, strict)


def test_what_keeps_one_from_being_made_is_said_once_and_it_is_tried_ever_more_rarely() -> None:
    async def talk(here: Here) -> None:
        here.shop.failing = NO_NETWORK
        tried = []
        with capture_logs() as said:
            for _ in range(9):
                here.shop.begun.clear()
                here.standbys.look()
                await here.shop.begun.wait()
                await here.settled()
                trouble = here.standbys._troubles.known["worker"]
                tried.append(trouble.until - here.clock)
                here.shop.begun.clear()
                here.clock = trouble.until - 0.001
                here.standbys.look()
                await here.settled()
                assert not here.shop.begun.is_set()
                here.clock = trouble.until
            here.shop.failing = RuntimeError("a fault")
            here.standbys.look()
            await here.shop.begun.wait()
            await here.settled()
        assert tried == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        assert [(each["event"], each["layer"]) for each in said] == [
            ("no standby worker can be made", "network"),
            ("no standby worker can be made", "sandbox"),
        ]

    standing_by(talk)


@pytest.mark.parametrize("maker", ["a start", "the next try"])
def test_once_one_could_be_made_the_next_are_at_once_and_the_same_trouble_is_no_news(maker: str) -> None:
    async def talk(here: Here) -> None:
        with capture_logs() as said:
            here.shop.failing = NO_NETWORK
            for _ in range(3):
                await here.settled()
                here.clock = here.standbys._troubles.known["worker"].until
                here.standbys.look()
            await here.settled()
            here.shop.failing = None
            if maker == "a start":
                assert not await here.take()
            else:
                here.clock = here.standbys._troubles.known["worker"].until
            here.standbys.look()
            await here.ready(2)

            here.shop.failing = NO_NETWORK
            assert await here.take()
            here.standbys.look()
            await here.ready(1)
        assert [each["event"] for each in said] == ["no standby worker can be made"]
        assert here.standbys._troubles.known["worker"].until - here.clock == 1

    standing_by(talk)


def test_a_fault_while_the_plan_is_made_is_told_of_and_tried_again() -> None:
    async def talk(here: Here) -> None:
        last, plan = here.shop.plans.last, here.shop.plans.plan

        async def fault(_: str) -> Plan:
            raise MemoryError

        here.shop.plans.last, here.shop.plans.plan = (lambda _: None), fault
        with capture_logs() as said:
            await here.ready(0)
        assert [(each["layer"], each["observed"]) for each in said] == [("sandbox", "MemoryError: ")]
        here.shop.plans.last, here.shop.plans.plan = last, plan
        here.clock = 1.0
        here.standbys.look()
        await here.ready(2)

    standing_by(talk)


def test_one_that_dies_is_told_of_and_replaced_after_a_while() -> None:
    async def talk(here: Here) -> None:
        await here.ready(2)
        process: Any = here.shop.made[0].confined
        with capture_logs() as said:
            process.end()
            await here.settled()
        (line,) = said
        assert (line["event"], line["pid"], line["exit"]) == (
            "a standby worker ended",
            0,
            {"signal": "SIGKILL"},
        )
        assert here.standbys.ready == 1
        here.clock = 1.0
        here.standbys.look()
        await here.ready(2)
        # Once one has served a start, the next that dies is news again.
        assert await here.take()
        here.standbys.look()
        await here.ready(2)
        process = here.shop.made[-1].confined
        with capture_logs() as said:
            process.end()
            await here.settled()
        assert [each["event"] for each in said] == ["a standby worker ended"]

    standing_by(talk)


def test_trouble_of_more_than_a_minute_ago_is_forgotten() -> None:
    async def talk(here: Here) -> None:
        here.shop.failing = NO_NETWORK
        await here.settled()
        with capture_logs() as said:
            here.clock = 1.0 + 60.001
            here.standbys.look()
            await here.settled()
        assert [each["event"] for each in said] == ["no standby worker can be made"]
        assert here.standbys._troubles.known["worker"].until - here.clock == 1

    standing_by(talk)


def test_none_that_has_ended_is_given_to_a_start() -> None:
    async def talk(here: Here) -> None:
        await here.ready(2)
        for each in here.shop.made:
            # It has ended, and nobody has noticed yet.
            each.confined.alive = False  # type: ignore[misc]
        assert not await here.take()

    standing_by(talk)


def test_by_a_bubblewrap_that_was_replaced_none_is_given() -> None:
    async def talk(here: Here) -> None:
        await here.ready(2)

        def replaced() -> None:
            raise NO_NETWORK

        here.plan.host.bubblewrap.require_unchanged = replaced  # type: ignore[method-assign]
        with pytest.raises(LayerError):
            await here.take()

    standing_by(talk)


@pytest.mark.parametrize("moment", ["made", "being made"])
def test_when_the_daemon_stops_none_is_left_and_none_is_given(moment: str) -> None:
    async def talk(here: Here) -> None:
        if moment == "made":
            await here.ready(2)
        else:
            here.shop.open.clear()
            await here.shop.begun.wait()
        await here.standbys.stop()
        here.shop.open.set()
        here.standbys.look()
        await here.settled()
        assert len(here.shop.made) == (2 if moment == "made" else 0)
        assert (here.standbys.ready, here.standbys._making) == (0, None)
        assert not any(each.confined.alive for each in here.shop.made)
        with pytest.raises(DaemonStopping):
            await here.take()

    standing_by(talk)


def test_the_daemon_stops_once_those_are_gone_that_were_going_already() -> None:
    async def talk(here: Here) -> None:
        await here.ready(2)
        held = asyncio.Event()
        for each in here.shop.made:
            each.confined.stop = held_back(cast("Any", each.confined), held)  # type: ignore[method-assign, assignment]
        here.target = 0
        here.standbys.look()
        await here.settled()
        stop = asyncio.create_task(here.standbys.stop())
        await here.settled()
        assert not stop.done()
        held.set()
        await stop
        assert not any(each.confined.alive for each in here.shop.made)

    standing_by(talk)


def test_one_whose_end_cannot_be_seen_is_told_of_and_keeps_no_other_from_being_made() -> None:
    async def talk(here: Here) -> None:
        await here.ready(2)

        async def unseen(_: str) -> Exit:
            raise OSError("no descriptors")

        for each in here.shop.made:
            each.confined.stop = unseen  # type: ignore[method-assign, assignment]
        with capture_logs() as said:
            here.target = 0
            here.standbys.look()
            await here.ready(0)
        assert [(each["event"], each["error"]) for each in said] == [
            ("something of a standby worker may be left", "no descriptors")
        ] * 2
        here.target = 1
        here.standbys.look()
        await here.ready(1)

    standing_by(talk)


def test_a_host_that_can_have_no_workers_has_no_standbys() -> None:
    async def run() -> None:
        standbys = Standbys(NO_NETWORK, Admission(0, lambda: 10), lambda: 2, lambda: ["worker"])
        standbys.begin()
        standbys.look()
        await asyncio.sleep(0)
        assert (standbys.ready, standbys._keeper) == (0, None)
        await standbys.stop()

    asyncio.run(run())
