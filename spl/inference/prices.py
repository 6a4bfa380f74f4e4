"""What models cost: by the settings, else by the list that genai-prices ships; nothing is ever looked up elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from spl.inference.model import Usage

_MILLION = Decimal(1_000_000)


class Price(Protocol):
    """The price of one model."""

    def cost(self, usage: Usage) -> Decimal:
        """Give what a call that takes this costs, in US dollars."""
        ...


@dataclass(frozen=True, slots=True)
class Flat:
    """US dollars for a million tokens of input and of output, and of input that comes from the provider's cache."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None

    @classmethod
    def of(cls, input: float, output: float, cached: float | None) -> Flat:  # noqa: A002 - the field's own name
        """Give the price that was written as these numbers."""
        return cls(_exact(input), _exact(output), None if cached is None else _exact(cached))

    def cost(self, usage: Usage) -> Decimal:
        """Give what a call that takes this costs, in US dollars."""
        cached = self.input if self.cached is None else self.cached
        fresh = usage.input_tokens - usage.cached_tokens
        return (
            fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output
        ) / _MILLION


def _exact(written: float) -> Decimal:
    # By way of what was written: 0.1 is no binary fraction.
    return Decimal(str(written))


FREE = Flat(Decimal(0), Decimal(0))


class Listed:
    """A model's price as genai-prices has it for a provider, that with tiers by length and its discounts included."""

    def __init__(self, url: str, model: str) -> None:
        self._url = url
        self._model = model

    def cost(self, usage: Usage) -> Decimal:
        """Give what a call that takes this costs, in US dollars."""
        import genai_prices  # noqa: PLC0415 - a megabyte of prices, which a daemon without a paid provider has no use for

        taken = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
        )
        return genai_prices.calc_price(taken, self._model, provider_api_url=self._url).total_price


def listed(url: str, model: str) -> Price | None:
    """Give the price of a model at the provider that answers under this URL, or None if the list does not have it."""
    price = Listed(url, model)
    try:
        price.cost(Usage(1, 1))
    except LookupError:
        return None
    return price
