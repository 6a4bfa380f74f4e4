"""What comes over the wire, read without trusting its form: a field of another type than it should be is not there."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from spl.console.text import taken

if TYPE_CHECKING:
    from collections.abc import Iterable

Json = dict[str, Any]

LOOP: Final = "core.work.loop.v1"
ISOLATION: Final = "core.work.isolation.v1"
TURN: Final = "core.work.turn.v1"
TOOL_CALL: Final = "core.work.tool_call.v1"
TOOL_VERDICT: Final = "core.work.tool_verdict.v1"
TOOL_RESULT: Final = "core.work.tool_result.v1"
OBSERVATION: Final = "core.work.observation.v1"
NOTE: Final = "core.work.note.v1"
OUTCOME: Final = "core.work.loop_outcome.v1"
REFUSAL: Final = "core.work.refusal.v1"


def names(values: Iterable[object]) -> str:
    """Give names as one line."""
    return taken(", ".join(taken(value) for value in values)) or "nothing"


def body(record: Json) -> Json:
    """Give a record's body."""
    return fields(record.get("body"))


def fields(value: object) -> Json:
    """Give an object's fields; of what is none, no field."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """Give the items of a list; of what is none, no item."""
    return value if isinstance(value, list) else []


def objects(value: object) -> list[Json]:
    """Give the objects of a list."""
    return [each for each in items(value) if isinstance(each, dict)]


def whole(value: object) -> int | None:
    """Give a whole number of at most 64 bits."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None


def number(value: object) -> float | None:
    """Give a number."""
    return value if isinstance(value, float) else whole(value)


def moment(value: object) -> float | None:
    """Give a time as the wire has it, in seconds since the epoch."""
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    except (ValueError, OverflowError, OSError):
        return None


def usd(sum_: float) -> str:
    """Write a sum of US dollars: to the cent, or as small as it is."""
    if sum_ and abs(sum_) < 0.01:
        return f"${sum_:.6f}".rstrip("0")
    return f"${sum_:,.2f}"
