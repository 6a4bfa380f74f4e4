"""An account with the broker that a test can look into."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from decimal import Decimal
from typing import TYPE_CHECKING

from spl.inference.scale import Scale

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from spl.inference.model import Usage


class Purse:
    """An account of so many US dollars, None without a ceiling; what is `held` is reserved for others."""

    def __init__(
        self, usd: str | None = None, *, tokens: int | None = None, bounded: bool = False, held: str = "0"
    ) -> None:
        self.scale = Scale()
        self.bounded = bounded
        self.left_tokens = tokens
        self.held = Decimal(held)
        self.settled: list[tuple[Decimal, Decimal, Usage]] = []
        self.reserved: list[Decimal] = []
        self.waited = asyncio.Event()
        self._usd = None if usd is None else Decimal(usd)
        self._freed = asyncio.Event()

    @property
    def left_usd(self) -> Decimal | None:
        """How much is left."""
        spent = sum((cost for _, cost, _ in self.settled), Decimal(0))
        return None if self._usd is None else self._usd - self.held - spent

    def queue(self) -> AbstractAsyncContextManager[object]:
        """Wait for nobody."""
        return nullcontext()

    def reserve(self, usd: Decimal) -> None:
        """Put down what is reserved."""
        self.reserved.append(usd)

    def settle(self, reserved: Decimal, cost_usd: Decimal, usage: Usage) -> None:
        """Put down what was taken."""
        self.settled.append((reserved, cost_usd, usage))

    async def freed(self) -> bool:
        """Wait until what others hold is given back."""
        if not self.held:
            return False
        self.waited.set()
        await self._freed.wait()
        return True

    def free(self, held: str = "0") -> None:
        """Have others hold less."""
        self.held = Decimal(held)
        self._freed.set()
