from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import InvalidBody, KindReserved, MissingField, ScopeDenied, SplError
from spl.kernel import names
from spl.kernel.tiers import SHIPPED, Tier, ceilings
from spl.records.record import Draft
from tests.kernel.instance import ADMINISTRATOR, MEMBER, MIA, Instance, instance
from tests.kernel.instance import OPERATOR as OWNER

if TYPE_CHECKING:
    from pathlib import Path

OPERATOR, TRIAL = SHIPPED["operator"], SHIPPED["trial"]


def budget(tier: Tier, asked: str | None, *, sandboxed: bool) -> Decimal | None:
    amount = None if asked is None else Decimal(asked)
    return ceilings(
        tier, max_turns=None, wall_clock_secs=None, budget_usd=amount, left_usd=None, sandboxed=sandboxed
    ).budget_usd


@pytest.mark.claim("B1")
@pytest.mark.parametrize(("tier", "default"), [(TRIAL, "0.25"), (OPERATOR, "5.00")])
def test_a_sandboxed_run_without_a_budget_gets_its_tiers_default(tier: Tier, default: str) -> None:
    assert budget(tier, None, sandboxed=True) == Decimal(default)


@pytest.mark.claim("B3")
def test_the_operators_run_in_process_goes_without_a_budget() -> None:
    assert budget(OPERATOR, None, sandboxed=False) is None
    assert budget(TRIAL, None, sandboxed=False) == Decimal("0.25")


@pytest.mark.parametrize("sandboxed", [True, False])
@pytest.mark.parametrize(
    ("tier", "asked", "given"),
    [(TRIAL, "9", "0.25"), (TRIAL, "0.1", "0.1"), (TRIAL, "0", "0"), (OPERATOR, "9", "9")],
)
def test_a_request_narrows_a_members_budget_and_never_widens_it(
    tier: Tier, asked: str, given: str, sandboxed: bool
) -> None:
    assert budget(tier, asked, sandboxed=sandboxed) == Decimal(given)


def test_turns_and_time_are_the_least_of_both_sides() -> None:
    low = ceilings(TRIAL, max_turns=2, wall_clock_secs=0.5, budget_usd=None, left_usd=None, sandboxed=True)
    high = ceilings(
        TRIAL, max_turns=99, wall_clock_secs=9999.0, budget_usd=None, left_usd=None, sandboxed=True
    )
    none = ceilings(
        OPERATOR, max_turns=None, wall_clock_secs=None, budget_usd=None, left_usd=None, sandboxed=True
    )
    assert (low.max_turns, low.wall_clock_secs) == (2, 0.5)
    assert (high.max_turns, high.wall_clock_secs, high.token_budget) == (5, 120, 20_000)
    assert (none.max_turns, none.wall_clock_secs, none.token_budget) == (None, None, None)


# --- the contract's table, and records that change it ---

USD = Decimal


def test_the_tiers_are_shipped_as_the_contract_says() -> None:
    assert [tuple(tier.wire().values())[1:] for tier in SHIPPED.values()] == [
        ("trial", 5, 120, 20_000, 0.25, 0.50, 10, 1),
        ("paid", 16, 600, 200_000, 1.00, 5.0, 200, 5),
        ("team", 50, 1800, 1_000_000, 2.00, 50.0, 2000, 20),
        ("operator", None, None, None, 5.00, None, None, None),
    ]
    assert list(SHIPPED["trial"].wire())[2:] == [
        "max_turns",
        "wall_clock_secs",
        "token_budget",
        "default_budget_usd",
        "daily_cost_usd",
        "daily_runs",
        "concurrent_runs",
    ]


