"""The broker: the one place that calls a provider, and the one that says what it cost."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, get_args

from spl.errors import ProviderFailed, SplError
from spl.inference.model import Reply, Request, StopReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.inference.model import Usage
    from spl.inference.provider import Provider

ID_LIMIT = 200
"""Characters in the id of a call, and in the name of its tool."""
CALLS_MOST = 128
"""Calls in one reply: each may leave as much on the log as its tool gives."""
TOKENS_MOST = 10**9
"""Tokens of either kind that one call can have taken: far more than any does, and a cost that a number can hold."""
_MILLION = Decimal(1_000_000)


class BudgetExhausted(Exception):
    """Nothing is left of a run's ceiling and the model costs something: a run's end, not a person's error."""


@dataclass(frozen=True, slots=True)
class Charged:
    """A reply and what it cost, in US dollars."""

    reply: Reply
    cost_usd: Decimal


class Broker:
    """Calls one provider for every run."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    async def infer(
        self, request: Request, *, remaining_usd: Decimal | None, charge: Callable[[Charged], None]
    ) -> Charged:
        """Make one model call; `remaining_usd` is what the run's ceiling still holds, None if it has none.

        `charge` is told what the call took also where the reply is of no use: the provider is paid for it.
        Raises ProviderFailed if there is no usable reply, or if a run with a ceiling asks for a model without
        a price; BudgetExhausted, before the call, if nothing remains for a model that costs something.
        """
        provider = self.provider
        model = request.model or provider.default_model
        price = provider.price(model)
        if remaining_usd is not None:
            if price is None:
                raise ProviderFailed(
                    f"the model {model!r} of the provider {provider.name!r} has no price, "
                    "so a run with a budget cannot use it"
                )
            if remaining_usd <= 0 and any(price):
                raise BudgetExhausted(f"nothing is left of the run's budget for the model {model!r}")
        reply = await self._complete(replace(request, model=model))
        self._refuse(_usage_fault(reply.usage))
        charged = Charged(reply, _cost(reply.usage, price or (Decimal(0), Decimal(0))))
        charge(charged)
        self._refuse(_fault(reply))
        return charged

    def _refuse(self, fault: str | None) -> None:
        if fault:
            raise ProviderFailed(f"the provider {self.provider.name!r} gave a malformed reply: {fault}")

    async def _complete(self, request: Request) -> Reply:
        try:
            return await self.provider.complete(request)
        except SplError:
            raise
        except Exception as error:  # noqa: BLE001 - a provider may raise anything
            kind = type(error).__name__
        # Raised out here so that no chained exception carries the provider's text, which may hold a key.
        raise ProviderFailed(f"the provider {self.provider.name!r} failed with {kind}")


def _cost(usage: Usage, price: tuple[Decimal, Decimal]) -> Decimal:
    return (usage.input_tokens * price[0] + usage.output_tokens * price[1]) / _MILLION


def _usage_fault(usage: Usage) -> str | None:
    """Say what is wrong with a reply's usage, or None: nothing can be charged by it then."""
    for tokens in (usage.input_tokens, usage.output_tokens):
        if type(tokens) is not int or not 0 <= tokens <= TOKENS_MOST:
            return f"its usage is not in whole numbers from 0 to {TOKENS_MOST}"
    return None


def _fault(reply: Reply) -> str | None:
    """Say what is wrong with a reply, or None; its values stay out of it, for they come from outside."""
    if len(reply.calls) > CALLS_MOST:
        return f"it has more than {CALLS_MOST} calls"
    ids = [call.id for call in reply.calls]
    if not all(_is_name(call.id) and _is_name(call.name) for call in reply.calls):
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


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= ID_LIMIT


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)
