"""Chat Completions, without streaming, as OpenAI serves them and Ollama, vLLM, llama.cpp and others after it.

See https://platform.openai.com/docs/api-reference/chat. What those differ in is taken as each of them has it.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spl.inference.asked import calls, counted, field, model_named, whole
from spl.inference.chosen import URLS
from spl.inference.endpoint import Endpoint, Malformed
from spl.inference.model import Reply
from spl.inference.prices import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spl.inference.endpoint import Pace
    from spl.inference.model import Request, StopReason
    from spl.inference.prices import Price

_STOPS: Final[Mapping[str | None, StopReason]] = {
    "stop": "end",
    "eos": "end",
    None: "end",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "length",
    "content_filter": "refusal",
}

Json = dict[str, Any]


class OpenAiProvider:
    """Asks `url`, which ends in /v1, for completions; `key` reads the key, `seconds` bounds each attempt."""

    name = "openai"

    def __init__(
        self,
        url: str,
        model: str,
        key: Callable[[], str | None],
        *,
        seconds: float,
        pace: Pace | None = None,
    ) -> None:
        self.url: str | None = url
        self.default_model = model
        # OpenAI's newer models refuse the older name of the bound, and most other servers know no newer one.
        self._bound = "max_completion_tokens" if url == URLS[self.name] else "max_tokens"
        self._endpoint = Endpoint(
            self.name, url, key, lambda said: {"authorization": f"Bearer {said}"}, seconds=seconds, pace=pace
        )

    async def complete(self, request: Request) -> Reply:
        """Give the model's reply; raises Unanswered."""
        return await self._endpoint.ask(
            "/chat/completions", asked(request, self._bound), partial(reply, request), {}
        )

    def price(self, model: str) -> Price | None:
        """Give a model's price by the shipped list."""
        return listed(self._endpoint.url, model)

    async def close(self) -> None:
        """Close its connections."""
        await self._endpoint.close()


def asked(request: Request, bound: str) -> Json:
    """Give the request's body; `bound` is what its most tokens of output are called."""
    tools = [
        {
            "type": "function",
            "function": {name: tool[name] for name in ("name", "description", "parameters")},
        }
        for tool in request.tools
    ]
    return {
        "model": request.model,
        bound: request.max_output_tokens,
        "messages": [_message(each) for each in request.messages],
        **({"tools": tools} if tools else {}),
    }


def reply(request: Request, document: object) -> Reply:
    """Read an answer; raises Malformed."""
    choices = field(document, "choices")
    if not isinstance(choices, list) or not choices:
        raise Malformed("it has no choices")
    message = field(choices[0], "message")
    text, refusal = _text(field(message, "content")), field(message, "refusal")
    listing = field(message, "tool_calls") or []
    if not isinstance(listing, list):
        raise Malformed("its calls are no list")
    functions = [(field(each, "id"), field(each, "function")) for each in listing]
    made = calls(
        ((id_, field(function, "name"), field(function, "arguments")) for id_, function in functions),
        request.turn,
    )
    stop = field(choices[0], "finish_reason")
    if not (stop is None or isinstance(stop, str)) or stop not in _STOPS:
        raise Malformed("its finish reason is not known")
    reason = _STOPS[stop]
    if isinstance(refusal, str) and refusal:
        text, reason = refusal, "refusal"
    elif reason in ("end", "tool_use"):
        # Some say stop, or nothing, of a reply that asks for tools.
        reason = "tool_use" if made else "end"
    usage = field(document, "usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    return Reply(
        text,
        made,
        reason,
        counted(
            usage,
            input=("prompt_tokens",),
            output="completion_tokens",
            cached=whole(details.get("cached_tokens")) if isinstance(details, dict) else 0,
        ),
        model_named(field(document, "model"), request.model),
    )


def _text(content: object) -> str:
    """Give the text of a message: a string, nothing, or a list of parts, of which the texts are taken."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise Malformed("its content is no text")
    texts = [field(part, "text") for part in content if field(part, "type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise Malformed("a text in it is none")
    return "\n".join(texts)


def _message(message: Mapping[str, Any]) -> Json:
    role, content = message["role"], message["content"]
    if role == "tool":
        return {"role": "tool", "tool_call_id": message["call_id"], "content": content}
    made = message.get("calls") if role == "assistant" else None
    if not made:
        return {"role": role, "content": content}
    functions = [
        {
            "id": call["id"],
            "type": "function",
            "function": {
                "name": call["name"],
                "arguments": json.dumps(call["arguments"], ensure_ascii=False),
            },
        }
        for call in made
    ]
    return {"role": role, "content": content or None, "tool_calls": functions}
