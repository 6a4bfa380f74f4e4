from __future__ import annotations

from decimal import Decimal

import pytest

from spl.kernel.tiers import OPERATOR, TRIAL, Tier, ceilings, tier_of

OP = "did:sync:user:op"


def budget(tier: Tier, asked: str | None, *, sandboxed: bool) -> Decimal | None:
    amount = None if asked is None else Decimal(asked)
    return ceilings(
        tier, max_turns=None, wall_clock_secs=None, budget_usd=amount, sandboxed=sandboxed
    ).budget_usd


@pytest.mark.parametrize("actor", ["did:sync:user:oP", "did:sync:user:op2", "did:sync:agent:op", ""])
def test_only_the_instances_own_operator_is_operator(actor: str) -> None:
    assert tier_of(OP, OP) is OPERATOR
    assert tier_of(actor, OP) is TRIAL


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
    low = ceilings(TRIAL, max_turns=2, wall_clock_secs=0.5, budget_usd=None, sandboxed=True)
    high = ceilings(TRIAL, max_turns=99, wall_clock_secs=9999.0, budget_usd=None, sandboxed=True)
    none = ceilings(OPERATOR, max_turns=None, wall_clock_secs=None, budget_usd=None, sandboxed=True)
    assert (low.max_turns, low.wall_clock_secs) == (2, 0.5)
    assert (high.max_turns, high.wall_clock_secs, high.token_budget) == (5, 120, 20_000)
    assert (none.max_turns, none.wall_clock_secs, none.token_budget) == (None, None, None)
