"""The provider that answers by OpenAI's Chat Completions API, as Ollama, vLLM, llama.cpp and others do too."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from spl.inference import answer
from spl.inference.answer import Asked, Malformed
from spl.inference.endpoint import Endpoint
from spl.inference.model import Reply
from spl.inference.prices import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spl.inference.model import Request, StopReason, Usage
    from spl.inference.prices import Price

Json = dict[str, Any]

_STOP_REASONS: Final[Mapping[str | None, StopReason]] = {
    None: "end",
    "stop": "end",
    "eos": "end",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "length",
    "content_filter": "refusal",
}


class OpenAiProvider:
    """Asks the Chat Completions API at a base URL, that with `/v1`; `seconds` bound one attempt."""

    def __init__(
        self,
        url: str,
        model: str,
        key: Callable[[], str | None],
        *,
        seconds: float,
        name: str = "openai",
    ) -> None:
        self.name = name
        self.default_model = model
        self.url: str | None = url
        # OpenAI's own newer models refuse the old name; what imitates them often knows no other.
        self._bound = "max_completion_tokens" if urlsplit(url).hostname == "api.openai.com" else "max_tokens"
        self._endpoint = Endpoint(
            url,
            key=key,
            authorize=lambda word: {"authorization": f"Bearer {word}"},
            headers={},
            seconds=seconds,
            name=name,
        )

    async def complete(self, request: Request) -> Reply:
        """Give the model's reply; raises Unanswered where there is none."""
        asked = request.model or self.default_model
        return await self._endpoint.post(
            "/chat/completions",
            partial(document, request, asked, self._bound),
            partial(reply, asked=asked, turn=request.turn),
            size=request.size,
        )

    def price(self, model: str) -> Price | None:
        """Give what the model costs by the list, None if it does not have it."""
        return listed(self._endpoint.url, model)

    async def close(self) -> None:
        """Close its connections."""
        await self._endpoint.close()


def document(request: Request, model: str, bound: str) -> Json:
    """Give a request as the API takes it; `bound` is what it calls the most tokens of output."""
    said: Json = {
        "model": model,
        bound: request.max_output_tokens,
        "messages": [_message(message) for message in request.messages],
    }
    if request.tools:
        names = ("name", "description", "parameters")
        said["tools"] = [
            {"type": "function", "function": {name: tool[name] for name in names}} for tool in request.tools
        ]
    return said


def _message(message: Mapping[str, Any]) -> Json:
    said: Json = {"role": message["role"], "content": message["content"]}
    if message["role"] == "tool":
        return {**said, "tool_call_id": message["call_id"]}
    if message["role"] == "assistant" and message.get("calls"):
        said["tool_calls"] = [_called(call) for call in message["calls"]]
    return said


def _called(call: Mapping[str, Any]) -> Json:
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": arguments}}


def reply(said: object, asked: str, turn: int) -> Reply:
    """Read an answer of the API to a request for a model in a turn, which counts from 0; raises Malformed."""
    said = answer.an_object(said, "it")
    choices = answer.a_list(said.get("choices"), "its list of choices")
    choice = answer.an_object(choices[0] if choices else None, "its first choice")
    message = answer.an_object(choice.get("message"), "its message")
    calls = answer.calls([_asked(call) for call in _calls(message)], turn)
    text, refused = _text(message)
    reason = choice.get("finish_reason")
    if not (reason is None or isinstance(reason, str)) or reason not in _STOP_REASONS:
        raise Malformed("its finish reason is not known")
    stop_reason = "refusal" if refused else _STOP_REASONS[reason]
    if stop_reason in ("end", "tool_use"):
        # Some say stop, or nothing, of a reply that asks for tools.
        stop_reason = "tool_use" if calls else "end"
    return Reply(
        text,
        calls,
        stop_reason,
        _usage(answer.an_object(said.get("usage"), "its usage")),
        answer.answered_by(said.get("model"), asked),
    )


def _text(message: Json) -> tuple[str, bool]:
    """Give the text of a message, and whether it is a refusal."""
    if refusal := message.get("refusal"):
        return answer.a_string(refusal, "its refusal"), True
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or "", False
    parts = [
        answer.an_object(part, "a part of its content") for part in answer.a_list(content, "its content")
    ]
    texts = (part.get("text") for part in parts if part.get("type") == "text")
    return "".join(answer.a_string(text, "its text") for text in texts), False


def _calls(message: Json) -> list[Any]:
    if (called := message.get("tool_calls")) is not None:
        return answer.a_list(called, "its list of calls")
    # As it was before calls could be several.
    return [] if (one := message.get("function_call")) is None else [{"function": one}]


def _asked(call: object) -> Asked:
    call = answer.an_object(call, "a call")
    function = answer.an_object(call.get("function"), "a call's function")
    arguments, malformed = _arguments(function.get("arguments"))
    return Asked(call.get("id"), function.get("name"), arguments, malformed)


def _arguments(written: object) -> tuple[Json, str | None]:
    """Give the arguments of a call, or what the model wrote in their place."""
    if isinstance(written, dict):
        return written, None
    if written is None:
        return {}, None
    text = written if isinstance(written, str) else json.dumps(written, ensure_ascii=False)
    if not text.strip():
        return {}, None
    try:
        arguments = answer.strict(text)
    except Malformed:
        arguments = None
    if isinstance(arguments, dict):
        return arguments, None
    return {}, text[: answer.MALFORMED_MOST]


def _usage(said: Json) -> Usage:
    details = said.get("prompt_tokens_details")
    cached = 0
    if details is not None:
        details = answer.an_object(details, "the details of its usage")
        cached = answer.tokens(details, "cached_tokens", 0)
    return answer.usage(
        answer.tokens(said, "prompt_tokens"), answer.tokens(said, "completion_tokens"), cached
    )
