"""A price is what the shipped list says of a model where its provider answers, or what was written for it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from spl.inference.model import Usage
from spl.inference.prices import Flat, listed

ANTHROPIC, OPENAI = "https://api.anthropic.com", "https://api.openai.com/v1"


@pytest.mark.parametrize(
    ("url", "model", "usage", "cost"),
    [
        (ANTHROPIC, "claude-sonnet-4-5", Usage(1000, 200), "0.006"),
        (ANTHROPIC, "claude-sonnet-4-5-20250929", Usage(1000, 200), "0.006"),
        (ANTHROPIC, "claude-sonnet-4-5", Usage(1000, 200, 1000), "0.0033"),
        (OPENAI, "gpt-4o-mini", Usage(10_000, 1000), "0.0021"),
        ("https://openrouter.ai/api/v1", "openai/gpt-4o-mini", Usage(10_000, 1000), "0.0021"),
    ],
)
def test_the_list_knows_what_a_model_costs_where_it_is_asked(
    url: str, model: str, usage: Usage, cost: str
) -> None:
    price = listed(url, model)

    assert price is not None
    assert price.cost(usage) == Decimal(cost)


def test_a_long_input_costs_what_the_list_says_of_long_ones() -> None:
    price = listed(ANTHROPIC, "claude-sonnet-4-5")

    assert price is not None
    assert price.cost(Usage(300_000, 0)) > 300 * price.cost(Usage(1000, 0))


@pytest.mark.parametrize(
    ("url", "model"),
    [
        (OPENAI, "no-such-model"),
        ("http://127.0.0.1:11434/v1", "gpt-4o-mini"),
        ("https://models.example/v1", "claude-sonnet-4-5"),
        ("", ""),
    ],
)
def test_a_model_or_a_place_that_the_list_does_not_know_has_no_price(url: str, model: str) -> None:
    assert listed(url, model) is None


def test_a_written_price_is_what_was_written() -> None:
    assert Flat.of(0.1, 0.2, None).cost(Usage(1, 1, 1)) == Decimal("3E-7")
    assert Flat.of(0.1, 0.2, 0).cost(Usage(1, 1, 1)) == Decimal("2E-7")
