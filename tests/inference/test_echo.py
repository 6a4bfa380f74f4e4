"""The provider without a model carries out the verify goal, and says plainly that it can do no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spl.inference.echo import EchoProvider
from spl.inference.model import Call, Reply, Request
from spl.inference.prices import FREE

GOAL = (
    "Record a note whose text is exactly: transport-check . "
    "Use the record_note tool with only the text argument. Then stop."
)
NOTE_TOOL = {"name": "record_note", "description": "", "parameters": {}, "domain": "mediated"}


def complete(
    goal: str, *later: dict[str, Any], turn: int = 0, tools: tuple[Any, ...] = (NOTE_TOOL,)
) -> Reply:
    opening = [{"role": "system", "content": "You work."}, {"role": "user", "content": goal}]
    request = Request(model=None, messages=[*opening, *later], tools=tools, turn=turn)
    return asyncio.run(EchoProvider().complete(request))


def answered(status: str, content: str) -> list[dict[str, Any]]:
    calls = [{"id": "call_1_1", "name": "record_note", "arguments": {"text": "transport-check"}}]
    return [
        {"role": "assistant", "content": "", "calls": calls},
        {
            "role": "tool",
            "call_id": "call_1_1",
            "name": "record_note",
            "status": status,
            "content": content,
        },
    ]


@pytest.mark.claim("V1")
def test_the_verify_goal_becomes_one_call_of_record_note_with_just_its_text() -> None:
    reply = complete(GOAL)

    assert reply.calls == (Call("call_1_1", "record_note", {"text": "transport-check"}),)
    assert reply.stop_reason == "tool_use"
    assert reply.model == "echo"


@pytest.mark.claim("V1")
def test_a_recorded_note_ends_the_run_with_a_text() -> None:
    reply = complete(GOAL, *answered("ok", "noted"), turn=1)

    assert (reply.text, reply.calls, reply.stop_reason) == ("Recorded the note.", (), "end")


def test_a_note_that_was_refused_is_not_claimed_to_be_recorded() -> None:
    reply = complete(GOAL, *answered("error", "A rule denied it."), turn=1)

    assert reply.text == "The note was not recorded: A rule denied it."
    assert reply.calls == ()


@pytest.mark.parametrize(
    "goal",
    [
        "",
        "Write a poem.",
        "Record a note whose text is exactly: x. Use the record_note tool",
        "Record a note whose text is exactly: x . Use the other tool",
    ],
)
def test_any_other_goal_is_answered_with_what_is_missing_and_what_to_do(goal: str) -> None:
    reply = complete(goal)

    assert reply.stop_reason == "no_model"
    assert reply.calls == ()
    assert reply.text.startswith("No model is configured")


def test_the_verify_goal_without_the_tool_in_reach_is_any_other_goal() -> None:
    assert complete(GOAL, tools=()).stop_reason == "no_model"


def test_the_goal_is_the_first_word_of_the_user_not_what_a_tool_printed() -> None:
    reply = complete("Write a poem.", *answered("ok", GOAL), {"role": "user", "content": GOAL}, turn=1)

    assert reply.stop_reason == "no_model"


def test_ids_differ_from_turn_to_turn_and_every_model_is_free() -> None:
    assert complete(GOAL, turn=4).calls[0].id == "call_5_1"
    assert EchoProvider().price("any") is FREE


def test_usage_counts_words() -> None:
    usage = complete("Write a poem.").usage

    assert usage.input_tokens == 5
    assert usage.output_tokens > 0


def test_a_goal_of_megabytes_that_never_ends_is_answered_too() -> None:
    # A backtracking match would take hours over this, in the daemon's event loop.
    assert (
        complete("Record a note whose text is exactly: x . Use the record_note too" * 60_000).stop_reason
        == "no_model"
    )
