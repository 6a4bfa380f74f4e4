"""The Messages API is asked in its own form, whatever order a loop sends, and its answers are read into replies."""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings

from spl.inference.answer import Malformed, strict
from spl.inference.anthropic import AnthropicProvider, document, reply
from spl.inference.broker import reply_fault, usage_fault
from spl.inference.model import Call, Reply, Unanswered, Usage
from tests.inference.conversations import PARAMETERS, TALK, asking
from tests.inference.mutated import ANY, mutated
from tests.inference.served import Served, answer, serving

KEY = "sk-ant-4Tq9ZrWm2LxVb8Nc"
ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m-2024",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "text", "text": "One, "},
        {"type": "tool_use", "id": "t1", "name": "record_note", "input": {"text": "é"}},
        {"type": "tool_use", "id": "t2", "name": "calculate", "input": {}},
        {"type": "text", "text": "two."},
    ],
    "stop_reason": "tool_use",
    "usage": {
        "input_tokens": 10,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 4,
        "output_tokens": 7,
    },
}
REPLY = Reply(
    "One, two.",
    (Call("t1", "record_note", {"text": "é"}), Call("t2", "calculate", {})),
    "tool_use",
    Usage(17, 7, 4),
    "m-2024",
)


def completed(said: Any, model: str | None = "m") -> tuple[Reply, Served]:
    async def complete() -> tuple[Reply, Served]:
        async with serving(answer(said)) as served:
            provider = AnthropicProvider(served.url, "default", lambda: KEY, seconds=30)
            try:
                return await provider.complete(asking(model=model)), served
            finally:
                await provider.close()

    return asyncio.run(complete())


def read(**fields: Any) -> Reply:
    return reply({**deepcopy(ANSWER), **fields}, "m", 1)


def turns(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(asking(messages), "m")["messages"]
    return found


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def test_a_conversation_with_calls_side_by_side_is_sent_as_the_api_takes_it() -> None:
    said, served = completed(ANSWER)

    assert said == REPLY
    request = served.seen[0]
    assert request.line == "POST /v1/messages HTTP/1.1"
    assert (request.headers["x-api-key"], request.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert request.body == {
        "model": "m",
        "max_tokens": 500,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [text("Do both.")]},
            {
                "role": "assistant",
                "content": [
                    text("I will."),
                    {"type": "tool_use", "id": "c1", "name": "record_note", "input": {"text": "é"}},
                    {"type": "tool_use", "id": "c2", "name": "calculate", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "Noted.", "is_error": False},
                    {"type": "tool_result", "tool_use_id": "c2", "content": "No JSON.", "is_error": True},
                ],
            },
        ],
        "tools": [
            {"name": "record_note", "description": "Notes.", "input_schema": PARAMETERS},
            {"name": "calculate", "description": "Sums.", "input_schema": PARAMETERS},
        ],
    }


def test_without_a_model_the_default_is_asked() -> None:
    assert completed(ANSWER, None)[1].seen[0].body["model"] == "default"


def test_what_is_not_there_is_left_out() -> None:
    said = document(asking([{"role": "user", "content": "Hi."}], tools=[]), "m")

    assert sorted(said) == ["max_tokens", "messages", "model"]


def test_all_that_the_system_says_stands_in_one_place() -> None:
    said = [{"role": "system", "content": each} for each in ("One.", " ", "Two.")]

    asked = document(asking([said[0], TALK[1], *said[1:]]), "m")

    assert asked["system"] == "One.\n\nTwo."
    assert asked["messages"] == [{"role": "user", "content": [text("Do both.")]}]


USER, MODEL = {"role": "user", "content": "U."}, {"role": "assistant", "content": "A."}
BLANK = {"role": "user", "content": " \n"}
SILENT = {"role": "assistant", "content": ""}
RESULT = {"role": "tool", "call_id": "c1", "name": "n", "content": ""}
EMPTY = {"type": "tool_result", "tool_use_id": "c1", "is_error": False}


