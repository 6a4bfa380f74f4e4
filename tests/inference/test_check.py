"""A check shows what a run would find: who answers, whether it calls tools, and what it costs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from spl.errors import ProviderFailed
from spl.inference.broker import Broker
from spl.inference.check import check
from spl.inference.model import Call, Reply, Request, Unanswered, Usage
from spl.inference.prices import Flat, Price

READY = Call("c1", "report_ready", {"word": "ready"})
REPLY = Reply("", (READY,), "tool_use", Usage(100, 10), "m-2024")


class One:
    """A provider of one reply, whose model has a price."""

    name = "one"
    default_model = "m"
    url: str | None = "https://models.example"

    def __init__(self, reply: Reply | Unanswered = REPLY) -> None:
        self.reply = reply

    async def complete(self, request: Request) -> Reply:
        if isinstance(self.reply, Unanswered):
            raise self.reply
        return self.reply

    def price(self, model: str) -> Price | None:
        return Flat(Decimal(3), Decimal(15)) if model == "m" else None

    async def close(self) -> None:
        raise AssertionError


def checked(reply: Reply | Unanswered = REPLY, model: str | None = None) -> dict[str, Any]:
    said = asyncio.run(check(Broker(One(reply)), model))
    assert said.pop("seconds") >= 0
    return said


def test_a_check_tells_who_answered_what_it_took_and_what_it_costs() -> None:
    assert checked() == {
        "object": "provider_check",
        "provider": "one",
        "url": "https://models.example",
        "model": "m",
        "answered_by": "m-2024",
        "stop_reason": "tool_use",
        "calls_tools": True,
        "usage": {"input_tokens": 100, "output_tokens": 10},
        "cost_usd": 0.00045,
        "usd_per_million": {"input": 3.0, "output": 15.0},
    }


@pytest.mark.parametrize(
    "calls",
    [(), (replace(READY, name="other"),), (replace(READY, malformed="{"),), (READY, replace(READY, id="2"))],
)
def test_a_model_that_does_not_call_the_tool_is_told_from_one_that_does(calls: tuple[Call, ...]) -> None:
    said = checked(replace(REPLY, calls=calls))

    assert said["calls_tools"] is False
    assert said["remarks"] == ["it did not call the tool: a run that needs tools will do nothing with it"]


def test_a_provider_without_a_model_fails_its_check() -> None:
    with pytest.raises(ProviderFailed, match="has no model to ask"):
        checked(Reply("None.", (), "no_model", Usage(), "echo"))


def test_a_model_without_a_price_is_checked_all_the_same_and_the_line_to_write_is_told() -> None:
    said = checked(model="local")

    assert (said["cost_usd"], said["usd_per_million"]) == (None, None)
    assert 'prices."local" = { input = USD, output = USD }' in said["remarks"][0]


def test_a_provider_that_gives_no_reply_fails_its_check() -> None:
    with pytest.raises(ProviderFailed, match="refused the key"):
        checked(Unanswered("the provider 'one' refused the key (401)", unpaid=True))
