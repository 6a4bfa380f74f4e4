"""Scripts replay what they say, turn by turn, and one that is not valid is refused with its place."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from spl.errors import SettingsInvalid
from spl.inference.model import Call, Reply, Request, Unanswered, Usage
from spl.inference.prices import FREE
from spl.inference.script import ScriptProvider

if TYPE_CHECKING:
    from pathlib import Path


def load(tmp_path: Path, text: str) -> ScriptProvider:
    path = tmp_path / "script.json"
    path.write_text(text)
    return ScriptProvider.load(str(path))


def turn(provider: ScriptProvider, number: int) -> Reply:
    return asyncio.run(provider.complete(Request(model=None, messages=[], tools=[], turn=number)))


def test_replies_are_given_by_turn_in_any_order_and_as_often_as_asked(tmp_path: Path) -> None:
    replies = [
        {
            "text": "First.",
            "calls": [{"name": "a", "arguments": {}}, {"id": "x", "name": "b", "arguments": {"n": 1}}],
        },
        {"text": "Cut off", "stop_reason": "length", "usage": {"input_tokens": 7, "output_tokens": 9}},
    ]
    provider = load(tmp_path, json.dumps({"replies": replies}))

    cut_off = Reply("Cut off", (), "length", Usage(7, 9), "script")
    calls = (Call("call_1_1", "a", {}), Call("x", "b", {"n": 1}))
    first = Reply("First.", calls, "tool_use", Usage(0, 0), "script")
    assert [turn(provider, number) for number in (1, 0, 1)] == [cut_off, first, cut_off]


def test_past_its_end_a_script_closes_the_run(tmp_path: Path) -> None:
    reply = turn(load(tmp_path, '{"replies": []}'), 0)

    assert (reply.text, reply.calls, reply.stop_reason) == ("The script has no more replies.", (), "end")


def test_a_scripted_failure_is_a_provider_that_failed(tmp_path: Path) -> None:
    provider = load(tmp_path, '{"replies": [{"fail": "It is overloaded."}]}')

    with pytest.raises(Unanswered, match=r"^It is overloaded\.$"):
        turn(provider, 0)


def test_a_script_costs_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, '{"replies": []}').price("script") is FREE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[]", "the script is not an object"),
        ("{}", "replies is not a list"),
        ('{"replies": {}}', "replies is not a list"),
        ('{"replies": [], "turns": 1}', "the script has a field 'turns' that is not known"),
        ('{"replies": [], "replies": []}', "an object has the same field twice"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_file_that_is_not_a_script_is_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SettingsInvalid, match=r"script\.json' is not valid: ") as raised:
        load(tmp_path, text)

    assert why in raised.value.message


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("1", "it is not an object"),
        ('{"txt": "x"}', "it has a field 'txt' that is not known"),
        ('{"text": null}', "text is not a string"),
        ('{"fail": 1}', "fail is not a string"),
        ('{"fail": ""}', "fail is no line of text"),
        ('{"fail": "a\\nb"}', "fail is no line of text"),
        ('{"fail": "x", "text": "y"}', "it has a field 'text' that is not known"),
        ('{"calls": {}}', "calls is not a list"),
        ('{"calls": [1]}', "a call is not an object"),
        ('{"calls": [{"arguments": {}}]}', "a call's name is not a string"),
        ('{"calls": [{"name": "a"}]}', "a call's arguments are not an object"),
        ('{"calls": [{"name": "a", "arguments": []}]}', "a call's arguments are not an object"),
        ('{"calls": [{"name": "a", "arguments": {}, "id": 1}]}', "a call's id is not a string"),
        ('{"stop_reason": "tired"}', "stop_reason is not one of end, tool_use, length, refusal, no_model"),
        ('{"stop_reason": []}', "stop_reason is not one of"),
        ('{"usage": []}', "usage is not an object"),
        ('{"usage": {"input_tokens": -1}}', "usage.input_tokens is not a whole number from 0"),
        ('{"usage": {"output_tokens": true}}', "usage.output_tokens is not a whole number from 0"),
        ('{"usage": {"tokens": 1}}', "usage has a field 'tokens' that is not known"),
    ],
)
def test_a_reply_that_is_not_valid_is_refused_by_file_and_index(tmp_path: Path, entry: str, why: str) -> None:
    with pytest.raises(SettingsInvalid, match=r"script\.json' is not valid: replies\[1\]: ") as raised:
        load(tmp_path, f'{{"replies": [{{}}, {entry}]}}')

    assert why in raised.value.message


def test_a_constant_that_json_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="NaN is not JSON"):
        load(tmp_path, '{"replies": [{"calls": [{"name": "a", "arguments": {"n": NaN}}]}]}')


def test_a_file_that_is_not_there_or_not_text_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"absent\.json' cannot be read: No such file or directory"):
        ScriptProvider.load(str(tmp_path / "absent.json"))
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsInvalid, match=r"bytes\.json' is not valid: "):
        ScriptProvider.load(str(tmp_path / "bytes.json"))
