"""What one run has used up, and what is left of its ceilings: turns, tokens, money."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from spl.kernel.outcome import Outcome

if TYPE_CHECKING:
    from spl.inference.broker import Charged
    from spl.kernel.terms import Terms
    from spl.kernel.usage import Usage


@dataclass(slots=True)
class Budget:
    """A run's account; `turns` are replies on record, tokens and money are whatever a provider was asked for."""

    terms: Terms
    usage: Usage
    turns: int = 0
    tokens: int = 0
    spent_usd: Decimal = Decimal(0)

    def charge(self, charged: Charged) -> None:
        """Count what a model call took: its provider is paid, whatever becomes of the reply."""
        used = charged.reply.usage
        self.tokens += used.input_tokens + used.output_tokens
        self.spent_usd += charged.cost_usd
        self.usage.charge(self.terms.actor, charged.cost_usd)

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
        """Give the outcome of a run with no money left."""
        left = self._left_of_run()
        if left is not None and left <= 0:
            why = f"The run's budget of {self.terms.ceilings.budget_usd} USD is spent (budget_usd)."
        else:
            why = (
                f"The {self.terms.daily_cost_usd} USD a day that its tier allows to {self.terms.actor} are spent "
                "(daily_cost_usd)."
            )
        return Outcome("budget_exhausted", why, "usd")

    def _left_of_run(self) -> Decimal | None:
        most = self.terms.ceilings.budget_usd
        return None if most is None else most - self.spent_usd

    def _left_of_day(self) -> Decimal | None:
        most = self.terms.daily_cost_usd
        return None if most is None else most - self.usage.spent(self.terms.actor)
