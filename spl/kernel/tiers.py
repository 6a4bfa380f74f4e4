"""Tiers: the ceilings each gives a run, and what of a request they leave."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

_N = TypeVar("_N", int, float)


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier; None is no ceiling."""

    name: str
    max_turns: int | None
    wall_clock_secs: int | None
    token_budget: int | None
    default_budget_usd: Decimal


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What one run may use: turns, seconds, tokens and US dollars. A request only narrows its tier's."""

    max_turns: int | None
    wall_clock_secs: float | None
    token_budget: int | None
    budget_usd: Decimal | None

    def wire(self) -> dict[str, object]:
        """Give the ceilings as they stand in an anchor and a contract."""
        return {
            "max_turns": self.max_turns,
            "wall_clock_secs": self.wall_clock_secs,
            "token_budget": self.token_budget,
            "budget_usd": None if self.budget_usd is None else float(self.budget_usd),
        }


NAMES = ("trial", "paid", "team", "operator")
"""Every tier that configuration may name."""

TRIAL = Tier("trial", 5, 120, 20_000, Decimal("0.25"))
OPERATOR = Tier("operator", None, None, None, Decimal("5.00"))


def tier_of(actor: str, operator: str) -> Tier:
    """Give an actor's tier: only the instance's own operator is operator, and an unknown actor is trial."""
    return OPERATOR if actor == operator else TRIAL


def ceilings(
    tier: Tier,
    *,
    max_turns: int | None,
    wall_clock_secs: float | None,
    budget_usd: Decimal | None,
    sandboxed: bool,
) -> Ceilings:
    """Give the smaller of what is asked and what the tier allows.

    A sandboxed run is never without a budget: the broker refuses a credential that has no ceiling. In process the
    operator may go without.
    """
    if tier is OPERATOR:
        budget = tier.default_budget_usd if sandboxed and budget_usd is None else budget_usd
    else:
        budget = tier.default_budget_usd if budget_usd is None else min(budget_usd, tier.default_budget_usd)
    return Ceilings(
        _least(max_turns, tier.max_turns),
        _least(wall_clock_secs, tier.wall_clock_secs),
        tier.token_budget,
        budget,
    )


def _least(one: _N | None, other: _N | None) -> _N | None:
    return min((value for value in (one, other) if value is not None), default=None)
