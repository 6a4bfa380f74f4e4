"""The broker picks the model, prices the usage, refuses what it cannot pay for, and lets no key out."""

from __future__ import annotations

import asyncio
import math
import traceback
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import ProviderFailed, StoreUnavailable
from spl.inference.broker import CALLS_MOST, ID_LIMIT, TOKENS_MOST, Broker, BudgetExhausted, Charged
from spl.inference.model import Call, Reply, Request, Usage

if TYPE_CHECKING:
    from spl.inference.provider import Provider

REPLY = Reply("Hello.", (), "end", Usage(1000, 200), "m-2024")
REQUEST = Request(model=None, messages=[{"role": "user", "content": "Hi."}], tools=[], turn=0)
KEY = "sk-very-secret"


@dataclass
class PaidProvider:
    """A provider with a price list, that gives or raises one thing."""

    outcome: Reply | Exception = REPLY
    name: str = "paid"
    default_model: str = "m"
    asked: list[Request] = field(default_factory=list)

    async def complete(self, request: Request) -> Reply:
        self.asked.append(request)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def price(self, model: str) -> tuple[Decimal, Decimal] | None:
        return {"m": (Decimal(3), Decimal(15)), "free": (Decimal(0), Decimal(0))}.get(model)


def infer(provider: Provider, remaining: str | None = "1", model: str | None = None) -> Charged:
    remaining_usd = None if remaining is None else Decimal(remaining)
    told: list[Charged] = []
    charged = asyncio.run(
        Broker(provider).infer(replace(REQUEST, model=model), remaining_usd=remaining_usd, charge=told.append)
    )
    assert told == [charged]
    return charged


def test_a_reply_costs_its_tokens_at_the_price_of_a_million() -> None:
    charged = infer(PaidProvider())

    assert charged == Charged(REPLY, Decimal("0.006"))


def test_the_default_model_is_asked_unless_the_request_names_one() -> None:
    provider = PaidProvider()

    infer(provider)
    infer(provider, model="free")

    assert [request.model for request in provider.asked] == ["m", "free"]


def test_a_model_without_a_price_is_refused_to_a_run_with_a_ceiling_only() -> None:
    provider = PaidProvider()

    with pytest.raises(ProviderFailed, match="'unpriced' of the provider 'paid' has no price"):
        infer(provider, "1", model="unpriced")
    assert provider.asked == []
    assert infer(provider, None, model="unpriced").cost_usd == 0


@pytest.mark.claim("B2")
def test_a_call_past_the_ceiling_is_refused_before_it_is_made() -> None:
    provider = PaidProvider()

    for remaining in ("0", "-0.01"):
        with pytest.raises(BudgetExhausted):
            infer(provider, remaining)
    assert provider.asked == []
    assert infer(provider, "0", model="free").cost_usd == 0


def call(**changes: Any) -> Call:
    return replace(Call("c1", "record_note", {"text": "x"}), **changes)


def reply_with(**changes: Any) -> Reply:
    return replace(REPLY, **changes)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (reply_with(calls=(call(), call())), "two calls have the same id"),
        (reply_with(calls=(call(id=""),)), "id or name"),
        (reply_with(calls=(call(id="x" * (ID_LIMIT + 1)),)), "id or name"),
        (reply_with(calls=(call(id=7),)), "id or name"),
        (reply_with(calls=(call(name=""),)), "id or name"),
        (reply_with(calls=(call(arguments=["text"]),)), "arguments are not an object"),
        (reply_with(calls=(call(arguments="{}"),)), "arguments are not an object"),
        (reply_with(calls=(call(arguments={"n": math.nan}),)), "not JSON"),
        (reply_with(calls=(call(arguments={"n": b""}),)), "not JSON"),
        (reply_with(calls=(call(arguments={"n": "\ud800"}),)), "not JSON"),
        (reply_with(calls=tuple(call(id=str(n)) for n in range(CALLS_MOST + 1))), "more than 128 calls"),
        (reply_with(text="\ud800"), "not JSON"),
        (reply_with(text=None), "text is not a string"),
        (reply_with(stop_reason="tired"), "stop reason is not known"),
    ],
)
def test_a_malformed_reply_is_a_provider_that_failed_and_is_paid(reply: Reply, why: str) -> None:
    told: list[Charged] = []
    broker = Broker(PaidProvider(reply))
    with pytest.raises(ProviderFailed, match="the provider 'paid' gave a malformed reply") as raised:
        asyncio.run(broker.infer(REQUEST, remaining_usd=None, charge=told.append))

    assert why in raised.value.message
    assert [charged.cost_usd for charged in told] == [Decimal("0.006")]


@pytest.mark.parametrize("tokens", [-1, TOKENS_MOST + 1, 10**400, 1.5, math.nan, True, "7", None])
def test_a_usage_that_cannot_be_is_charged_to_nobody(tokens: Any) -> None:
    for usage in (Usage(tokens, 0), Usage(0, tokens)):
        broker = Broker(PaidProvider(reply_with(usage=usage)))
        told: list[Charged] = []
        with pytest.raises(ProviderFailed, match="its usage is not in whole numbers from 0"):
            asyncio.run(broker.infer(REQUEST, remaining_usd=None, charge=told.append))
        assert told == []


def test_the_most_that_a_call_can_have_taken_has_a_cost_that_a_number_holds() -> None:
    charged = infer(PaidProvider(reply_with(usage=Usage(TOKENS_MOST, TOKENS_MOST))))

    assert math.isfinite(float(charged.cost_usd))


def test_ids_of_just_the_limit_and_as_many_calls_as_may_be_are_well_formed() -> None:
    ids = ["x" * ID_LIMIT, *map(str, range(1, CALLS_MOST))]
    reply = replace(REPLY, calls=tuple(call(id=each) for each in ids))

    assert infer(PaidProvider(reply)).reply == reply


@pytest.mark.claim("B4")
def test_what_a_provider_raises_is_named_and_neither_repeated_nor_chained() -> None:
    with pytest.raises(ProviderFailed) as raised:
        infer(PaidProvider(ConnectionError(f"401 for {KEY}")))

    assert raised.value.message == "the provider 'paid' failed with ConnectionError"
    assert raised.value.__context__ is None
    assert KEY not in "".join(traceback.format_exception(raised.value))


def test_an_error_of_our_own_passes_unchanged() -> None:
    with pytest.raises(StoreUnavailable, match="as it was"):
        infer(PaidProvider(StoreUnavailable("as it was")))


def test_a_cancelled_call_stays_cancelled() -> None:
    async def cancel() -> None:
        asked = asyncio.Event()

        class Waiting(PaidProvider):
            async def complete(self, request: Request) -> Reply:
                asked.set()
                await asyncio.Event().wait()
                return REPLY

        task = asyncio.create_task(Broker(Waiting()).infer(REQUEST, remaining_usd=None, charge=print))
        await asked.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_a_reply_goes_over_the_wire_as_the_infer_door_answers_it() -> None:
    assert replace(REPLY, calls=(call(),)).wire() == {
        "text": "Hello.",
        "calls": [{"id": "c1", "name": "record_note", "arguments": {"text": "x"}}],
        "stop_reason": "end",
    }
