"""The tools the kernel runs for anyone: their arguments come from a model, so each is checked here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spl.tools.registry import Reader

NOTE_LIMIT = 16384
"""Characters in a note."""

_OUTPUT_LIMIT = 32768
_RECORDS = 200

SCHEMAS: dict[str, dict[str, Any]] = {
    "record_note": {
        "description": "Write a note on this run's thread, where it stays and can be read by people.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "The note", "minLength": 1, "maxLength": NOTE_LIMIT}
            },
            "required": ["text"],
            "additionalProperties": False,
        },
    },
    "read_thread": {
        "description": "Read the records of a thread, oldest first, one JSON object a line.",
        "parameters": {
            "type": "object",
            "properties": {
                "thread": {"type": "string", "description": "The thread's name"},
                "since": {
                    "type": "integer",
                    "description": "Only records with a sequence above this one",
                    "minimum": 0,
                },
            },
            "required": ["thread"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool did: how it went, what the model is shown, and (kind, body) pairs the kernel is to write.

    `read` names the thread that was read, and `empty` says that nothing came back from it.
    """

    status: Literal["ok", "error"]
    output: str
    records: tuple[tuple[str, dict[str, Any]], ...] = ()
    read: str | None = None
    empty: bool = False


def _error(sentence: str) -> Result:
    return Result("error", sentence)


async def record_note(_: Reader, arguments: Mapping[str, Any]) -> Result:
    """Have a note written."""
    if set(arguments) != {"text"}:
        return _error("record_note takes one argument, text, and no other")
    text = arguments["text"]
    if not isinstance(text, str) or not 1 <= len(text) <= NOTE_LIMIT:
        return _error(f"record_note takes its text as a string of 1 to {NOTE_LIMIT} characters")
    return Result("ok", "The note is recorded.", (("core.work.note.v1", {"text": text}),))


async def read_thread(reader: Reader, arguments: Mapping[str, Any]) -> Result:
    """Give what stands on a thread, as much as fits."""
    if not {"thread"} <= set(arguments) <= {"thread", "since"}:
        return _error("read_thread takes the argument thread, since if wanted, and no other")
    thread, since = arguments["thread"], arguments.get("since", 0)
    if not isinstance(thread, str) or type(since) is not int or since < 0:
        return _error("read_thread takes thread as a string and since as a whole number of 0 or more")
    records = await reader.read(thread, since, _RECORDS + 1)
    if not records:
        # One answer for what is empty, what is not there and what is another's: nobody learns which.
        return Result("ok", "(nothing that this run's actor may read)", read=thread, empty=True)
    lines: list[str] = []
    room = _OUTPUT_LIMIT
    for record in records:
        line = json.dumps({"sequence": record.sequence, "actor": record.actor, "body": record.body})
        # The first is always given, cut if need be: reading on would otherwise never come past it.
        if lines and (len(line) >= room or len(lines) == _RECORDS):
            lines.append(f"(more follows: read on with since {record.sequence - 1})")
            break
        lines.append(line if len(line) < room else f"{line[:room]} (cut)")
        room -= len(line) + 1
    else:
        if room < 0:
            # Large bodies come fewer at once, perhaps this one alone.
            lines.append(f"(more may follow: read on with since {records[-1].sequence})")
    return Result("ok", "\n".join(lines), read=thread)
