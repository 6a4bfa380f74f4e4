"""The broker: the one place that calls a provider, and the one that says what it cost.

What a call can cost at most is reserved before it is made and settled by what it took: a ceiling holds however many
calls are under way, and a reply that is lost on its way is counted as the most it can have cost.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from spl.errors import ModelUnpriced, ProviderFailed, SplError
from spl.inference.address import is_of_this_host
from spl.inference.apart import apart
from spl.inference.model import Reply, Request, StopReason, Unanswered, Usage
from spl.inference.prices import FREE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from spl.inference.prices import Price
    from spl.inference.provider import Provider
    from spl.inference.scale import Scale

ID_LIMIT = 200
"""Characters in the id of a call, and in the name of its tool."""
CALLS_MOST = 128
"""Calls in one reply: each may leave as much on the log as its tool gives."""
TOKENS_MOST = 10**9
"""Tokens of either kind that one call can have taken: far more than any does, and a cost that a number can hold."""
OUTPUT_MOST = 8192
"""Tokens of output that a call is bounded by, unless the broker is made with another bound."""
OUTPUT_LEAST = 16
"""Tokens of output that a call must be able to pay for: with fewer, no reply says anything."""

BROKEN_OFF = "BROKEN_OFF"

_UNIT = 1_000_000

Ceiling = Literal["usd", "tokens"]


class BudgetExhausted(Exception):
    """What is left under a run's ceilings does not pay for a call: a run's end, not a person's error.

    `needed_usd` is the least that must be left for it.
    """

    def __init__(self, needed_usd: Decimal) -> None:
        super().__init__(needed_usd)
        self.needed_usd = needed_usd


class CalledOff(Exception):
    """A call that waited for its money, and whose run is to end since: it is not made."""


class Account(Protocol):
    """Where a run's calls are paid from; None is no ceiling.

    `bounded` says that there must be a ceiling of money: a credential without one gets no call. `scale` weighs the
    run's requests.
    """

    scale: Scale

    @property
    def bounded(self) -> bool:
        """Whether a ceiling of money must hold."""
        ...

    @property
    def left_tokens(self) -> int | None:
        """How many tokens the run may still use."""
        ...

    @property
    def left_usd(self) -> Decimal | None:
        """How much the run may still cost, less what other runs under the same ceiling have reserved."""
        ...

    def queue(self) -> AbstractAsyncContextManager[object]:
        """Give the wait for one's turn to reserve among those under the same ceiling."""
        ...

    def reserve(self, usd: Decimal) -> None:
        """Set aside what a call can cost; it is settled once. Raises CalledOff where it is not to be made any more."""
        ...

    def settle(self, reserved: Decimal, cost_usd: Decimal, usage: Usage) -> None:
        """Put down what a call cost and took in the place of what was reserved for it."""
        ...

    async def freed(self) -> bool:
        """Wait until another run settles what it has reserved under the same ceiling; false at once if none has."""
        ...


@dataclass(frozen=True, slots=True)
class Charged:
    """A reply and what it cost, in US dollars; `bound` is the ceiling that left its output less room than usual."""

    reply: Reply
    cost_usd: Decimal
    bound: Ceiling | None = None


@dataclass(frozen=True, slots=True)
class _Allowance:
    """The tokens of output that a call may have, what it can cost then, and the ceiling that made them fewer."""

    output: int
    cost_usd: Decimal
    bound: Ceiling | None


