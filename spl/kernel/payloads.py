"""What a door is told: untrusted on either transport, and checked here before a door believes any of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spl.errors import InvalidBody
from spl.inference.broker import CALLS_MOST, is_word
from spl.records.canonical import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

CONVERSATION_LIMIT = 1_000_000
"""Characters of a whole conversation, of what its messages say and ask for."""

_MESSAGES_LIMIT = 20_000
_SAID = frozenset(("role", "content"))
_FIELDS = {
    "system": _SAID,
    "user": _SAID,
    "assistant": _SAID | {"calls"},
    "tool": _SAID | {"call_id", "name", "status"},
}
_OF_CALLS = frozenset(("id", "name", "arguments", "malformed"))

Json = dict[str, Any]


def fields(payload: Mapping[str, Any], *known: str) -> None:
    """Refuse a field that a door does not know; raises `InvalidBody`."""
    if unknown := sorted(set(payload) - set(known)):
        raise InvalidBody(f"this door knows no field {unknown[0]!r:.80}")


def string(payload: Mapping[str, Any], name: str) -> str:
    """Give a field that must be a string; raises `InvalidBody`."""
    said = payload.get(name)
    if not isinstance(said, str):
        raise InvalidBody(f"{name!r} must be a string")
    return said


def messages(payload: Mapping[str, Any]) -> list[Json]:
    """Give the conversation to put before the model, however long it is; raises `InvalidBody`."""
    said = payload.get("messages")
    if not isinstance(said, list) or not 1 <= len(said) <= _MESSAGES_LIMIT:
        raise InvalidBody(f"'messages' must be a list of 1 to {_MESSAGES_LIMIT} messages")
    for message in said:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _FIELDS:
            raise InvalidBody(f"each message is an object with a role of {', '.join(sorted(_FIELDS))}")
        if unknown := sorted(message.keys() - _FIELDS[role]):
            # It would be weighed and reckoned with, and sent to nobody.
            raise InvalidBody(f"a message of the role {role!r} has no field {unknown[0]!r:.80}")
        if not isinstance(message.get("content"), str):
            raise InvalidBody("each message has a 'content', a string")
        if role == "assistant" and not _are_calls(message.get("calls", [])):
            raise InvalidBody(
                f"an assistant's 'calls' are at most {CALLS_MOST} objects with 'id', 'name' and 'arguments'"
            )
        if role == "tool" and not (is_word(message.get("call_id")) and is_word(message.get("name"))):
            raise InvalidBody("a tool's message has a 'call_id' and a 'name', each a string")
    return said


def _are_calls(said: object) -> bool:
    return (
        isinstance(said, list)
        and len(said) <= CALLS_MOST
        and all(
            isinstance(call, dict)
            and is_word(call.get("id"))
            and is_word(call.get("name"))
            and isinstance(call.get("arguments"), dict)
            and call.keys() <= _OF_CALLS
            and isinstance(call.get("malformed", ""), str)
            for call in said
        )
    )


def length(conversation: list[Json]) -> int:
    """Give how many characters a conversation comes to, of what its messages say and ask for."""
    said = sum(len(message["content"]) for message in conversation)
    asked = (call["arguments"] for message in conversation for call in message.get("calls", ()))
    return said + sum(len(canonical(arguments)) for arguments in asked)
