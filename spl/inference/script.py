"""The provider that replays replies from a file, for tests and rehearsals.

The file is JSON: `{"replies": [{"text", "calls": [{"name", "arguments", "id"}], "stop_reason", "usage":
{"input_tokens", "output_tokens", "cached_tokens"}}]}`, where only a call's name and arguments are required; in place
of a reply, `{"fail": message}` is a provider that fails.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, get_args

from spl.errors import SettingsInvalid
from spl.inference.model import Call, Reply, Request, StopReason, Unanswered, Usage
from spl.inference.prices import FREE

if TYPE_CHECKING:
    from collections.abc import Collection

    from spl.inference.prices import Price

_PAST_THE_END = "The script has no more replies."


class ScriptProvider:
    """Gives the reply of each turn from a list, at no cost; past its end, a closing text."""

    name = "script"
    default_model = "script"
    url: str | None = None

    def __init__(self, replies: tuple[Reply | Unanswered, ...]) -> None:
        self._replies = replies

    @classmethod
    def load(cls, path: str) -> ScriptProvider:
        """Read a script; raises SettingsInvalid, with the file and the reply's index, if it is not valid."""
        if os.path.exists(path) and not os.path.isfile(path):
            # A FIFO would hold the daemon up for ever.
            raise SettingsInvalid(f"the script {path!r} is no regular file")
        try:
            with open(path, "rb") as file:
                document = json.loads(
                    file.read().decode(), object_pairs_hook=_unrepeated, parse_constant=_refuse_constant
                )
            replies = _list(_object(document, {"replies"}, "the script").get("replies"), "replies")
        except OSError as error:
            raise SettingsInvalid(f"the script {path!r} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise SettingsInvalid(f"the script {path!r} is not valid: {error}") from None
        checked: list[Reply | Unanswered] = []
        for index, entry in enumerate(replies):
            try:
                checked.append(_entry(entry, index))
            except ValueError as error:
                raise SettingsInvalid(
                    f"the script {path!r} is not valid: replies[{index}]: {error}"
                ) from None
        return cls(tuple(checked))

    async def complete(self, request: Request) -> Reply:
        """Give the reply of the request's turn; raises Unanswered where the script says so."""
        if request.turn >= len(self._replies):
            return Reply(_PAST_THE_END, (), "end", Usage(), self.default_model)
        reply = self._replies[request.turn]
        if isinstance(reply, Unanswered):
            raise Unanswered(reply.message, unpaid=reply.unpaid)
        return reply

    def price(self, model: str) -> Price:  # noqa: ARG002 - it has no models to tell apart
        """Give nothing: what it says is in a file."""
        return FREE

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def _entry(entry: object, index: int) -> Reply | Unanswered:
    if isinstance(entry, dict) and "fail" in entry:
        message = _string(_object(entry, {"fail"}, "it")["fail"], "fail")
        if not message or not message.isprintable():
            raise ValueError("fail is no line of text, which an error's message must be")
        return Unanswered(message, unpaid=True)
    fields = _object(entry, {"text", "calls", "stop_reason", "usage"}, "it")
    calls = tuple(
        _call(call, f"call_{index + 1}_{number}")
        for number, call in enumerate(_list(fields.get("calls", []), "calls"), start=1)
    )
    stop_reason = fields.get("stop_reason", "tool_use" if calls else "end")
    if stop_reason not in get_args(StopReason):
        raise ValueError(f"stop_reason is not one of {', '.join(get_args(StopReason))}")
    text = _string(fields.get("text", ""), "text")
    return Reply(text, calls, stop_reason, _usage(fields.get("usage", {})), ScriptProvider.default_model)


def _call(call: object, default_id: str) -> Call:
    fields = _object(call, {"id", "name", "arguments"}, "a call")
    name = _string(fields.get("name"), "a call's name")
    arguments = fields.get("arguments")
    if not isinstance(arguments, dict):
        raise ValueError("a call's arguments are not an object")  # noqa: TRY004 - the file's fault, see load
    return Call(_string(fields.get("id", default_id), "a call's id"), name, arguments)


def _usage(usage: object) -> Usage:
    counts = _object(usage, {"input_tokens", "output_tokens", "cached_tokens"}, "usage")
    for name, count in counts.items():
        if type(count) is not int or count < 0:
            raise ValueError(f"usage.{name} is not a whole number from 0")
    return Usage(**counts)


def _object(value: object, known: Collection[str], what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")  # noqa: TRY004 - the file's fault, see load
    for name in value:
        if name not in known:
            raise ValueError(f"{what} has a field {name!r} that is not known")
    return value


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is not a list")  # noqa: TRY004 - the file's fault, see load
    return value


def _string(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is not a string")  # noqa: TRY004 - the file's fault, see load
    return value


def _unrepeated(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object has the same field twice")
    return fields


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
