"""Chat Completions is asked in its own form, and its answers, those of its imitators too, are read into replies."""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings

from spl.inference.answer import Malformed, strict
from spl.inference.broker import reply_fault, usage_fault
from spl.inference.model import Call, Reply, Unanswered, Usage
from spl.inference.openai import OpenAiProvider, document, reply
from tests.inference.conversations import PARAMETERS, asking
from tests.inference.mutated import ANY, mutated
from tests.inference.served import Served, answer, serving

KEY = "sk-proj-4Tq9ZrWm2LxVb8Nc"
ANSWER: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m-2024",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Both.",
                "reasoning_content": "Hm.",
                "refusal": None,
                "tool_calls": [
                    {
                        "id": "t1",
                        "type": "function",
                        "function": {"name": "record_note", "arguments": '{"text": "é"}'},
                    },
                    {"id": "t2", "type": "function", "function": {"name": "calculate", "arguments": "{}"}},
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 17, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}},
}
REPLY = Reply(
    "Both.",
    (Call("t1", "record_note", {"text": "é"}), Call("t2", "calculate", {})),
    "tool_use",
    Usage(17, 7, 4),
    "m-2024",
)


def completed(said: Any, key: str | None = KEY, model: str | None = "m") -> tuple[Reply, Served]:
    async def complete() -> tuple[Reply, Served]:
        async with serving(answer(said)) as served:
            provider = OpenAiProvider(f"{served.url}/v1", "default", lambda: key, seconds=30)
            try:
                return await provider.complete(asking(model=model)), served
            finally:
                await provider.close()

    return asyncio.run(complete())


def with_(
    message: dict[str, Any] | None = None, choice: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """Give the answer with some fields changed, in its message, its choice and itself."""
    said = {**deepcopy(ANSWER), **fields}
    said["choices"][0]["message"].update(message or {})
    said["choices"][0].update(choice or {})
    return said


def read(message: dict[str, Any] | None = None, choice: dict[str, Any] | None = None, **fields: Any) -> Reply:
    return reply(with_(message, choice, **fields), "m", 1)


def test_a_conversation_with_calls_side_by_side_is_sent_as_the_api_takes_it() -> None:
    said, served = completed(ANSWER)

    assert said == REPLY
    request = served.seen[0]
    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "m",
        "max_tokens": 500,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Do both."},
            {
                "role": "assistant",
                "content": "I will.",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "record_note", "arguments": '{"text": "é"}'},
                    },
                    {"id": "c2", "type": "function", "function": {"name": "calculate", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "content": "Noted.", "tool_call_id": "c1"},
            {"role": "tool", "content": "No JSON.", "tool_call_id": "c2"},
        ],
        "tools": [
            {"type": "function", "function": {"name": name, "description": said, "parameters": PARAMETERS}}
            for name, said in (("record_note", "Notes."), ("calculate", "Sums."))
        ],
    }


def test_without_a_key_none_is_sent_and_without_a_model_the_default_is_asked() -> None:
    request = completed(ANSWER, None, None)[1].seen[0]

    assert "authorization" not in request.headers
    assert request.body["model"] == "default"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens"),
        ("https://api.openai.com.example/v1", "max_tokens"),
        ("http://127.0.0.1:11434/v1", "max_tokens"),
    ],
)
def test_the_bound_of_the_output_has_the_name_that_the_server_knows(url: str, name: str) -> None:
    bound = OpenAiProvider(url, "m", lambda: None, seconds=1)._bound

    said = document(asking([{"role": "assistant", "content": ""}], tools=[]), "m", bound)

    assert said == {"model": "m", name: 500, "messages": [{"role": "assistant", "content": ""}]}


@pytest.mark.parametrize(
    ("written", "arguments", "malformed"),
    [
        ('{"a": 1}', {"a": 1}, None),
        ({"a": 1}, {"a": 1}, None),
        ("", {}, None),
        (" ", {}, None),
        (None, {}, None),
        ("{", {}, "{"),
        ("[1]", {}, "[1]"),
        ("null", {}, "null"),
        ('{"a": NaN}', {}, '{"a": NaN}'),
        ('{"a": "\\ud800"}', {}, '{"a": "\\ud800"}'),
        ("a" * 2000, {}, "a" * 1000),
        ([1], {}, "[1]"),
        (5, {}, "5"),
    ],
)
def test_arguments_are_an_object_or_what_was_written_in_its_place(
    written: Any, arguments: dict[str, Any], malformed: str | None
) -> None:
    called = {"id": "t1", "function": {"name": "n", "arguments": written}}

    assert read({"tool_calls": [called]}).calls == (Call("t1", "n", arguments, malformed),)


