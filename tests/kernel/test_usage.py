from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from bwrap.errors import LayerError
from spl.errors import (
    IsolationUnavailable,
    StoreUnavailable,
    TokenRevoked,
    WorkConcurrencyExceeded,
    WorkDailyCapExceeded,
    WorkDailyCountExceeded,
)
from spl.kernel import names
from spl.kernel.outcome import Ending
from spl.kernel.terms import Start
from spl.transports.starting import Transports
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    MEMBERS,
    MIA,
    OPERATOR,
    Day,
    Hanging,
    Instance,
    Priced,
    instance,
    replies_of,
    says,
    turn,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from spl.kernel.usage import Place

CLEAN = Ending(clean=True)
NED = "did:sync:user:ned"
THEIRS = Start(goal="a goal", actor=MEMBER)
TO_MIDNIGHT = 3602
"""Seconds that are left of the day on which these tests begin."""


def at_work(tmp_path: Path, talk: Callable[[Instance, Day], Awaitable[None]], **options: Any) -> None:
    """Have an instance whose day a test moves, and whose members' runs go on in process."""
    day = Day()

    async def run() -> None:
        async with instance(tmp_path, now=day, **options) as here:
            await here.configure(MEMBERS, "in_process")
            await talk(here, day)

    asyncio.run(run())


def take(here: Instance, actor: str = MEMBER) -> Place:
    return here.kernel.take_place(here.kernel.terms(ADMINISTRATOR, Start(goal="a goal", actor=actor)))


async def spend(here: Instance, turns: int = 1) -> None:
    """Have a run of the member's take turns, at ten cents each, to its end."""
    place = take(here)
    opened = await here.open()
    for _ in range(turns):
        await turn(opened)
    await here.kernel.finish(opened, CLEAN)
    place.release()


def cents(tmp_path: Path) -> Priced:
    return Priced(replies_of(tmp_path, *[{**says("on"), "usage": {"output_tokens": 1000}}] * 9))


# --- each ceiling by its own code, with both numbers ---


