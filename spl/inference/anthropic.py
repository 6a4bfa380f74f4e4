"""The provider that answers by Anthropic's Messages API."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from spl.inference import answer
from spl.inference.answer import Asked, Malformed
from spl.inference.endpoint import Endpoint
from spl.inference.model import Reply
from spl.inference.prices import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spl.inference.model import Request, StopReason, Usage
    from spl.inference.prices import Price

Json = dict[str, Any]

_STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "pause_turn": "end",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
# The API takes no turn that says nothing, and the first must be the user's.
_NOTHING: Final = {"type": "text", "text": "(nothing)"}


class AnthropicProvider:
    """Asks the Messages API at a base URL, with or without its `/v1`; `seconds` bound one attempt."""

    def __init__(
        self,
        url: str,
        model: str,
        key: Callable[[], str | None],
        *,
        seconds: float,
        name: str = "anthropic",
    ) -> None:
        self.name = name
        self.default_model = model
        self.url: str | None = url
        self._endpoint = Endpoint(
            url.removesuffix("/v1"),
            key=key,
            authorize=lambda word: {"x-api-key": word},
            headers={"anthropic-version": "2023-06-01"},
            seconds=seconds,
            name=name,
        )

    async def complete(self, request: Request) -> Reply:
        """Give the model's reply; raises Unanswered where there is none."""
        asked = request.model or self.default_model
        return await self._endpoint.post(
            "/v1/messages",
            partial(document, request, asked),
            partial(reply, asked=asked, turn=request.turn),
            size=request.size,
        )

    def price(self, model: str) -> Price | None:
        """Give what the model costs by the list, None if it does not have it."""
        return listed(self._endpoint.url, model)

    async def close(self) -> None:
        """Close its connections."""
        await self._endpoint.close()


def document(request: Request, model: str) -> Json:
    """Give a request as the API takes it, whatever the order of its messages: a loop nobody trusts makes them."""
    said: Json = {"model": model, "max_tokens": request.max_output_tokens}
    if system := _system(request.messages):
        said["system"] = system
    said["messages"] = _turns(request.messages)
    if request.tools:
        said["tools"] = [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in request.tools
        ]
    return said


def _system(messages: Sequence[Mapping[str, Any]]) -> str:
    said = (message["content"] for message in messages if message["role"] == "system")
    return "\n\n".join(text for text in said if text.strip())


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Give the turns of user and model, each in one: the results of calls made side by side must stand in one."""
    turns: list[tuple[str, list[Json]]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    if not turns or turns[0][0] == "assistant":
        turns.insert(0, ("user", [_NOTHING]))
    # The API wants results before text; the order among them stays.
    return [
        {"role": role, "content": sorted(blocks, key=lambda block: block["type"] != "tool_result")}
        for role, blocks in turns
    ]


def _blocks(message: Mapping[str, Any]) -> list[Json]:
    content = message["content"]
    if message["role"] == "tool":
        result: Json = {"type": "tool_result", "tool_use_id": message["call_id"]}
        if content.strip():
            result["content"] = content
        return [{**result, "is_error": message.get("status") == "error"}]
    texts = [{"type": "text", "text": content}] if content.strip() else []
    if message["role"] == "user":
        return texts
    calls = [
        {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]}
        for call in message.get("calls", ())
    ]
    return [*texts, *calls] or [_NOTHING]


def reply(said: object, asked: str, turn: int) -> Reply:
    """Read an answer of the API to a request for a model in a turn, which counts from 0; raises Malformed."""
    said = answer.an_object(said, "it")
    text: list[str] = []
    calls: list[Asked] = []
    for block in answer.a_list(said.get("content"), "its content"):
        kind = answer.an_object(block, "a block of its content").get("type")
        if kind == "text":
            text.append(answer.a_string(block.get("text"), "its text"))
        elif kind == "tool_use":
            calls.append(_asked(block))
    stop_reason = _STOP_REASONS.get(answer.a_string(said.get("stop_reason"), "its stop reason"))
    if stop_reason is None:
        raise Malformed("its stop reason is not known")
    if stop_reason in ("end", "tool_use"):
        stop_reason = "tool_use" if calls else "end"
    return Reply(
        "".join(text),
        answer.calls(calls, turn),
        stop_reason,
        _usage(answer.an_object(said.get("usage"), "its usage")),
        answer.answered_by(said.get("model"), asked),
    )


def _asked(block: Json) -> Asked:
    arguments = {} if block.get("input") is None else block["input"]
    if isinstance(arguments, dict):
        return Asked(block.get("id"), block.get("name"), arguments)
    written = json.dumps(arguments, ensure_ascii=False)[: answer.MALFORMED_MOST]
    return Asked(block.get("id"), block.get("name"), {}, written)


def _usage(said: Json) -> Usage:
    cached = answer.tokens(said, "cache_read_input_tokens", 0)
    fresh = answer.tokens(said, "input_tokens") + answer.tokens(said, "cache_creation_input_tokens", 0)
    return answer.usage(fresh + cached, answer.tokens(said, "output_tokens"), cached)
