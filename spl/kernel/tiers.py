"""Tiers: the ceilings each gives a run and an actor, and what of a request they leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from spl.errors import InvalidBody, MissingField

if TYPE_CHECKING:
    from collections.abc import Mapping

_N = TypeVar("_N", int, float, Decimal)


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier; None is no ceiling. The first four hold for each run, the rest for all runs of one actor."""

    name: str
    max_turns: int | None
    wall_clock_secs: float | None
    token_budget: int | None
    default_budget_usd: Decimal
    daily_cost_usd: Decimal | None
    daily_runs: int | None
    concurrent_runs: int | None

    def wire(self) -> dict[str, object]:
        """Give the tier as it stands in an HTTP answer."""
        return {
            "object": "tier",
            "tier": self.name,
            **{name: _plain(getattr(self, name)) for name in _BOUNDS},
        }


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
            "budget_usd": _plain(self.budget_usd),
        }


TRIAL = "trial"
"""The tier of an actor of whom nothing is said."""

OPERATOR = "operator"
"""The tier of the instance's own operator: no record can give it."""

SHIPPED = {
    tier.name: tier
    for tier in (
        Tier(TRIAL, 5, 120, 20_000, Decimal("0.25"), Decimal("0.50"), 10, 1),
        Tier("paid", 16, 600, 200_000, Decimal("1.00"), Decimal(5), 200, 5),
        Tier("team", 50, 1800, 1_000_000, Decimal("2.00"), Decimal(50), 2000, 20),
        Tier(OPERATOR, None, None, None, Decimal("5.00"), None, None, None),
    )
}
"""The tiers as they are until a record changes a ceiling."""

NAMES = tuple(SHIPPED)
"""Every tier whose ceilings and profile configuration may change."""

GIVEN = tuple(name for name in NAMES if name != OPERATOR)
"""The tiers that an actor may be given."""

# Each ceiling's bounds, and whether it is a whole number; those of a run are what a start may ask for, at most.
_BOUNDS: dict[str, tuple[float, float, bool]] = {
    "max_turns": (1, 100_000, True),
    "wall_clock_secs": (1, 604_800, False),
    "token_budget": (1, 10**12, True),
    "default_budget_usd": (0, 1_000_000, False),
    "daily_cost_usd": (0, 1_000_000, False),
    "daily_runs": (0, 1_000_000, True),
    "concurrent_runs": (0, 100_000, True),
}


def check(body: Mapping[str, Any]) -> None:
    """Refuse a tier record that would say nothing or something else than its writer meant.

    Null gives a ceiling the value back that it is shipped with. Raises `MissingField` or `InvalidBody`.
    """
    if "tier" not in body:
        raise MissingField("a tier record needs the field 'tier'")
    if body["tier"] not in NAMES:
        raise InvalidBody(f"the tier {body['tier']!r} is not one of {', '.join(NAMES)}")
    changed = set(body) - {"kind", "tier"}
    if not changed:
        raise MissingField(f"a tier record needs a ceiling to change: {', '.join(_BOUNDS)}")
    for name in sorted(changed):
        if name not in _BOUNDS:
            raise InvalidBody(f"a tier has no ceiling {name!r}: it has {', '.join(_BOUNDS)}")
        if body[name] is not None and not _is_ceiling(name, body[name]):
            least, most, whole = _BOUNDS[name]
            what = "a whole number" if whole else "a number"
            raise InvalidBody(f"the ceiling {name!r} must be {what} from {least} to {most}, or null")


def changed(tier: Tier, body: Mapping[str, Any]) -> Tier:
    """Give a tier as a record changes it; what is no ceiling in it is passed over."""
    shipped = SHIPPED[tier.name]
    changes: dict[str, Any] = {}
    for name in _BOUNDS:
        if name not in body:
            continue
        if body[name] is None:
            changes[name] = getattr(shipped, name)
        elif _is_ceiling(name, body[name]):
            said = body[name]
            changes[name] = Decimal(str(said)) if name.endswith("_usd") else said
    return replace(tier, **changes)


def ceilings(
    tier: Tier,
    *,
    max_turns: int | None,
    wall_clock_secs: float | None,
    budget_usd: Decimal | None,
    left_usd: Decimal | None,
    sandboxed: bool,
) -> Ceilings:
    """Give the smaller of what is asked and what the tier allows; `left_usd` is what it leaves of the actor's day.

    A sandboxed run is never without a budget: the broker refuses a credential that has no ceiling. In process the
    operator may go without.
    """
    if tier.name == OPERATOR:
        budget = tier.default_budget_usd if sandboxed and budget_usd is None else budget_usd
    else:
        budget = tier.default_budget_usd if budget_usd is None else min(budget_usd, tier.default_budget_usd)
    return Ceilings(
        _least(max_turns, tier.max_turns),
        _least(wall_clock_secs, tier.wall_clock_secs),
        tier.token_budget,
        _least(budget, left_usd),
    )


def _plain(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else value


def _is_ceiling(name: str, value: object) -> bool:
    least, most, whole = _BOUNDS[name]
    if type(value) is not int and (whole or type(value) is not float):
        return False
    return least <= value <= most


def _least(one: _N | None, other: _N | None) -> _N | None:
    return min((value for value in (one, other) if value is not None), default=None)