@pytest.mark.parametrize(
    ("messages", "sent"),
    [
        ([], [("user", [text("(nothing)")])]),
        ([BLANK], [("user", [text("(nothing)")])]),
        ([MODEL], [("user", [text("(nothing)")]), ("assistant", [text("A.")])]),
        ([USER, USER], [("user", [text("U."), text("U.")])]),
        (
            [USER, SILENT, USER],
            [("user", [text("U.")]), ("assistant", [text("(nothing)")]), ("user", [text("U.")])],
        ),
        ([USER, MODEL, BLANK, MODEL], [("user", [text("U.")]), ("assistant", [text("A."), text("A.")])]),
        ([USER, RESULT], [("user", [EMPTY, text("U.")])]),
        ([RESULT, USER], [("user", [EMPTY, text("U.")])]),
    ],
)
def test_whatever_a_loop_sends_becomes_turns_that_alternate_and_say_something(
    messages: list[dict[str, Any]], sent: list[tuple[str, list[Any]]]
) -> None:
    assert turns(*messages) == [{"role": role, "content": content} for role, content in sent]


@pytest.mark.parametrize(
    ("said", "stop_reason"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("pause_turn", "end"),
        ("tool_use", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
    ],
)
def test_why_a_reply_ends_is_read(said: str, stop_reason: str) -> None:
    assert read(stop_reason=said, content=[]).stop_reason == stop_reason
    with_calls = "tool_use" if stop_reason == "end" else stop_reason
    assert read(stop_reason=said).stop_reason == with_calls


def test_a_call_without_an_object_is_malformed_and_holds_what_was_written() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "n"}

    assert read(content=[{**block, "input": ["é"]}]).calls == (Call("t1", "n", {}, '["é"]'),)
    assert read(content=[{**block, "input": "a" * 2000}]).calls[0].malformed == '"' + "a" * 999
    assert read(content=[{**block, "input": None}, block]).calls == (
        Call("t1", "n", {}),
        Call("call_2_2", "n", {}),
    )


def test_what_the_cache_gave_is_part_of_the_input_and_may_be_null() -> None:
    assert read(usage={"input_tokens": 1, "output_tokens": 2}).usage == Usage(1, 2)
    nulls = {"cache_creation_input_tokens": None, "cache_read_input_tokens": None}
    assert read(usage={"input_tokens": 1, "output_tokens": 2, **nulls}).usage == Usage(1, 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_reason": "other"}, {"stop_reason": None}, {"content": None}, {"content": ["text"]},
        {"content": [{"type": "text"}]}, {"content": [{"type": "tool_use"}]}, {"usage": None},
        {"usage": {"output_tokens": 1}}, {"usage": {"input_tokens": 1}},
        {"usage": {"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": -1}},
    ],
)  # fmt: skip
def test_an_answer_that_is_no_reply_is_told_and_may_be_owed(fields: dict[str, Any]) -> None:
    with pytest.raises(Unanswered, match=r"^the provider 'anthropic' gave a malformed reply: ") as raised:
        completed({**ANSWER, **fields})
    assert not raised.value.unpaid


def test_its_prices_are_those_of_the_list_for_its_address() -> None:
    provider = AnthropicProvider("https://api.anthropic.com", "m", lambda: None, seconds=1)
    price = provider.price("claude-sonnet-4-5")

    assert price is not None
    assert price.cost(Usage(1_000_000, 0)) > 0
    assert provider.price("no-such-model") is None
    assert (
        AnthropicProvider("http://127.0.0.1:1", "m", lambda: None, seconds=1).price("claude-sonnet-4-5")
        is None
    )


@settings(max_examples=150, deadline=None)
@given(ANY | mutated(ANSWER))
def test_whatever_an_answer_holds_it_is_a_reply_the_log_can_take_or_malformed(said: Any) -> None:
    try:
        found = reply(strict(json.dumps(said)), "m", 0)
    except Malformed:
        return
    assert (usage_fault(found.usage), reply_fault(found)) == (None, None)
