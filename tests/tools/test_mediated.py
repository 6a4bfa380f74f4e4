from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from spl.records.record import Record
from spl.tools.mediated import NOTE_LIMIT, Result, read_thread, record_note

if TYPE_CHECKING:
    from collections.abc import Sequence


class Thread:
    """A reader of one thread, `th_x`, whose records' bodies are given."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self._records = [
            Record("0" * 64, (), "th_x", "did:sync:user:mia", "KNOW", body, at, "SCALAR", None, at)
            for at, body in enumerate(bodies, start=1)
        ]

    async def read(self, thread: str, since: int, limit: int) -> list[Record]:
        if thread != "th_x":
            return []
        return [record for record in self._records if record.sequence > since][:limit]


def note(**arguments: object) -> Result:
    return asyncio.run(record_note(Thread(), arguments))


def read(*bodies: dict[str, Any], **arguments: object) -> Result:
    return asyncio.run(read_thread(Thread(*bodies), {"thread": "th_x", **arguments}))


def sequences(result: Result) -> list[int]:
    return [json.loads(line)["sequence"] for line in result.output.splitlines() if line.startswith("{")]


def test_a_note_is_given_to_the_kernel_to_write_as_it_was_said() -> None:
    for text in ("a note", "é\n\t\0", " ", "x" * NOTE_LIMIT):
        assert note(text=text) == Result(
            "ok", "The note is recorded.", (("core.work.note.v1", {"text": text}),)
        )


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"text": ""},
        {"text": None},
        {"text": 7},
        {"text": ["a note"]},
        {"text": "x" * (NOTE_LIMIT + 1)},
        {"text": "a note", "thread": "th_other"},
        {"note": "a note"},
    ],
)
def test_a_note_that_is_none_is_an_error_and_writes_nothing(arguments: Sequence[object]) -> None:
    result = asyncio.run(record_note(Thread(), arguments))  # type: ignore[arg-type]
    assert (result.status, result.records) == ("error", ())
    assert result.output.startswith("record_note takes")


def test_a_thread_is_read_a_line_a_record() -> None:
    result = read({"a": 1}, {"b": "é\n"})
    assert result.status == "ok"
    assert [json.loads(line) for line in result.output.splitlines()] == [
        {"sequence": 1, "actor": "did:sync:user:mia", "body": {"a": 1}},
        {"sequence": 2, "actor": "did:sync:user:mia", "body": {"b": "é\n"}},
    ]


def test_reading_goes_on_from_a_sequence() -> None:
    result = read({}, {}, {}, since=2)
    assert sequences(result) == [3]
    assert (result.read, result.empty) == ("th_x", False)


def test_what_is_empty_what_is_not_there_and_what_is_anothers_are_answered_alike() -> None:
    found = [read({}, since=1), read({}, thread="th_other"), read({}, thread="")]
    assert [(each.status, each.output) for each in found] == [
        ("ok", "(nothing that this run's actor may read)")
    ] * 3
    assert [(each.read, each.empty, each.records) for each in found] == [
        (thread, True, ()) for thread in ("th_x", "th_other", "")
    ]


@pytest.mark.parametrize(
    "bodies",
    [[{"text": "x" * 10_000}] * 7, [{}] * 450, [{"text": "x" * 32_000}] * 3],
    ids=["long records", "many records", "records that fill a piece each"],
)
def test_a_long_thread_is_read_in_pieces_that_lose_nothing(bodies: list[dict[str, Any]]) -> None:
    seen: list[int] = []
    since = 0
    for _ in range(len(bodies)):
        result = read(*bodies, since=since)
        assert len(result.output) < 33_000
        seen += sequences(result)
        if "more follows" not in result.output:
            break
        since = int(result.output.rsplit(" ", 1)[1].rstrip(")"))
    assert seen == list(range(1, len(bodies) + 1))


def test_a_record_larger_than_a_piece_is_cut_and_reading_goes_on_behind_it() -> None:
    first = read({"text": "x" * 40_000}, {"b": 2})
    assert len(first.output) < 33_000
    assert first.output.endswith(" (cut)\n(more follows: read on with since 1)")
    assert sequences(read({"text": "x" * 40_000}, {"b": 2}, since=1)) == [2]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"thread": 7},
        {"thread": None},
        {"thread": "th_x", "since": -1},
        {"thread": "th_x", "since": "1"},
        {"thread": "th_x", "since": True},
        {"thread": "th_x", "since": None},
        {"thread": "th_x", "limit": 5},
    ],
)
def test_a_read_that_is_none_is_an_error_and_counts_as_no_reading(arguments: dict[str, object]) -> None:
    result = asyncio.run(read_thread(Thread({}), arguments))
    assert (result.status, result.records, result.read, result.empty) == ("error", (), None, False)
    assert "thread" in result.output
