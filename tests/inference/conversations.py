"""A conversation with calls made side by side, and requests of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spl.inference.model import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = [
    {"name": "record_note", "description": "Notes.", "parameters": PARAMETERS, "domain": "mediated"},
    {"name": "calculate", "description": "Sums.", "parameters": PARAMETERS, "domain": "sandboxed"},
]
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Do both."},
    {
        "role": "assistant",
        "content": "I will.",
        "calls": [
            {"id": "c1", "name": "record_note", "arguments": {"text": "é"}},
            {"id": "c2", "name": "calculate", "arguments": {}, "malformed": "{"},
        ],
    },
    {"role": "tool", "call_id": "c1", "name": "record_note", "status": "ok", "content": "Noted."},
    {"role": "tool", "call_id": "c2", "name": "calculate", "status": "error", "content": "No JSON."},
]


def asking(
    messages: Sequence[dict[str, Any]] = TALK, *, tools: Any = TOOLS, model: str | None = "m"
) -> Request:
    """Give a request in the second turn of a run."""
    return Request(model, messages, tools, 1, 500)