def test_a_run_more_than_may_go_on_at_once_is_refused_with_both_numbers(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", concurrent_runs=2)
        places = [take(here), take(here)]
        with pytest.raises(
            WorkConcurrencyExceeded, match=r"runs of .*:mia .*: 2, .* trial allows 2 at once"
        ) as error:
            take(here)
        assert error.value.fields == {"limit": 2, "running": 2, "retry_after_secs": 1}
        assert error.value.status == 429
        take(here, NED)
        places[0].release()
        take(here)

    at_work(tmp_path, talk)


def test_a_run_more_than_may_start_in_a_day_is_refused_with_both_numbers(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_runs=3)
        for _ in range(3):
            take(here).release()
        with pytest.raises(
            WorkDailyCountExceeded, match=r"runs of .*:mia .*: 3, .* trial allows 3 a day"
        ) as error:
            take(here)
        assert error.value.fields == {"limit": 3, "started": 3, "retry_after_secs": TO_MIDNIGHT}
        assert error.value.status == 429
        take(here, NED)

    at_work(tmp_path, talk)


@pytest.mark.claim("B2")
def test_a_run_of_an_actor_whose_day_has_cost_enough_is_refused_with_both_numbers(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_cost_usd=0.3, default_budget_usd=9)
        await spend(here, turns=2)
        await spend(here, turns=1)
        with pytest.raises(
            WorkDailyCapExceeded, match=r"cost 0.3 USD today, .* trial allows 0.3 USD"
        ) as error:
            take(here)
        assert error.value.fields == {"limit_usd": 0.3, "spent_usd": 0.3, "retry_after_secs": TO_MIDNIGHT}
        assert error.value.status == 429
        take(here, NED)

    at_work(tmp_path, talk, provider=cents(tmp_path))


def test_a_run_may_cost_what_is_left_of_its_actors_day(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_cost_usd=0.3)
        await spend(here, turns=2)
        opened = await here.open()
        assert opened.terms.ceilings.budget_usd == Decimal("0.1")
        assert "reply" in await turn(opened)
        assert await turn(opened) == {"end": "budget_exhausted"}

    at_work(tmp_path, talk, provider=cents(tmp_path))


@pytest.mark.claim("B2")
def test_runs_side_by_side_share_what_is_left_of_their_actors_day(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_cost_usd=0.3, default_budget_usd=9)
        runs = [await here.open() for _ in range(3)]
        neds = await here.open(actor=NED)
        assert {each.terms.ceilings.budget_usd for each in runs} == {Decimal("0.3")}
        for _ in range(3):
            assert "reply" in await turn(runs[0])
        for each in runs[1:]:
            assert await turn(each) == {"end": "budget_exhausted"}
        assert here.kernel.usage.spent(MEMBER) == Decimal("0.3")
        await here.kernel.finish(runs[1], CLEAN)
        (outcome,) = await here.bodies(runs[1].terms.thread, names.OUTCOME)
        assert (outcome["budget_kind"], outcome["spent_usd"]) == ("usd", 0)
        assert outcome["summary"].endswith(f"allows to {MEMBER} (daily_cost_usd).")
        assert "reply" in await turn(neds)

    at_work(tmp_path, talk, provider=cents(tmp_path))


def test_the_operators_runs_have_no_ceiling_together(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        for _ in range(50):
            take(here, OPERATOR)
        assert here.kernel.usage.refusals(OPERATOR, here.kernel.tier_of(OPERATOR)) == []

    at_work(tmp_path, talk)


def test_a_ceiling_of_none_at_all_stops_every_start(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_cost_usd=0, daily_runs=0, concurrent_runs=0)
        found = here.kernel.usage.refusals(MEMBER, here.kernel.tier_of(MEMBER))
        assert [type(each) for each in found] == [
            WorkConcurrencyExceeded,
            WorkDailyCountExceeded,
            WorkDailyCapExceeded,
        ]

    at_work(tmp_path, talk)


# --- when it is counted ---


@pytest.mark.parametrize("ceiling", ["concurrent_runs", "daily_runs"])
def test_of_twenty_starts_at_once_exactly_as_many_get_through_as_may(tmp_path: Path, ceiling: str) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", **{"concurrent_runs": 99, "daily_runs": 99, ceiling: 3})
        transports = unconfining(here)
        starts = [transports.start(ADMINISTRATOR, THEIRS) for _ in range(20)]
        answers = await asyncio.gather(*starts, return_exceptions=True)
        error = WorkConcurrencyExceeded if ceiling == "concurrent_runs" else WorkDailyCountExceeded
        assert sum(isinstance(answer, error) for answer in answers) == 17
        assert len(here.kernel.live) == 3
        assert len(await here.store.select(kind=names.LOOP)) == 3
        await transports.stop()

    at_work(tmp_path, talk, provider=Hanging())


def test_a_run_gives_its_place_back_when_it_ends_and_its_start_still_counts(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_runs=2)
        transports = unconfining(here)
        for _ in range(2):
            await transports.start(ADMINISTRATOR, THEIRS)
            await asyncio.gather(*transports._runs)
        with pytest.raises(WorkDailyCountExceeded):
            await transports.start(ADMINISTRATOR, THEIRS)

    at_work(tmp_path, talk, provider=None)


@pytest.mark.parametrize("refusal", ["layer", "log"])
def test_a_start_that_is_refused_uses_nothing_up(tmp_path: Path, refusal: str) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_runs=1)
        transports = unconfining(here)
        if refusal == "log":
            here.store.full_for = names.LOOP
        else:
            await here.configure(MEMBERS, "sandboxed")
        error = {"layer": IsolationUnavailable, "log": StoreUnavailable}[refusal]
        for _ in range(3):
            with pytest.raises(error):
                await transports.start(ADMINISTRATOR, THEIRS)
        here.store.full_for = None
        await here.configure(MEMBERS, "in_process")
        await transports.start(ADMINISTRATOR, THEIRS)
        await transports.stop()

    at_work(tmp_path, talk)


def test_a_start_whose_member_is_revoked_meanwhile_opens_no_run_and_uses_nothing_up(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.kernel.members.add("mia", agent=False, tier="trial", by=OPERATOR)
        await here.tier("trial", daily_runs=1)
        transports = unconfining(here)
        start, revocation = await asyncio.gather(
            transports.start(MIA, THEIRS),
            here.kernel.revoke_member("mia", OPERATOR),
            return_exceptions=True,
        )
        assert isinstance(start, TokenRevoked)
        assert not isinstance(revocation, BaseException)
        assert here.kernel.live == {}
        assert await here.store.select(kind=names.LOOP) == []
        assert here.kernel.usage.refusals(MEMBER, here.kernel.tier_of(MEMBER)) == []

    at_work(tmp_path, talk)


def test_a_place_is_given_back_once_however_often_it_is_released(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_runs=2, concurrent_runs=1)
        place = take(here)
        place.release(started=False)
        place.release(started=False)
        place.release()
        take(here).release()
        take(here)
        with pytest.raises(WorkConcurrencyExceeded):
            take(here)
        found = here.kernel.usage.refusals(MEMBER, here.kernel.tier_of(MEMBER))
        assert [error.fields.get("started") for error in found] == [None, 2]

    at_work(tmp_path, talk)


def test_a_preview_takes_no_place(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_runs=1)
        transports = unconfining(here)
        for _ in range(3):
            assert (await transports.preview(ADMINISTRATOR, THEIRS))["would_start"]
        await transports.start(ADMINISTRATOR, THEIRS)
        said = await transports.preview(ADMINISTRATOR, THEIRS)
        assert (said["would_start"], said["refusals"][-1]["code"]) == (False, "WORK_DAILY_COUNT_EXCEEDED")
        await transports.stop()

    at_work(tmp_path, talk)


# --- days ---


def test_a_daemon_counts_anew_from_the_log_what_the_day_has_used_up(tmp_path: Path) -> None:
    day = Day()
    provider = cents(tmp_path)

    async def run() -> None:
        async with instance(tmp_path, now=day, provider=provider) as here:
            await here.configure(MEMBERS, "in_process")
            await here.tier("trial", daily_runs=3, daily_cost_usd=9, default_budget_usd=9)
            await spend(here, turns=2)
            await spend(here, turns=1)
            take(here).release()
        # A start that came to no run has left nothing in the log, and one that died open has its outcome by then.
        async with instance(tmp_path, now=day, provider=provider) as again:
            assert again.kernel.usage.spent(MEMBER) == Decimal("0.3")
            take(again).release()
            with pytest.raises(WorkDailyCountExceeded) as error:
                take(again)
            assert error.value.fields["started"] == 3
        day.pass_by(hours=2)
        async with instance(tmp_path, now=day, provider=provider) as tomorrow:
            assert tomorrow.kernel.usage.spent(MEMBER) == 0
            take(tomorrow)

    asyncio.run(run())


def test_a_run_that_died_with_its_daemon_counts_with_what_it_had_cost(tmp_path: Path) -> None:
    day = Day()

    async def run() -> None:
        async with instance(tmp_path, now=day, provider=cents(tmp_path)) as here:
            await turn(await here.open())
        async with instance(tmp_path, now=day) as again:
            await again.kernel.close_orphans()
        async with instance(tmp_path, now=day) as last:
            assert last.kernel.usage.spent(MEMBER) == Decimal("0.1")

    asyncio.run(run())


def test_a_day_that_ends_gives_new_starts_and_new_money_and_no_new_places(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_runs=2, daily_cost_usd=0.1, concurrent_runs=1)
        await spend(here)
        take_before = here.kernel.usage.refusals(MEMBER, here.kernel.tier_of(MEMBER))
        assert [type(each) for each in take_before] == [WorkDailyCapExceeded]
        day.pass_by(seconds=TO_MIDNIGHT - 1)
        assert len(here.kernel.usage.refusals(MEMBER, here.kernel.tier_of(MEMBER))) == 1
        day.pass_by(seconds=1)
        place = take(here)
        with pytest.raises(WorkConcurrencyExceeded):
            take(here)
        place.release()
        take(here)

    at_work(tmp_path, talk, provider=cents(tmp_path))


def test_what_a_run_costs_after_midnight_is_the_new_days(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        opened = await here.open()
        await turn(opened)
        day.pass_by(hours=2)
        await turn(opened)
        assert here.kernel.usage.spent(MEMBER) == Decimal("0.1")

    at_work(tmp_path, talk, provider=cents(tmp_path))


def test_a_start_taken_back_after_midnight_is_taken_from_the_day_it_was_counted_on(tmp_path: Path) -> None:
    async def talk(here: Instance, day: Day) -> None:
        await here.tier("trial", daily_runs=1)
        place = take(here)
        day.pass_by(hours=2)
        place.release(started=False)
        take(here).release()
        with pytest.raises(WorkDailyCountExceeded):
            take(here)

    at_work(tmp_path, talk)


def test_a_clock_that_jumps_back_gives_nobody_a_day_twice(tmp_path: Path) -> None:
    day = Day()

    async def run() -> None:
        async with instance(tmp_path, now=day) as here:
            await here.configure(MEMBERS, "in_process")
            await here.tier("trial", daily_runs=1, concurrent_runs=9)
            take(here)
            await here.open()
            day.pass_by(hours=2)
            take(here)
            day.pass_by(hours=-2)
            with pytest.raises(WorkDailyCountExceeded):
                take(here)
            day.pass_by(hours=2)
            with pytest.raises(WorkDailyCountExceeded):
                take(here)
        # A daemon that starts with the clock behind takes what was started after its today for today's.
        day.pass_by(days=-3)
        async with instance(tmp_path, now=day) as again:
            with pytest.raises(WorkDailyCountExceeded):
                take(again)

    asyncio.run(run())


@pytest.mark.claim("B2")
def test_what_a_run_begun_yesterday_cost_is_no_less_after_a_restart(tmp_path: Path) -> None:
    day = Day()

    async def run() -> None:
        async with instance(tmp_path, now=day, provider=cents(tmp_path)) as here:
            await here.tier("trial", daily_cost_usd=0.2, daily_runs=1)
            opened = await here.open()
            await turn(opened)
            day.pass_by(hours=2)
            await turn(opened)
            await here.kernel.finish(opened, CLEAN)
        async with instance(tmp_path, now=day) as again:
            # All of it counts where the run ended: the log does not say what of it was yesterday's.
            assert again.kernel.usage.spent(MEMBER) == Decimal("0.2")
            found = again.kernel.usage.refusals(MEMBER, again.kernel.tier_of(MEMBER))
            assert [type(each) for each in found] == [WorkDailyCapExceeded]
        day.pass_by(days=1)
        async with instance(tmp_path, now=day) as tomorrow:
            assert tomorrow.kernel.usage.spent(MEMBER) == 0

    asyncio.run(run())


@pytest.mark.claim("B2")
def test_what_is_dated_later_than_today_counts_today_as_well_and_on_its_own_day(tmp_path: Path) -> None:
    day = Day()

    async def run() -> None:
        async with instance(tmp_path, now=day, provider=cents(tmp_path)) as here:
            await here.configure(MEMBERS, "in_process")
            await here.tier("trial", daily_cost_usd=0.1, daily_runs=1)
            day.pass_by(days=3)
            await spend(here)
        day.pass_by(days=-3)
        async with instance(tmp_path, now=day) as again:
            for passed, refused in ((0, 2), (1, 0), (2, 2), (1, 0)):
                day.pass_by(days=passed)
                found = again.kernel.usage.refusals(MEMBER, again.kernel.tier_of(MEMBER))
                assert len(found) == refused, day.now
                assert again.kernel.usage.spent(MEMBER) == (Decimal("0.1") if refused else 0)

    asyncio.run(run())


def test_more_runs_than_a_page_of_the_log_are_all_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spl.kernel.usage._PAGE", 2)
    day = Day()

    async def run() -> None:
        async with instance(tmp_path, now=day) as here:
            for _ in range(9):
                await here.open()
        async with instance(tmp_path, now=day) as again:
            await again.tier("trial", daily_runs=9)
            with pytest.raises(WorkDailyCountExceeded):
                take(again)

    asyncio.run(run())


def unconfining(here: Instance) -> Transports:
    """Give the transports of a host that can confine nobody."""
    refusal = LayerError("network", expected="loopback alone", observed="eth0", remedy="mend it")
    return Transports(here.kernel, refusal, credential_grace=30, run_grace=10)
