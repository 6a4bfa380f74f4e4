"""A conversation is weighed by what was counted of it, and by its bytes where nothing was."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest

from spl.inference.model import Request
from spl.inference.scale import AROUND, UNSEEN, Scale

Json = dict[str, Any]

SYSTEM: Json = {"role": "system", "content": "Work on it."}
USER: Json = {"role": "user", "content": "A goal. " * 50}
REPLY: Json = {"role": "assistant", "content": "On it.", "calls": []}


def asked(*messages: Json) -> Request:
    return Request("m", messages, [{"name": "a tool"}], 0)


def said(*messages: Json) -> int:
    return sum(len(each["content"].encode()) for each in messages)


@pytest.mark.parametrize(
    "text", ["words and words", "日本語の目標", "🦜" * 40, "\x00\x1f\ud800", 'quotes "\\"']
)
def test_a_first_request_is_weighed_at_no_less_than_its_bytes(text: str) -> None:
    message = {"role": "user", "content": text}

    most = Scale().most(asked(SYSTEM, message))

    assert most >= UNSEEN + len(text.encode("utf-8", "surrogatepass")) + said(SYSTEM)


@pytest.mark.claim("B2")
def test_a_character_that_some_tokenizers_first_make_many_of_is_weighed_at_those() -> None:
    ligature = "\ufdfa"
    assert len(unicodedata.normalize("NFKC", ligature).encode()) == 33

    most = Scale().most(asked({"role": "user", "content": ligature * 3000}))

    assert most >= 3000 * 33


def test_what_a_provider_has_counted_is_taken_for_what_it_is_and_only_the_rest_by_its_bytes() -> None:
    scale = Scale()
    scale.most(asked(SYSTEM, USER))
    scale.measured(130)

    most = scale.most(asked(SYSTEM, USER, REPLY))

    assert 130 + said(REPLY) <= most <= 130 + said(REPLY) + AROUND + 60
    scale.measured(140)
    assert scale.most(asked(SYSTEM, USER, REPLY)) == 140


@pytest.mark.parametrize(
    "messages",
    [(USER, SYSTEM, REPLY), (SYSTEM,), ({**SYSTEM, "content": "Other words."}, USER, REPLY), (SYSTEM, REPLY)],
    ids=["turned round", "shorter", "rewritten", "cut out"],
)
def test_another_conversation_than_was_counted_is_weighed_anew(messages: tuple[Json, ...]) -> None:
    scale = Scale()
    scale.most(asked(SYSTEM, USER))
    scale.measured(1)

    assert scale.most(asked(*messages)) == Scale().most(asked(*messages))


def test_a_request_that_was_weighed_and_never_counted_is_not_known() -> None:
    scale = Scale()
    first = scale.most(asked(SYSTEM, USER))

    assert scale.most(asked(SYSTEM, USER)) == first


@pytest.mark.claim("B2")
def test_tools_and_what_is_around_each_message_are_weighed_with_it() -> None:
    empty: Json = {"role": "user", "content": ""}
    none, many = (Scale().most(asked(*[empty] * count)) for count in (1, 11))
    assert many - none >= 10 * AROUND
    tools = [{"name": "a tool", "description": "x" * 5000}]
    assert Scale().most(Request("m", [empty], tools, 0)) >= none + 4900
