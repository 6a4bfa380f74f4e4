"""Server-Sent Events: what a watcher is told, as the bytes it stands in (WHATWG HTML, "Server-sent events")."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spl.errors import SplError
    from spl.records.record import Record

_RETRY_MS: Final = 1000

# JSON escapes the two ends of a line that the standard knows. Readers that split a text as Python's splitlines does
# know more of them; those below U+0020 are escaped by JSON as well.
_OTHER_ENDS: Final = tuple((end, f"\\u{ord(end):04x}") for end in "\x85\u2028\u2029")


def created(record: Record) -> bytes:
    """Give the event of a new record; its id is the record's sequence."""
    return _event("record.created", {"id": record.id, "record": record.wire()}, record.sequence)


def heartbeat(position: int) -> bytes:
    """Give the event that says that there is nothing to tell up to a sequence, from which a watcher can resume."""
    return _event("heartbeat", {"sequence": position}, position)


def engine(part: str, data: dict[str, Any]) -> bytes:
    """Give the event of a part of the engine's state, or of a line of its log; it has no id."""
    return _event(f"engine.{part}", data)


def alive() -> bytes:
    """Give the heartbeat of a stream that has no position."""
    return _event("heartbeat", {})


def failed(error: SplError) -> bytes:
    """Give the event of an error, which ends a stream; it has no id, so a watcher resumes where it was."""
    return _event("error", error.wire())


def shutdown() -> bytes:
    """Give the event that ends every stream when the daemon stops, with when to come again."""
    return _event("server_shutdown", {"retry_after_ms": _RETRY_MS})


def _event(name: str, data: dict[str, Any], position: int | None = None) -> bytes:
    said = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for end, escaped in _OTHER_ENDS:
        said = said.replace(end, escaped)
    head = "" if position is None else f"id: {position}\n"
    return f"{head}event: {name}\ndata: {said}\n\n".encode(errors="backslashreplace")
