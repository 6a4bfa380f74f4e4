"""The provider without a model: no network, no cost, and only the verify goal is carried out.

It lets a fresh instance prove its confinement before anyone gives it a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spl.inference.model import Call, Reply, Request, Usage
from spl.inference.prices import FREE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spl.inference.model import StopReason
    from spl.inference.prices import Price

_BEFORE = "Record a note whose text is exactly: "
_AFTER = " . Use the record_note tool"
_NO_MODEL = (
    "No model is configured, so this goal cannot be carried out: the provider 'echo' only does goals of the form "
    f"'{_BEFORE}TEXT{_AFTER} with only the text argument. Then stop.'"
)


class EchoProvider:
    """Carries out `Record a note whose text is exactly: … . Use the record_note tool`, and nothing else."""

    name = "echo"
    default_model = "echo"
    url: str | None = None

    async def complete(self, request: Request) -> Reply:
        """Ask for the note, then say what became of it; for any other goal, say that there is no model."""
        text = _note(request)
        if text is None:
            return _reply(request, _NO_MODEL, "no_model")
        result = next((message for message in reversed(request.messages) if message["role"] == "tool"), None)
        if result is None:
            call = Call(f"call_{request.turn + 1}_1", "record_note", {"text": text})
            return _reply(request, "", "tool_use", call)
        if result["status"] == "ok":
            return _reply(request, "Recorded the note.", "end")
        return _reply(request, f"The note was not recorded: {result['content']}", "end")

    def price(self, model: str) -> Price:  # noqa: ARG002 - it has no models to tell apart
        """Give nothing: it costs nothing."""
        return FREE

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def _note(request: Request) -> str | None:
    """Give the text of the note that the goal asks for, or None if this is not such a goal."""
    goal = next((message["content"] for message in request.messages if message["role"] == "user"), "")
    # Not a pattern: these are the run's own words, megabytes if it likes, and this is the daemon's event loop.
    _, before, rest = goal.partition(_BEFORE)
    text, after, _ = rest.partition(_AFTER)
    if not (before and after and text) or all(tool["name"] != "record_note" for tool in request.tools):
        return None
    return str(text)


def _reply(request: Request, text: str, stop_reason: StopReason, *calls: Call) -> Reply:
    # Words stand for tokens: there is no model whose tokens could be counted.
    usage = Usage(sum(_words(message) for message in request.messages), len(text.split()))
    return Reply(text, calls, stop_reason, usage, request.model or EchoProvider.default_model)


def _words(message: Mapping[str, Any]) -> int:
    return len(message["content"].split())