class Broker:
    """Calls one provider for every run; `prices` go before the provider's own, and a price of 0 is a price."""

    def __init__(
        self,
        provider: Provider,
        prices: Mapping[str, Price] | None = None,
        *,
        most_output_tokens: int = OUTPUT_MOST,
    ) -> None:
        self.provider = provider
        self.failing: str | None = None
        self.called: Callable[[float, Decimal, Usage, str | None], None] = lambda *_: None
        """Told of each call that the provider was asked for, however it went: its seconds, what it is charged at, the
        tokens it took, and the code of the error it failed with, `BROKEN_OFF` where nobody waits for it any more."""
        self._prices = prices or {}
        self._most_output = most_output_tokens

    def price(self, model: str) -> Price | None:
        """Give what a model costs, or None if nobody says."""
        return self._prices.get(model) or self.provider.price(model)

    def unpriced(self, model: str) -> ModelUnpriced | None:
        """Give the refusal of a model to a run that has a ceiling of money, None if it has a price."""
        if self.price(model) is not None:
            return None
        url = self.provider.url
        # Elsewhere somebody is paid for it: a line to be completed, or whoever copies it has no ceiling any more.
        price = "0" if url is None or is_of_this_host(url) else "USD"
        # A JSON string is a basic string of TOML's: what the model is called can end neither.
        line = f"prices.{json.dumps(model, ensure_ascii=False)} = {{ input = {price}, output = {price} }}"
        return ModelUnpriced(
            f"the model {model!r} of the provider {self.provider.name!r} has no price: neither config.toml has one, "
            "nor the shipped list for the provider's address",
            model=model,
            line=line,
            remedy="see that its name is right; if it is, have the operator write what a million tokens of it cost in "
            f"US dollars (0 for a model that nobody is paid for) at the top of config.toml, as {line}, and start the "
            "daemon anew",
        )

    def __str__(self) -> str:
        """Say in a line what is asked, and where."""
        provider = self.provider
        if provider.url is None:
            return provider.name
        unpriced = ", without a price: no run with a budget can use it"
        priced = "" if self.price(provider.default_model) else unpriced
        return f"{provider.name}, {provider.url}, model {provider.default_model}{priced}"

    def state(self) -> dict[str, object]:
        """Give what health says of the provider: never a key. `failing` is why the last call gave no reply."""
        provider = self.provider
        return {
            "name": provider.name,
            "model": provider.default_model,
            "url": provider.url,
            "priced": self.price(provider.default_model) is not None,
            "failing": self.failing,
        }

    async def infer(self, request: Request, account: Account) -> Charged:
        """Make one model call; without a model the provider's default is asked.

        Raises ProviderFailed if there is no usable reply, or if a bounded account has no ceiling; ModelUnpriced if a
        ceiling is to hold and the model has no price; before the call, BudgetExhausted if what is left does not pay
        for it, and what reserving raises.
        """
        model = request.model or self.provider.default_model
        price = self.price(model)
        if account.bounded and account.left_usd is None:
            raise ProviderFailed("the broker makes no call for a credential that has no ceiling")
        if price is None and account.left_usd is not None:
            raise self.unpriced(model) or AssertionError(model)
        price = price or FREE
        request = replace(request, model=model)
        is_free = not (price.cost(Usage(_UNIT, _UNIT)) or price.cost(Usage(_UNIT, _UNIT, _UNIT)))
        # What costs nothing waits for nobody's money.
        async with nullcontext() if is_free else account.queue():
            allowance = await self._allowance(request, price, account, is_free=is_free)
            account.reserve(allowance.cost_usd)
        return await self._settled(
            replace(request, max_output_tokens=allowance.output), price, account, allowance
        )

    async def _allowance(
        self, request: Request, price: Price, account: Account, *, is_free: bool
    ) -> _Allowance:
        """Give what a call may take: nothing is awaited between its being reckoned and its being reserved."""
        most_input = 0 if is_free else await apart(request.size, account.scale.most, request)
        # What comes from a cache is nearly always cheaper.
        of_input = max(price.cost(Usage(most_input, 0)), price.cost(Usage(most_input, 0, most_input)))
        # Some models' output costs more where their input is long.
        each = (price.cost(Usage(most_input, _UNIT)) - price.cost(Usage(most_input, 0))) / _UNIT
        while True:
            output = self._most_output
            bound: Ceiling | None = None
            tokens, left = account.left_tokens, account.left_usd
            if tokens is not None and tokens < output:
                output, bound = tokens, "tokens"
            if is_free or left is None:
                return _Allowance(output, of_input + output * each, bound)
            affordable = output if left >= of_input + output * each else _whole(left - of_input, each)
            if affordable >= output:
                return _Allowance(output, of_input + output * each, bound)
            # Others of the same ceiling may give back most of what they have reserved: no reply is cut off for that.
            if not await account.freed():
                break
        if affordable < OUTPUT_LEAST:
            raise BudgetExhausted(of_input + OUTPUT_LEAST * each)
        return _Allowance(affordable, of_input + affordable * each, "usd")

    async def _settled(
        self, request: Request, price: Price, account: Account, allowance: _Allowance
    ) -> Charged:
        reserved = allowance.cost_usd
        # What a call that broke off has cost is not known: it is taken for the most it can have.
        cost, usage = reserved, Usage()
        reply: Reply | None = None
        failed: str | None = ProviderFailed.code
        began = time.perf_counter()
        try:
            said = await self.provider.complete(request)
            fault = usage_fault(said.usage)
            if fault is None:
                cost, usage = price.cost(said.usage), said.usage
                account.scale.measured(usage.input_tokens)
                fault = reply_fault(said)
            if fault is None:
                reply, self.failing, failed = said, None, None
            else:
                self.failing = f"the provider {self.provider.name!r} gave a malformed reply: {fault}"
        except Unanswered as error:
            cost = Decimal(0) if error.unpaid else reserved
            self.failing = error.message
        except SplError as error:
            # One of our own, such as a key's file that is open to others: nothing was sent.
            cost, self.failing, failed = Decimal(0), error.message, error.code
            raise
        except asyncio.CancelledError:
            failed = BROKEN_OFF
            raise
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            self.failing = f"the provider {self.provider.name!r} failed with {type(error).__name__}"
        finally:
            account.settle(reserved, cost, usage)
            self.called(time.perf_counter() - began, cost, usage, failed)
        if reply is None:
            # Raised out here so that no chained exception carries the provider's text, which may hold a key.
            raise ProviderFailed(self.failing or "")
        return Charged(reply, cost, allowance.bound)


