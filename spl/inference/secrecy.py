"""What may be told of a provider's answer without telling any of its key."""

from __future__ import annotations

import json
import re
from typing import Any, Final

SHORTEST: Final = 16
"""Characters of the shortest key: a shorter word stands in for one where a server wants any, and is no secret."""

_RUN = 8
_MESSAGE = 200
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def holds(said: object, key: str | None) -> bool:
    """Tell whether a JSON value has a key in any of its texts and names."""
    if key is None or len(key) < SHORTEST:
        return False
    return _quoted(key) in json.dumps(said, ensure_ascii=False, default=repr)


def told(name: str, status: int, body: bytes, key: str | None) -> str:
    """Say in a sentence what an error answer says: its status, its type or code, and its message, cut and printable.

    Providers quote keys they refuse, in part, so of such an answer only the status is told, and nothing ever that
    has eight characters in a row in common with the key.
    """
    who = f"the provider {name!r}"
    if status in (401, 403):
        if key is None:
            return f"{who} wants a key ({status}), and there is no secrets/{name}.key in the home"
        return f"{who} refused the key of secrets/{name}.key ({status})"
    word, message = _parts(body)
    kind = f" ({word})" if word and not _shares(word, key) else ""
    why = f": {message}" if message and not _shares(message, key) else ""
    return f"{who} answered {status}{kind}{why}"


def _parts(body: bytes) -> tuple[str, str]:
    """Give the type or code and the message of an error as either API writes it, empty where there is none."""
    try:
        document = json.loads(body.decode())
    except (ValueError, RecursionError):
        return "", ""
    error: Any = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        error = {"message": error}
    words = (error.get(name) for name in ("code", "type"))
    word = next((each for each in words if isinstance(each, str) and _WORD.fullmatch(each)), "")
    message = error.get("message")
    return word, _plain(message) if isinstance(message, str) else ""


def _plain(text: str) -> str:
    said = " ".join("".join(each if each.isprintable() else " " for each in text[: 4 * _MESSAGE]).split())
    return said if len(said) <= _MESSAGE else said[: _MESSAGE - 1] + "…"


def _shares(text: str, key: str | None) -> bool:
    if key is None or len(key) < SHORTEST:
        return False
    return any(key[at : at + _RUN] in text for at in range(len(key) - _RUN + 1))


def _quoted(key: str) -> str:
    return json.dumps(key)[1:-1]