def test_a_changed_ceiling_holds_for_the_next_run_and_one_that_goes_on_keeps_its_own(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            first = await here.open()
            await here.tier(
                "trial", max_turns=9, wall_clock_secs=7.5, token_budget=11, default_budget_usd=0.1
            )
            second = await here.open()
            assert (await here.kernel.rows.row(first.terms.thread))["max_turns"] == 5
            assert first.terms.ceilings.wire() == {
                "max_turns": 5,
                "wall_clock_secs": 120,
                "token_budget": 20_000,
                "budget_usd": 0.25,
            }
            assert second.terms.ceilings.wire() == {
                "max_turns": 9,
                "wall_clock_secs": 7.5,
                "token_budget": 11,
                "budget_usd": 0.1,
            }
            assert second.terms.ceilings.budget_usd == USD("0.1")
        async with instance(tmp_path) as again:
            assert again.kernel.tier_of(MEMBER).max_turns == 9

    asyncio.run(run())


def test_what_one_record_changes_another_leaves_and_null_gives_back_what_was_shipped(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.tier("paid", daily_runs=0, daily_cost_usd=7)
            await here.tier("paid", concurrent_runs=3)
            await here.tier("operator", max_turns=2)
            await here.tier("operator", max_turns=None)
            await here.tier("paid", daily_runs=None)
            paid = {tier.name: tier for tier in here.kernel.config.tiers()}["paid"]
            assert (paid.daily_runs, paid.daily_cost_usd, paid.concurrent_runs) == (200, USD(7), 3)
            assert here.kernel.tier_of(OWNER) == SHIPPED["operator"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"max_turns": 5}, MissingField),
        ({"tier": "trial"}, MissingField),
        ({"tier": "gold", "max_turns": 5}, InvalidBody),
        ({"tier": ["trial"], "max_turns": 5}, InvalidBody),
        ({"tier": None, "max_turns": 5}, InvalidBody),
        ({"tier": "trial", "turns": 5}, InvalidBody),
        ({"tier": "trial", "tools": ["bash"]}, InvalidBody),
        ({"tier": "trial", "transport": "in_process"}, InvalidBody),
        ({"tier": "trial", "name": "operator", "max_turns": 5}, InvalidBody),
        ({"tier": "trial", "max_turns": 0}, InvalidBody),
        ({"tier": "trial", "max_turns": 2.0}, InvalidBody),
        ({"tier": "trial", "max_turns": True}, InvalidBody),
        ({"tier": "trial", "max_turns": "5"}, InvalidBody),
        ({"tier": "trial", "max_turns": 100_001}, InvalidBody),
        ({"tier": "trial", "wall_clock_secs": 0.5}, InvalidBody),
        ({"tier": "trial", "token_budget": -1}, InvalidBody),
        ({"tier": "trial", "default_budget_usd": -0.01}, InvalidBody),
        ({"tier": "trial", "daily_cost_usd": False}, InvalidBody),
        ({"tier": "trial", "daily_runs": 1.5}, InvalidBody),
        ({"tier": "trial", "concurrent_runs": [1]}, InvalidBody),
        ({"tier": "trial", "max_turns": 9, "daily_runs": -1}, InvalidBody),
    ],
)
def test_a_tier_record_that_says_something_else_than_was_meant_is_refused_and_nothing_written(
    tmp_path: Path, said: dict[str, Any], error: type[SplError]
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            with pytest.raises(error):
                await here.kernel.write(ADMINISTRATOR, tier_record(**said))
            await nothing_changed(here)

    asyncio.run(run())


@pytest.mark.claim("K5")
def test_tiers_are_the_operators_to_change(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            with pytest.raises(ScopeDenied):
                await here.kernel.write(MIA, tier_record(tier="trial", max_turns=9))
            for thread, actor in ((names.CONFIG_THREAD, OWNER), ("th_x", names.ENGINE)):
                with pytest.raises(KindReserved):
                    await here.kernel.write(
                        ADMINISTRATOR, Draft(thread, actor, "LEARN", {"kind": names.TIER, "tier": "trial"})
                    )
            await nothing_changed(here)

    asyncio.run(run())


@pytest.mark.parametrize(
    "said",
    [
        {"tier": "gold", "max_turns": 9},
        {"tier": ["trial"], "max_turns": 9},
        {"tier": "trial", "max_turns": "9"},
        {"tier": "trial", "max_turns": -1},
        {"tier": "trial", "tools": ["bash"], "name": "operator"},
        {},
    ],
)
def test_a_tier_record_in_the_log_that_could_not_be_written_now_changes_nothing(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.store.append([tier_record(**said)])
            await nothing_changed(here, records=1)

    asyncio.run(run())


def tier_record(**said: object) -> Draft:
    return Draft(names.CONFIG_THREAD, names.ENGINE, "LEARN", {"kind": names.TIER, **said})


async def nothing_changed(here: Instance, *, records: int = 0) -> None:
    assert here.kernel.config.tiers() == list(SHIPPED.values())
    assert await here.store.count() == records


# --- whose tier it is ---


def test_an_actor_has_the_tier_of_the_newest_record_and_without_one_trial(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            agent = "did:sync:agent:mia"
            assert here.kernel.tier_of(MEMBER) == SHIPPED["trial"]
            for tier in ("team", "paid", "team"):
                await here.give(MEMBER, tier)
                assert (await here.open()).terms.tier == tier
                assert here.kernel.tier_of(agent) == SHIPPED["trial"]
            await here.give(MEMBER, None)
            assert here.kernel.tier_of(MEMBER) == SHIPPED["trial"]
            await here.give(MEMBER, "paid")
        async with instance(tmp_path) as again:
            assert again.kernel.tier_of(MEMBER) == SHIPPED["paid"]

    asyncio.run(run())


@pytest.mark.claim("T1", "N4")
@pytest.mark.parametrize("tier", ["operator", "Team", "gold", ["team"], {"team": 1}, 3, True])
def test_no_record_makes_anyone_operator_or_what_is_no_tier(tmp_path: Path, tier: object) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            said = {"kind": names.CONFIG, "topic": "actor_tier", "actor": MEMBER, "tier": tier}
            with pytest.raises(InvalidBody):
                await here.kernel.write(
                    ADMINISTRATOR, Draft(names.CONFIG_THREAD, names.ENGINE, "LEARN", dict(said))
                )
            assert await here.store.count() == 0
            await here.give(MEMBER, "team")
            # Put into the log by hand, it says nothing: not even what the one before it said.
            await here.store.append([Draft(names.CONFIG_THREAD, names.ENGINE, "LEARN", said)])
            opened = await here.open()
            assert (opened.terms.tier, opened.terms.transport) == ("trial", "sandboxed")
            assert "bash" not in (*opened.terms.tools, *opened.terms.narrowed)

    asyncio.run(run())


@pytest.mark.parametrize("tier", ["trial", None])
def test_no_record_takes_from_the_operator_what_comes_with_the_instance(
    tmp_path: Path, tier: str | None
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            before = await here.store.count()
            with pytest.raises(InvalidBody, match="comes with the instance"):
                await here.give(OWNER, tier)
            assert await here.store.count() == before
            body = {"kind": names.CONFIG, "topic": "actor_tier", "actor": OWNER, "tier": tier}
            await here.store.append([Draft(names.CONFIG_THREAD, names.ENGINE, "LEARN", body)])
            assert here.kernel.tier_of(OWNER) == SHIPPED["operator"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"tier": "team"}, MissingField),
        ({"actor": MEMBER}, MissingField),
        ({"actor": "mia", "tier": "team"}, InvalidBody),
        ({"actor": names.ENGINE, "tier": "team"}, InvalidBody),
        ({"actor": [MEMBER], "tier": "team"}, InvalidBody),
        ({"actor": MEMBER, "tier": "team", "max_turns": 9}, InvalidBody),
    ],
)
def test_a_tier_given_to_nobody_is_refused_and_nothing_written(
    tmp_path: Path, said: dict[str, Any], error: type[SplError]
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            with pytest.raises(error):
                await here.say(topic="actor_tier", **said)
            assert await here.store.count() == 0

    asyncio.run(run())


@pytest.mark.parametrize("actor", [OWNER, MEMBER])
def test_a_tier_written_by_another_than_the_engine_says_nothing(tmp_path: Path, actor: str) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            given = {"kind": names.CONFIG, "topic": "actor_tier", "actor": MEMBER, "tier": "team"}
            raised = {"kind": names.TIER, "tier": "trial", "max_turns": 99}
            await here.store.append(
                [Draft(names.CONFIG_THREAD, actor, "LEARN", body) for body in (given, raised)]
            )
            assert here.kernel.tier_of(MEMBER) == SHIPPED["trial"]

    asyncio.run(run())
