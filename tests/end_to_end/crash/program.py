"""The daemon of a round: `spl.cli.main` with a model that goes on for as long as a goal says, a clock that a test sets,
and a moment to die at.

`CRASH_CLOCK` names a file that holds the seconds its clock is ahead. `CRASH_AT` is where it kills itself, as by a kill
from outside that came exactly then: `before KIND N` and `after KIND N` are around the N-th commit with a record of
that kind (durable, and nobody has been told), `launch STEP N` is before a step of the N-th worker's launch; the first
worker is the one that is tried at the start.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from bwrap.launch import Launch
from spl.cli.main import main
from spl.inference import chosen
from spl.inference.echo import EchoProvider
from spl.inference.model import Call, Reply, Usage
from spl.inference.prices import Flat
from spl.records.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from spl.inference.model import Request
    from spl.inference.prices import Price

GOAL = "Go on for {turns} turns."

_TURNS = re.compile(GOAL.format(turns=r"(\d+)"))
_THINKING = 0.01


class Model:
    """Does the verify goal as the echo provider does, and turn after turn of calls where a goal says how many."""

    name = default_model = "played"
    url: str | None = None

    def __init__(self, setting: str, **_: object) -> None:
        """Take the place of whatever the setting names."""

    async def complete(self, request: Request) -> Reply:
        """Give the reply of the request's turn, after a moment."""
        await asyncio.sleep(random.uniform(0, _THINKING))
        goal = next(each["content"] for each in request.messages if each["role"] == "user")
        asked = _TURNS.search(goal)
        if asked is None:
            return await EchoProvider().complete(request)
        turn = request.turn
        if turn >= int(asked[1]):
            return Reply("Done.", (), "end", Usage(), self.name)
        calls = (
            Call(f"note_{turn}", "record_note", {"text": f"turn {turn}"}),
            Call(f"sum_{turn}", "calculate", {"expression": f"{turn} * 7"}),
            Call(f"no_{turn}", "launch_rocket", {"turn": turn}),
        )
        return Reply("", calls[: 1 + turn % 3], "tool_use", Usage(), self.name)

    def price(self, model: str) -> Price:
        """Give what a million tokens cost."""
        return Flat(Decimal(0), Decimal(0))

    async def close(self) -> None:
        """Do nothing."""


def _ahead(now: Callable[[], datetime], path: str) -> Callable[[], datetime]:
    def later() -> datetime:
        with open(path, encoding="ascii") as file:
            return now() + timedelta(seconds=float(file.read()))

    return later


def _die_at(when: str, what: str, number: int) -> None:
    left = number

    def come() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if when == "launch":
        step = getattr(Launch, what)

        def stepped(self: Launch, *given: Any) -> Any:
            come()
            return step(self, *given)

        setattr(Launch, what, stepped)
        return
    commit = Writer._commit

    def committed(self: Writer, group: Any) -> Any:
        theirs = any(each.draft.body.get("kind") == what for append in group for each in append.drafts)
        if theirs and when == "before":
            come()
        outcomes = commit(self, group)
        if theirs and when == "after":
            come()
        return outcomes

    Writer._commit = committed  # type: ignore[method-assign]


if __name__ == "__main__":
    chosen.chosen = Model  # type: ignore[assignment]
    # After the line above: it takes the provider's name when it is imported.
    from spl import daemon

    daemon._now = _ahead(daemon._now, os.environ.pop("CRASH_CLOCK"))
    if moment := os.environ.pop("CRASH_AT", None):
        how, where, count = moment.split()
        _die_at(how, where, int(count))
    main()
