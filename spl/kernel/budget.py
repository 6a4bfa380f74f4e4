"""What one run has used up, and what is left of its ceilings: turns, tokens, money."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from decimal import ROUND_UP, Decimal
from typing import TYPE_CHECKING

from spl.inference.broker import CalledOff
from spl.inference.model import Usage as Taken
from spl.inference.scale import Scale
from spl.kernel.names import SANDBOXED
from spl.kernel.outcome import Outcome
from spl.kernel.usage import money

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from spl.inference.broker import Ceiling
    from spl.kernel.terms import Terms
    from spl.kernel.usage import Usage


@dataclass(slots=True)
class Budget:
    """A run's account with the broker; `turns` are replies on record, tokens and money what was paid for.

    One that is `called_off` pays for no further call.
    """

    terms: Terms
    usage: Usage
    turns: int = 0
    tokens: int = 0
    spent_usd: Decimal = Decimal(0)
    scale: Scale = field(default_factory=Scale)
    called_off: bool = False
    _reserved: Decimal | None = None
    _closed: bool = False

    def queue(self) -> AbstractAsyncContextManager[object]:
        """Give the wait for one's turn to reserve: of runs that share a day, none is passed over by smaller calls."""
        return nullcontext() if self.terms.daily_cost_usd is None else self.usage.queue(self.terms.actor)

    def reserve(self, usd: Decimal) -> None:
        """Set aside what a call can cost; a run makes one at a time, so it is for the runs beside it that it counts.

        Raises CalledOff once it is.
        """
        if self.called_off:
            raise CalledOff
        self._reserved = usd
        self.usage.reserve(self.terms.actor, usd)

    def settle(self, reserved: Decimal, cost_usd: Decimal, usage: Taken) -> None:
        """Count what a model call took: its provider is paid, whatever becomes of the reply."""
        if self._closed:
            return
        self._reserved = None
        self.tokens += usage.input_tokens + usage.output_tokens
        self.spent_usd += cost_usd
        self.usage.settle(self.terms.actor, reserved, cost_usd)

    def close(self) -> bool:
        """Settle a call that is under way as the most it can have cost; gives whether there was one.

        Called when the run ends: its outcome says what it cost, and whatever still comes of that call changes nothing.
        """
        reserved = self._reserved
        if reserved is not None:
            self.settle(reserved, reserved, Taken())
        self._closed = True
        return reserved is not None

    async def freed(self) -> bool:
        """Wait until a run beside it settles a call, where that may leave more; false at once where it cannot."""
        of_run, of_day = self._left_of_run(), self._left_of_day()
        if of_day is None or (of_run is not None and of_run <= of_day):
            return False
        return await self.usage.freed(self.terms.actor)

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

    def spent(self, needed_usd: Decimal) -> Outcome:
        """Give the outcome of a run whose money does not pay for a call, which needs at least so much."""
        left, whole = self._tightest()
        if left <= 0:
            return Outcome("budget_exhausted", f"Nothing is left of {whole}.", "usd")
        call = "another model call" if self.turns else "a model call"
        # Upwards, for the other way it might look as if it were enough.
        needed = money(needed_usd, ROUND_UP)
        why = f"The {money(left)} USD left of {whole} may not pay for {call}, which can cost {needed} USD."
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
        if of_run is not None and (of_day is None or of_run < of_day):
            return (
                of_run,
                f"the run's budget of {money(self.terms.ceilings.budget_usd or Decimal(0))} USD (budget_usd)",
            )
        most = money(self.terms.daily_cost_usd or Decimal(0))
        whole = f"the {most} USD a day that its tier allows to {self.terms.actor} (daily_cost_usd)"
        return of_day or Decimal(0), whole

    def _left_of_run(self) -> Decimal | None:
        most = self.terms.ceilings.budget_usd
        return None if most is None else most - self.spent_usd

    def _left_of_day(self) -> Decimal | None:
        most = self.terms.daily_cost_usd
        return None if most is None else self.usage.left(self.terms.actor, most)
