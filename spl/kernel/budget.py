"""What one run has used up, and what is left of its ceilings: turns, tokens, money."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from spl.inference.scale import Scale
from spl.kernel.names import SANDBOXED
from spl.kernel.outcome import Outcome

if TYPE_CHECKING:
    from spl.inference.broker import Ceiling
    from spl.inference.model import Usage as Taken
    from spl.kernel.terms import Terms
    from spl.kernel.usage import Usage


@dataclass(slots=True)
class Budget:
    """A run's account with the broker; `turns` are replies on record, tokens and money what was paid for."""

    terms: Terms
    usage: Usage
    turns: int = 0
    tokens: int = 0
    spent_usd: Decimal = Decimal(0)
    scale: Scale = field(default_factory=Scale)

    def reserve(self, usd: Decimal) -> None:
        """Set aside what a call can cost; a run makes one at a time, so it is for the runs beside it that it counts."""
        self.usage.reserve(self.terms.actor, usd)

    def settle(self, reserved: Decimal, cost_usd: Decimal, usage: Taken) -> None:
        """Count what a model call took: its provider is paid, whatever becomes of the reply."""
        self.tokens += usage.input_tokens + usage.output_tokens
        self.spent_usd += cost_usd
        self.usage.settle(self.terms.actor, reserved, cost_usd)

    async def freed(self) -> bool:
        """Wait until a run beside it settles a call; false at once if none has one, or the day has no ceiling."""
        return self.terms.daily_cost_usd is not None and await self.usage.freed(self.terms.actor)

    @property
    def bounded(self) -> bool:
        """Whether a ceiling of money must hold: a sandboxed run's credential carries one."""
        return self.terms.transport == SANDBOXED

    @property
    def left_tokens(self) -> int | None:
        """How many tokens the run may still use, None without a ceiling."""
        most = self.terms.ceilings.token_budget
        return None if most is None else max(most - self.tokens, 0)

    @property
    def left_usd(self) -> Decimal | None:
        """How much the run may still cost, None without a ceiling; runs of one actor side by side share its day."""
        lefts = (self._left_of_run(), self._left_of_day())
        return min((left for left in lefts if left is not None), default=None)

    def ceiling(self) -> Outcome | None:
        """Give the outcome of a ceiling that another turn would pass; turns are counted here, not by the loop."""
        most = self.terms.ceilings.max_turns
        if most is not None and self.turns >= most:
            return Outcome("max_turns", f"The run used its {most} turns (max_turns).")
        if self.left_tokens == 0:
            tokens = self.terms.ceilings.token_budget
            return Outcome("budget_exhausted", f"The run used its {tokens} tokens (token_budget).", "tokens")
        return None

    def spent(self) -> Outcome:
        """Give the outcome of a run whose money does not pay for another call."""
        left, whole = self._tightest()
        if left <= 0:
            return Outcome("budget_exhausted", f"Nothing is left of {whole}.", "usd")
        why = f"The {_money(left)} USD left of {whole} may not pay for another model call."
        return Outcome("budget_exhausted", why, "usd")

    def cut_off(self, bound: Ceiling) -> Outcome:
        """Give the outcome of a run whose last reply had less room than others, and was cut off there."""
        if bound == "tokens":
            whole = f"the run's {self.terms.ceilings.token_budget} tokens (token_budget)"
        else:
            _, whole = self._tightest()
        why = f"The last reply was cut off where {whole} would have been passed."
        return Outcome("budget_exhausted", why, bound)

    def _tightest(self) -> tuple[Decimal, str]:
        """Give what is left of whichever ceiling of money has less, and which that is."""
        of_run, of_day = self._left_of_run(), self._left_of_day()
        if of_run is not None and (of_day is None or of_run <= of_day):
            return of_run, f"the run's budget of {self.terms.ceilings.budget_usd} USD (budget_usd)"
        whole = (
            f"the {self.terms.daily_cost_usd} USD a day that its tier allows to {self.terms.actor} "
            "(daily_cost_usd)"
        )
        return of_day or Decimal(0), whole

    def _left_of_run(self) -> Decimal | None:
        most = self.terms.ceilings.budget_usd
        return None if most is None else most - self.spent_usd

    def _left_of_day(self) -> Decimal | None:
        most = self.terms.daily_cost_usd
        return None if most is None else self.usage.left(self.terms.actor, most)


def _money(usd: Decimal) -> str:
    """Write a sum as a person would, to a millionth of a dollar."""
    return f"{usd.quantize(Decimal('0.000001')).normalize():f}"
