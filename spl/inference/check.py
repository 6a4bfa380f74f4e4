"""One small call that shows whether a model answers, calls tools and has a price, as a run would find it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from spl.errors import ProviderFailed
from spl.inference.model import Request, Usage
from spl.inference.scale import Scale

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from decimal import Decimal

    from spl.inference.broker import Broker

_TOOL: Final = "report_ready"
_ASKED: Final = (
    {"role": "system", "content": "You are being tried out. Do what is asked and nothing else."},
    {"role": "user", "content": f"Call the tool {_TOOL} once, with the word ready."},
)
_TOOLS: Final = (
    {
        "name": _TOOL,
        "description": "Say that you are ready.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}},
            "required": ["word"],
            "additionalProperties": False,
        },
        "domain": "mediated",
    },
)
_THOUSAND: Final = 1000


class _Nobody:
    """The account of a call that belongs to no run: without a ceiling, and paid by the operator."""

    bounded = False
    left_tokens: int | None = None
    left_usd: Decimal | None = None

    def __init__(self) -> None:
        self.scale = Scale()

    def queue(self) -> AbstractAsyncContextManager[object]:
        """Wait for nobody."""
        return nullcontext()

    def reserve(self, usd: Decimal) -> None:
        """Reserve nothing: there is no ceiling."""

    def settle(self, reserved: Decimal, cost_usd: Decimal, usage: Usage) -> None:
        """Put nothing down: it is told."""

    async def freed(self) -> bool:
        """Wait for nobody."""
        return False


async def check(broker: Broker, model: str | None) -> dict[str, Any]:
    """Ask a model, or the provider's default, to call a tool; gives what it took, and whether it did.

    Raises ProviderFailed if it gives no usable reply.
    """
    provider = broker.provider
    asked = model or provider.default_model
    began = time.monotonic()
    charged = await broker.infer(Request(asked, _ASKED, _TOOLS, 0), _Nobody())
    reply, price = charged.reply, broker.price(asked)
    if reply.stop_reason == "no_model":
        raise ProviderFailed(f"the provider {provider.name!r} has no model to ask")
    calls_tools = [call.name for call in reply.calls if call.malformed is None] == [_TOOL]
    remarks = [
        *(
            []
            if calls_tools
            else ["it did not call the tool: a run that needs tools will do nothing with it"]
        ),
        *([str(unpriced.fields["remedy"])] if (unpriced := broker.unpriced(asked)) else []),
    ]
    return {
        "object": "provider_check",
        "provider": provider.name,
        "url": provider.url,
        "model": asked,
        "answered_by": reply.model,
        "seconds": round(time.monotonic() - began, 3),
        "stop_reason": reply.stop_reason,
        "calls_tools": calls_tools,
        "usage": {"input_tokens": reply.usage.input_tokens, "output_tokens": reply.usage.output_tokens},
        "cost_usd": None if price is None else float(charged.cost_usd),
        "usd_per_million": None
        if price is None
        else {
            # Of a thousand, for some models cost more where there are many.
            "input": float(price.cost(Usage(_THOUSAND, 0)) * _THOUSAND),
            "output": float(price.cost(Usage(0, _THOUSAND)) * _THOUSAND),
        },
        **({"remarks": remarks} if remarks else {}),
    }
