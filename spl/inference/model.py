"""What is asked of a model and what it answers, in the project's own neutral form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

StopReason = Literal["end", "tool_use", "length", "refusal", "no_model"]
"""Why a reply ends: it is done, it asks for tools, the output limit cut it off, the model or its provider will not go
on, or no model is configured."""


class Unanswered(Exception):
    """A provider gave no reply, and says so in words that hold nothing secret: one sentence about `the provider`.

    `unpaid` says that it is sure to cost nothing: nothing was sent, or the provider answered with an error.
    """

    def __init__(self, message: str, *, unpaid: bool) -> None:
        super().__init__(message)
        self.message = message
        self.unpaid = unpaid


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that a reply asks for; `id` is unique in its reply.

    `malformed` holds what the model wrote where that is no JSON object: such a call has no arguments and is never run.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]
    malformed: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a call to a model took, in tokens; of the input, `cached_tokens` were read from the provider's cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's whole answer to one request; `model` is the one that gave it."""

    text: str
    calls: tuple[Call, ...]
    stop_reason: StopReason
    usage: Usage
    model: str

    def wire(self) -> dict[str, Any]:
        """Give the reply as the infer door answers it: text, calls and stop reason."""
        calls = [
            {
                "id": call.id,
                "name": call.name,
                "arguments": dict(call.arguments),
                **({} if call.malformed is None else {"malformed": call.malformed}),
            }
            for call in self.calls
        ]
        return {"text": self.text, "calls": calls, "stop_reason": self.stop_reason}


@dataclass(frozen=True, slots=True)
class Request:
    """One model call of a run.

    `messages` and `tools` are in the loop's neutral form. `turn` counts from 0. Without a `model` the
    provider's default is taken; without `max_output_tokens` the provider's own bound holds. `size` is about how many
    characters it comes to: what is long is worked on beside the event loop.
    """

    model: str | None
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    turn: int
    max_output_tokens: int | None = None
    size: int = 0
