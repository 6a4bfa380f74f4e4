"""The broker picks the model, reserves and settles its cost, refuses what is not paid for, and lets no key out."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import tomllib
import traceback
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spl.errors import ModelUnpriced, ProviderFailed, StoreUnavailable
from spl.inference.apart import LONG
from spl.inference.broker import (
    BROKEN_OFF,
    CALLS_MOST,
    ID_LIMIT,
    OUTPUT_MOST,
    TOKENS_MOST,
    Broker,
    BudgetExhausted,
    Charged,
)
from spl.inference.model import Call, Reply, Request, Unanswered, Usage
from spl.inference.prices import FREE, Flat
from spl.inference.scale import Scale
from tests.inference.accounts import Purse

if TYPE_CHECKING:
    from spl.inference.prices import Price
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
    url: str | None = None
    asked: list[Request] = field(default_factory=list)

    async def complete(self, request: Request) -> Reply:
        self.asked.append(request)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def price(self, model: str) -> Price | None:
        return {"m": Flat(Decimal(3), Decimal(15)), "free": FREE}.get(model)

    async def close(self) -> None:
        raise AssertionError


def infer(
    provider: Provider,
    usd: str | None = "1",
    model: str | None = None,
    *,
    purse: Purse | None = None,
    prices: dict[str, Price] | None = None,
    **asked: Any,
) -> Charged:
    purse = Purse(usd) if purse is None else purse
    return asyncio.run(Broker(provider, prices).infer(replace(REQUEST, model=model, **asked), purse))


def test_a_reply_costs_its_tokens_at_the_price_of_a_million() -> None:
    assert infer(PaidProvider()) == Charged(REPLY, Decimal("0.006"))


def test_what_comes_from_the_providers_cache_costs_what_that_costs() -> None:
    cached = reply_with(usage=Usage(1000, 200, 600))

    assert infer(PaidProvider(cached)).cost_usd == Decimal("0.006")
    prices: dict[str, Price] = {"m": Flat(Decimal(3), Decimal(15), Decimal(1))}
    assert infer(PaidProvider(cached), prices=prices).cost_usd == Decimal("0.0048")


def test_the_default_model_is_asked_unless_the_request_names_one() -> None:
    provider = PaidProvider()

    infer(provider)
    infer(provider, model="free")

    assert [request.model for request in provider.asked] == ["m", "free"]


def test_a_price_of_the_settings_goes_before_the_providers_and_zero_is_one() -> None:
    provider = PaidProvider()

    assert infer(provider, prices={"m": Flat(Decimal(1), Decimal(1))}).cost_usd == Decimal("0.0012")
    assert infer(provider, "0", prices={"m": FREE}).cost_usd == 0
    assert infer(provider, "1", "unpriced", prices={"unpriced": FREE}).cost_usd == 0


def test_a_model_without_a_price_is_refused_to_a_run_with_a_ceiling_only() -> None:
    provider = PaidProvider()

    with pytest.raises(ModelUnpriced, match="'unpriced' of the provider 'paid' has no price") as raised:
        infer(provider, "1", model="unpriced")
    assert provider.asked == []
    assert infer(provider, None, model="unpriced").cost_usd == 0
    assert raised.value.fields["line"] == 'prices."unpriced" = { input = 0, output = 0 }'
    assert str(raised.value.fields["line"]) in str(raised.value.fields["remedy"])


@pytest.mark.parametrize("model", ["m", 'with "quotes" and \\', "ελληνικά", "a]b = 1 #"])
def test_the_line_that_a_refusal_tells_gives_the_model_its_price(model: str) -> None:
    refusal = Broker(PaidProvider(url="http://127.0.0.1:1/v1")).unpriced(f"{model}-x")

    assert refusal is not None
    assert tomllib.loads(str(refusal.fields["line"])) == {"prices": {f"{model}-x": {"input": 0, "output": 0}}}


def test_where_somebody_is_paid_for_a_model_the_line_is_one_to_be_completed() -> None:
    refusal = Broker(PaidProvider(url="https://models.example/v1")).unpriced("x")

    assert refusal is not None
    assert refusal.fields["line"] == 'prices."x" = { input = USD, output = USD }'
    # Copied as it is, it would take every ceiling away.
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(str(refusal.fields["line"]))


@pytest.mark.claim("B2")
def test_a_credential_without_a_ceiling_gets_no_call() -> None:
    provider = PaidProvider()

    for model in ("m", "free", "unpriced"):
        with pytest.raises(ProviderFailed, match="no call for a credential that has no ceiling"):
            infer(provider, model=model, purse=Purse(bounded=True))
    assert provider.asked == []


@pytest.mark.claim("B3")
def test_an_account_without_a_ceiling_is_bounded_by_no_cost() -> None:
    provider = PaidProvider()

    assert infer(provider, None).cost_usd == Decimal("0.006")
    assert provider.asked[0].max_output_tokens == OUTPUT_MOST


@pytest.mark.claim("B2")
def test_a_call_past_the_ceiling_is_refused_before_it_is_made() -> None:
    provider = PaidProvider()

    for left in ("0", "-0.01", "0.003"):
        purse = Purse(left)
        with pytest.raises(BudgetExhausted):
            infer(provider, purse=purse)
        assert (purse.reserved, purse.settled) == ([], [])
    assert provider.asked == []
    assert infer(provider, "0", model="free").cost_usd == 0


@pytest.mark.claim("B2")
def test_what_a_call_can_cost_at_most_is_reserved_and_what_it_took_is_settled() -> None:
    provider = PaidProvider()
    purse = Purse("1")

    infer(provider, purse=purse)

    (request,) = provider.asked
    most = Flat(Decimal(3), Decimal(15)).cost(Usage(Scale().most(request), OUTPUT_MOST))
    assert purse.reserved == [most]
    assert purse.settled == [(most, Decimal("0.006"), REPLY.usage)]


@pytest.mark.claim("B2")
@settings(max_examples=60)
@given(
    left=st.decimals("0", "0.5", places=6),
    price=st.tuples(st.decimals("0", "80", places=2), st.decimals("0", "400", places=2)),
    text=st.text(max_size=2000),
    share=st.floats(0, 1),
)
def test_a_provider_that_keeps_to_its_bounds_cannot_pass_the_ceiling(
    left: Decimal, price: tuple[Decimal, Decimal], text: str, share: float
) -> None:
    class Greedy(PaidProvider):
        async def complete(self, request: Request) -> Reply:
            assert request.max_output_tokens is not None
            # No tokenizer makes more of a text than its bytes.
            taken = int(sum(len(each["content"].encode()) for each in request.messages) * share)
            return reply_with(usage=Usage(taken, request.max_output_tokens))

    purse = Purse(str(left))
    request = replace(REQUEST, messages=[{"role": "user", "content": text}])
    broker = Broker(Greedy(), {"m": Flat(*price)})

    async def go_on() -> None:
        nonlocal request
        for _ in range(4):
            charged = await broker.infer(request, purse)
            said = {"role": "assistant", "content": text[: charged.reply.usage.output_tokens]}
            request = replace(request, messages=[*request.messages, said])

    with contextlib.suppress(BudgetExhausted):
        asyncio.run(go_on())
    assert sum(cost for _, cost, _ in purse.settled) <= left
    assert all(cost <= reserved for reserved, cost, _ in purse.settled)


@pytest.mark.claim("B2")
def test_input_that_costs_more_from_the_cache_is_reserved_at_that() -> None:
    purse = Purse("0.001")
    dear: dict[str, Price] = {"m": Flat(Decimal(0), Decimal(0), Decimal(5))}

    with pytest.raises(BudgetExhausted):
        infer(PaidProvider(), purse=purse, prices=dear)
    purse = Purse("1")
    infer(PaidProvider(reply_with(usage=Usage(1000, 0, 1000))), purse=purse, prices=dear)
    assert purse.settled[0][1] == Decimal("0.005") <= purse.reserved[0]


def test_a_second_turn_is_reserved_by_what_the_first_was_counted_as() -> None:
    provider, purse = PaidProvider(reply_with(usage=Usage(10, 5))), Purse("1")
    broker = Broker(provider)

    async def two_turns() -> None:
        await broker.infer(REQUEST, purse)
        await broker.infer(REQUEST, purse)

    asyncio.run(two_turns())
    assert purse.reserved[1] == Flat(Decimal(3), Decimal(15)).cost(Usage(10, OUTPUT_MOST)) < purse.reserved[0]


def test_what_is_long_is_weighed_beside_the_event_loop() -> None:
    where: list[bool] = []
    purse = Purse("1")
    weigh = purse.scale.most

    def weighed(request: Request) -> int:
        where.append(threading.current_thread() is threading.main_thread())
        return weigh(request)

    purse.scale.most = weighed  # type: ignore[method-assign]
    for size in (LONG, LONG + 1):
        infer(PaidProvider(), purse=purse, size=size)
    assert where == [True, False]


def test_a_call_that_is_not_paid_for_says_what_it_needs() -> None:
    with pytest.raises(BudgetExhausted) as raised:
        infer(PaidProvider(), "0.003")

    needed = str(raised.value.needed_usd)
    assert infer(PaidProvider(), needed).cost_usd == Decimal("0.006")


@pytest.mark.claim("B2")
def test_a_call_gets_no_more_output_than_what_is_left_pays_for_and_says_which_ceiling_it_was() -> None:
    provider = PaidProvider()

    assert infer(provider, "0.02").bound == "usd"
    assert infer(provider, "1", purse=Purse("1", tokens=100)).bound == "tokens"
    assert infer(provider, "0.02", purse=Purse("0.02", tokens=8000)).bound == "usd"
    assert infer(provider, "1").bound is None

    of_input = Flat(Decimal(3), Decimal(15)).cost(Usage(Scale().most(provider.asked[0]), 0))
    affordable = int((Decimal("0.02") - of_input) / 15 * 1_000_000)
    assert [request.max_output_tokens for request in provider.asked] == [affordable, 100, affordable, 8192]


@pytest.mark.claim("B2")
@pytest.mark.parametrize("others", ["0.9", "1"])
def test_a_call_waits_for_what_others_have_reserved_and_is_not_cut_off_for_it(others: str) -> None:
    async def wait() -> None:
        provider, purse = PaidProvider(), Purse("1", held=others)
        call = asyncio.create_task(Broker(provider).infer(REQUEST, purse))
        await purse.waited.wait()
        assert (provider.asked, purse.reserved) == ([], [])
        purse.free()
        assert (await call).bound is None
        assert provider.asked[0].max_output_tokens == OUTPUT_MOST

    asyncio.run(wait())


@pytest.mark.claim("B2")
@pytest.mark.parametrize(
    ("failure", "unpaid"),
    [
        (Unanswered("the provider 'paid' answered 500", unpaid=True), True),
        (Unanswered("the provider 'paid' did not answer in time", unpaid=False), False),
        (ConnectionError(), False),
        (StoreUnavailable("of our own"), True),
        (Reply("x", (), "end", Usage(-1, 0), "m"), False),
    ],
)
def test_a_call_that_gave_no_reply_costs_the_most_it_can_have_unless_it_is_sure_to_cost_nothing(
    failure: Exception | Reply, unpaid: bool
) -> None:
    purse = Purse("1")

    with pytest.raises((ProviderFailed, StoreUnavailable)):
        infer(PaidProvider(failure), purse=purse)

    ((reserved, cost, usage),) = purse.settled
    assert (cost, usage) == (0 if unpaid else reserved, Usage())


def test_what_a_provider_says_of_its_silence_is_told_and_health_tells_it_until_a_call_succeeds() -> None:
    provider = PaidProvider(Unanswered("the provider 'paid' answered 500", unpaid=True))
    broker = Broker(provider)
    assert broker.state() == {"name": "paid", "model": "m", "url": None, "priced": True, "failing": None}

    with pytest.raises(ProviderFailed, match=r"^the provider 'paid' answered 500$"):
        asyncio.run(broker.infer(REQUEST, Purse()))
    assert broker.state()["failing"] == "the provider 'paid' answered 500"

    provider.outcome = REPLY
    asyncio.run(broker.infer(REQUEST, Purse()))
    assert broker.state()["failing"] is None


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
    purse = Purse()
    with pytest.raises(ProviderFailed, match="the provider 'paid' gave a malformed reply") as raised:
        infer(PaidProvider(reply), purse=purse)

    assert why in raised.value.message
    assert [cost for _, cost, _ in purse.settled] == [Decimal("0.006")]


@pytest.mark.parametrize("tokens", [-1, TOKENS_MOST + 1, 10**400, 1.5, math.nan, True, "7", None])
def test_a_usage_that_cannot_be_is_taken_for_the_most_that_the_call_can_have_cost(tokens: Any) -> None:
    for usage in (Usage(tokens, 0), Usage(0, tokens)):
        purse = Purse()
        with pytest.raises(ProviderFailed, match="its usage is not in whole numbers from 0"):
            infer(PaidProvider(reply_with(usage=usage)), purse=purse)
        ((reserved, cost, taken),) = purse.settled
        assert (cost, taken) == (reserved, Usage())


@pytest.mark.parametrize("cached", [-1, 11, True, None])
def test_no_more_input_can_have_come_from_a_cache_than_there_was(cached: Any) -> None:
    with pytest.raises(ProviderFailed, match="more of its input came from a cache"):
        infer(PaidProvider(reply_with(usage=Usage(10, 0, cached))))


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


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (REPLY, None),
        (replace(REPLY, calls=(Call("", "x", {}),)), "PROVIDER_FAILED"),
        (Unanswered("the provider 'paid' answered 500", unpaid=True), "PROVIDER_FAILED"),
        (ConnectionError(), "PROVIDER_FAILED"),
        (StoreUnavailable("of our own"), "STORE_UNAVAILABLE"),
    ],
)
def test_each_call_is_told_with_what_it_cost_and_took_and_the_code_it_failed_with(
    outcome: Reply | Exception, code: str | None
) -> None:
    broker, purse = Broker(PaidProvider(outcome)), Purse("1")
    told: list[tuple[Decimal, Usage, str | None]] = []
    broker.called = lambda seconds, *rest: told.append(rest) if seconds >= 0 else None

    with contextlib.suppress(ProviderFailed, StoreUnavailable):
        asyncio.run(broker.infer(REQUEST, purse))

    assert told == [(cost, usage, code) for _, cost, usage in purse.settled]
    with pytest.raises(BudgetExhausted):
        asyncio.run(broker.infer(REQUEST, Purse("0")))
    assert len(told) == 1, "what is not asked for is no call"


@pytest.mark.claim("B2")
def test_a_call_that_is_broken_off_stays_so_and_costs_the_most_it_can_have() -> None:
    purse = Purse()
    told: list[str | None] = []

    async def cancel() -> None:
        asked = asyncio.Event()

        class Waiting(PaidProvider):
            async def complete(self, request: Request) -> Reply:
                asked.set()
                await asyncio.Event().wait()
                return REPLY

        broker = Broker(Waiting())
        broker.called = lambda *said: told.append(said[-1])
        task = asyncio.create_task(broker.infer(REQUEST, purse))
        await asked.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    assert [(cost, usage) for _, cost, usage in purse.settled] == [(purse.reserved[0], Usage())]
    assert told == [BROKEN_OFF]


def test_a_reply_goes_over_the_wire_as_the_infer_door_answers_it() -> None:
    assert replace(REPLY, calls=(call(),)).wire() == {
        "text": "Hello.",
        "calls": [{"id": "c1", "name": "record_note", "arguments": {"text": "x"}}],
        "stop_reason": "end",
    }
