"""What a tried or traced command was refused, as a person and a program are told it, with what would lift that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bwrap.advice import CONSTRUCTION, Advice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bwrap.refusals import Refused
    from bwrap.trying import Tried


def known(tried: Tried) -> list[Refused]:
    """Give what is known to have been refused, whether it was watched or not."""
    return ([tried.killed] if tried.killed else []) if tried.refused is None else tried.refused


def say_refused(rows: Sequence[tuple[Refused, Advice]], say: Callable[[str], None]) -> None:
    """Tell what was refused, and under each what lifts it, or which promise of the floor no profile lifts."""
    for row, advice in rows:
        if row.usual is None:
            times = "" if row.times == 1 else f", {row.times} times"
            say(f"refused by the layer {row.layer}: {row.what} ({row.answer}{times})")
            say(f"  {_remedy(advice)}")
    if usual := [row.usual for row, _ in rows if row.usual is not None]:
        say(f"not shown, and missed by nearly every program without harm: {', '.join(usual)}")


def wire(row: Refused, advice: Advice) -> dict[str, object]:
    """Give a refusal by name with what lifts it; for one that is missed without harm, that there is nothing to lift."""
    if row.usual is not None:
        advice = Advice(None, None, "nearly every program misses it without harm")
    return {**row.wire(), "usual": row.usual is not None, **advice.wire()}


def _remedy(advice: Advice) -> str:
    """Say what lifts a refusal, or that nothing a profile says does."""
    if advice.line is not None:
        return f"this allows it, {advice.line.told}"
    if advice.floor == CONSTRUCTION:
        return f"no line of a profile can allow it in a run: {advice.reason}"
    if advice.floor is not None:
        return f"no line of a profile can allow it in a run: the floor forbids it ({advice.floor}): {advice.reason}"
    return f"no line of a profile allows it: {advice.reason}"
