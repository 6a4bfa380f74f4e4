"""A scenario of a run under a profile of a test's own: whether it came to its end, or what kept it from that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bwrap.errors import LayerError
from tests.bwrap.entrusted import ANSWERS, runs

if TYPE_CHECKING:
    from tests.bwrap.stage import Stage


async def runs_under(stage: Stage, extra: str) -> dict[str, Any]:
    """Have a worker do a whole run under the worker's profile with some lines laid over it."""
    try:
        ended = await runs(stage, extra=extra)
    except LayerError as refusal:
        return {"done": False, "why": str(refusal)}
    done = (ended["code"], ended["visited"]) == (0, [door for door, _ in ANSWERS])
    return {"done": done, "why": "" if done else f"exit {ended['code']}, {ended['signal']}: {ended['said']}"}