def _whole(left: Decimal, each: Decimal) -> int:
    return int(left / each) if left > 0 and each else 0


def usage_fault(usage: Usage) -> str | None:
    """Say what is wrong with a reply's usage, or None: nothing can be charged by it then."""
    for tokens in (usage.input_tokens, usage.output_tokens):
        if type(tokens) is not int or not 0 <= tokens <= TOKENS_MOST:
            return f"its usage is not in whole numbers from 0 to {TOKENS_MOST}"
    if type(usage.cached_tokens) is not int or not 0 <= usage.cached_tokens <= usage.input_tokens:
        return "more of its input came from a cache than there was"
    return None


def reply_fault(reply: Reply) -> str | None:
    """Say what is wrong with a reply, or None; its values stay out of it, for they come from outside."""
    if len(reply.calls) > CALLS_MOST:
        return f"it has more than {CALLS_MOST} calls"
    ids = [call.id for call in reply.calls]
    if not all(is_word(call.id) and is_word(call.name) for call in reply.calls):
        return f"a call's id or name is not a string of 1 to {ID_LIMIT} characters"
    if len(set(ids)) < len(ids):
        return "two calls have the same id"
    if not all(_is_object(call.arguments) for call in reply.calls):
        return "a call's arguments are not an object"
    if not _is_string(reply.text):
        return "its text is not a string"
    if reply.stop_reason not in get_args(StopReason):
        return "its stop reason is not known"
    try:
        # What the log could not take must not reach it: NaN, lone surrogates, things that are not JSON.
        json.dumps(reply.wire(), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return "it is not JSON"
    return None


def is_word(value: object) -> bool:
    """Tell whether a value can be a call's id, or the name of its tool."""
    return isinstance(value, str) and 0 < len(value) <= ID_LIMIT


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)
