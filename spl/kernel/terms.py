"""What is decided of a run before it begins: its terms, and what of its grant the transport withholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spl.errors import InvalidBody
from spl.tools.registry import TOOLS, Domain

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from decimal import Decimal

    from spl.kernel.tiers import Ceilings

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """What a start asks for; None leaves it to the tier."""

    goal: str
    actor: str | None = None
    model: str | None = None
    max_turns: int | None = None
    budget_usd: Decimal | None = None
    wall_clock_secs: float | None = None
    forbidden_tools: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What was decided of a run; none of it changes. Only a sandboxed run has a profile.

    `tools` is the run's reach, `narrowed` what it was granted and its transport withholds; `asked_by` is whoever
    started it, for `actor`; `daily_cost_usd` is what all of the actor's runs of a day may cost.
    """

    thread: str
    goal: str
    actor: str
    asked_by: str
    tier: str
    transport: str
    ceilings: Ceilings
    tools: tuple[str, ...]
    forbidden: tuple[str, ...]
    narrowed: tuple[str, ...]
    model: str
    profile: str | None
    started_at: str
    daily_cost_usd: Decimal | None = None

    def wire(self) -> Json:
        """Give what stands of the terms in an anchor and in a preview; the thread stands elsewhere."""
        return {
            "goal": self.goal,
            "actor": self.actor,
            "asked_by": self.asked_by,
            "tier": self.tier,
            "transport": self.transport,
            "profile": self.profile,
            "tools": list(self.tools),
            "forbidden_tools": list(self.forbidden),
            "narrowed": list(self.narrowed),
            "ceilings": self.ceilings.wire(),
            "model": self.model,
        }


def granted(*, host: bool) -> tuple[str, ...]:
    """Give the tools of a grant: everyone's, and with `host` those of the host too."""
    return tuple(name for name, tool in TOOLS.items() if host or not tool.host)


def asked(grant: Collection[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Give what a request leaves of a grant; raises `InvalidBody` for a tool that is not granted."""
    for name in wanted or ():
        if name not in grant:
            raise InvalidBody(f"the tool {name!r} is not granted: there are {', '.join(sorted(grant))}")
    return tuple(name for name in grant if wanted is None or name in wanted)


def narrow(tools: Sequence[str], *, sandboxed: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give the reach that a transport leaves, and what it withholds, sorted: a separate process has no handles."""
    withheld = {name for name in tools if sandboxed and TOOLS[name].domain is Domain.KERNEL_TRUST}
    return tuple(name for name in tools if name not in withheld), tuple(sorted(withheld))


def forbidden(wanted: Sequence[str]) -> tuple[str, ...]:
    """Give the run's own clamp; a name that is no tool forbids nothing, which its writer did not mean."""
    for name in wanted:
        if name not in TOOLS:
            raise InvalidBody(f"the tool {name!r} cannot be forbidden: there are {', '.join(sorted(TOOLS))}")
    return tuple(sorted(set(wanted)))
