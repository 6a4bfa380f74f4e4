"""Anthropic's Messages API, without streaming: https://docs.anthropic.com/en/api/messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spl.inference.asked import calls, counted, field, model_named, whole
from spl.inference.endpoint import Endpoint, Malformed
from spl.inference.model import Reply
from spl.inference.prices import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spl.inference.endpoint import Pace
    from spl.inference.model import Request, StopReason
    from spl.inference.prices import Price

VERSION: Final = "2023-06-01"

_STOPS: Final[Mapping[str, StopReason]] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "pause_turn": "end",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
# The API takes no text that is empty or blank.
_NOTHING = "(nothing)"

Json = dict[str, Any]


class AnthropicProvider:
    """Asks `url` for messages; `key` reads the key, and `seconds` is the longest that one attempt may take."""

    name = "anthropic"

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
        self._endpoint = Endpoint(
            self.name,
            url.removesuffix("/v1"),
            key,
            lambda said: {"x-api-key": said},
            seconds=seconds,
            pace=pace,
        )

    async def complete(self, request: Request) -> Reply:
        """Give the model's reply; raises Unanswered."""
        return await self._endpoint.ask(
            "/v1/messages", asked(request), partial(reply, request), {"anthropic-version": VERSION}
        )

    def price(self, model: str) -> Price | None:
        """Give a model's price by the shipped list."""
        return listed(self._endpoint.url, model)

    async def close(self) -> None:
        """Close its connections."""
        await self._endpoint.close()


def asked(request: Request) -> Json:
    """Give the request's body. The conversation comes from a loop nobody trusts, and any is put into a form."""
    system = [each["content"] for each in request.messages if each["role"] == "system" and each["content"]]
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
        for tool in request.tools
    ]
    return {
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        **({"system": "\n\n".join(system)} if system else {}),
        "messages": _turns(request.messages),
        **({"tools": tools} if tools else {}),
    }


def reply(request: Request, document: object) -> Reply:
    """Read an answer; raises Malformed. Blocks of other types, such as thinking, are passed over."""
    content = field(document, "content")
    if not isinstance(content, list):
        raise Malformed("it has no content")
    texts = [field(block, "text") for block in content if field(block, "type") == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise Malformed("a text in it is none")
    made = [block for block in content if block["type"] == "tool_use"]
    stop = field(document, "stop_reason")
    if not isinstance(stop, str) or stop not in _STOPS:
        raise Malformed("its stop reason is not known")
    usage = field(document, "usage")
    return Reply(
        "\n".join(texts),
        calls(((block.get("id"), block.get("name"), block.get("input")) for block in made), request.turn),
        _STOPS[stop],
        counted(
            usage,
            input=("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
            output="output_tokens",
            cached=whole(usage.get("cache_read_input_tokens")) if isinstance(usage, dict) else 0,
        ),
        model_named(field(document, "model"), request.model),
    )


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Give the conversation as turns that take turns, a user's first, and a turn's results before its texts."""
    turns: list[Json] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"] += _blocks(message)
    if not turns or turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": []})
    for turn in turns:
        blocks = turn["content"] or [{"type": "text", "text": _NOTHING}]
        turn["content"] = sorted(blocks, key=lambda block: block["type"] != "tool_result")
    return turns


def _blocks(message: Mapping[str, Any]) -> list[Json]:
    content = message["content"]
    if message["role"] == "tool":
        return [
            {
                "type": "tool_result",
                "tool_use_id": message["call_id"],
                "content": content,
                "is_error": message.get("status") != "ok",
            }
        ]
    made = message.get("calls", ()) if message["role"] == "assistant" else ()
    return [
        *([{"type": "text", "text": content}] if content.strip() else []),
        *(
            {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]}
            for call in made
        ),
    ]
