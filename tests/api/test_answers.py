from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, cast

import pytest

from spl.api.answers import JsonAnswer, error_answer, record_listing, send_json, written
from spl.errors import AdmissionCeiling, IsolationUnavailable, Unauthenticated, table
from spl.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Message, Receive, Send

RECORDS = [
    Record("0" * 64, (), "th_x", "did:sync:user:op", "KNOW", {}, n, "SCALAR", None, n) for n in (1, 2, 3)
]


def test_an_answer_is_compact_utf8() -> None:
    assert JsonAnswer({"é": [1, "\u2028"]}).body == '{"é":[1,"\u2028"]}'.encode()


def test_an_answer_never_holds_what_is_not_json() -> None:
    with pytest.raises(ValueError, match="JSON"):
        JsonAnswer({"x": float("nan")})


def test_every_error_is_answered_in_one_shape_with_its_status() -> None:
    for error in table():
        answer = error_answer(error("what failed", extra=1))
        said = json.loads(bytes(answer.body))
        assert answer.status_code == error.status
        assert set(said) == {"object", "type", "code", "message", "extra"}
        assert (said["object"], said["code"]) == ("error", error.code)


@pytest.mark.claim("A2")
def test_a_full_house_says_when_to_come_again_and_a_refused_layer_its_facts() -> None:
    full = error_answer(AdmissionCeiling("full", admission_capacity=2, retry_after_secs=7))
    assert full.headers["retry-after"] == "7"
    assert json.loads(bytes(full.body))["admission_capacity"] == 2
    refused = error_answer(IsolationUnavailable("no", layer="network", remedy="mend it"))
    assert json.loads(bytes(refused.body))["layer"] == "network"
    assert "retry-after" not in refused.headers
    assert error_answer(Unauthenticated("no")).headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("limit", "given", "more"), [(3, 3, False), (2, 2, True), (5, 3, False)])
def test_a_listing_says_whether_there_is_more(limit: int, given: int, more: bool) -> None:
    async def read(since: int, most: int) -> list[Record]:
        return [record for record in RECORDS if record.sequence > since][:most]

    said = json.loads(bytes(asyncio.run(record_listing(read, 0, limit)).body))
    assert (said["object"], len(said["data"]), said["has_more"]) == ("list", given, more)


def test_a_door_is_answered_as_everyone_is() -> None:
    document = {"text": "é \udc80", "fulfills": None}

    async def messages(answer: Callable[[Send], Awaitable[None]]) -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        await answer(send)
        return sent

    async def compared() -> None:
        answer = JsonAnswer(document)
        same = await messages(lambda send: answer({"type": "http"}, cast("Receive", None), send))
        assert await messages(lambda send: send_json(send, written(document))) == same

    asyncio.run(compared())