def test_a_call_of_the_old_form_is_one() -> None:
    called = {"name": "n", "arguments": "{}"}

    said = read({"tool_calls": None, "function_call": called}, {"finish_reason": "function_call"})

    assert (said.calls, said.stop_reason) == ((Call("call_2_1", "n", {}),), "tool_use")


@pytest.mark.parametrize(
    ("said", "stop_reason"),
    [
        ("stop", "end"), ("eos", "end"), (None, "end"), ("tool_calls", "end"), ("function_call", "end"),
        ("length", "length"), ("content_filter", "refusal"),
    ],
)  # fmt: skip
def test_why_a_reply_ends_is_read(said: str | None, stop_reason: str) -> None:
    assert read({"tool_calls": []}, {"finish_reason": said}).stop_reason == stop_reason
    with_calls = "tool_use" if stop_reason == "end" else stop_reason
    assert read({}, {"finish_reason": said}).stop_reason == with_calls


def test_a_refusal_is_what_the_model_says() -> None:
    said = read({"refusal": "I will not.", "content": None, "tool_calls": None}, {"finish_reason": "stop"})

    assert (said.text, said.stop_reason) == ("I will not.", "refusal")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("One.", "One."),
        ([], ""),
        (
            [{"type": "text", "text": "One, "}, {"type": "other"}, {"type": "text", "text": "two."}],
            "One, two.",
        ),
    ],
)
def test_a_text_may_be_in_parts_or_none(content: Any, text: str) -> None:
    assert read({"content": content}).text == text


@pytest.mark.parametrize("details", [{}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {}}])
def test_a_server_without_a_cache_need_not_speak_of_it(details: dict[str, Any]) -> None:
    assert read(usage={"prompt_tokens": 5, "completion_tokens": 6, **details}).usage == Usage(5, 6)


COUNTS = {"prompt_tokens": 5, "completion_tokens": 6}


@pytest.mark.parametrize(
    "said",
    [
        with_(usage=None),
        with_(usage={"prompt_tokens": 5}),
        with_(usage={**COUNTS, "prompt_tokens_details": {"cached_tokens": 6}}),
        with_(usage={**COUNTS, "prompt_tokens_details": 5}),
        {**ANSWER, "choices": []},
        {"error": {"message": "No.", "code": 500}},
        with_({}, {"message": None}),
        with_({}, {"finish_reason": "error"}),
        with_({}, {"finish_reason": ["stop"]}),
        with_({"content": 5}),
        with_({"content": ["One."]}),
        with_({"refusal": 5}),
        with_({"tool_calls": "none"}),
        with_({"tool_calls": [{"type": "custom", "custom": {}}]}),
        with_({"tool_calls": [{"function": {"arguments": "{}"}}]}),
    ],
)
def test_an_answer_that_is_no_reply_is_told_and_may_be_owed(said: dict[str, Any]) -> None:
    with pytest.raises(Unanswered, match=r"^the provider 'openai' gave a malformed reply: ") as raised:
        completed(said)
    assert not raised.value.unpaid


def test_its_prices_are_those_of_the_list_for_its_address() -> None:
    provider = OpenAiProvider("https://api.openai.com/v1", "m", lambda: None, seconds=1)
    price = provider.price("gpt-4o-mini")

    assert price is not None
    assert price.cost(Usage(1_000_000, 0)) > 0
    assert provider.price("no-such-model") is None
    assert OpenAiProvider("http://127.0.0.1:1/v1", "m", lambda: None, seconds=1).price("gpt-4o-mini") is None


@settings(max_examples=150, deadline=None)
@given(ANY | mutated(ANSWER))
def test_whatever_an_answer_holds_it_is_a_reply_the_log_can_take_or_malformed(said: Any) -> None:
    try:
        found = reply(strict(json.dumps(said)), "m", 0)
    except Malformed:
        return
    assert (usage_fault(found.usage), reply_fault(found)) == (None, None)
