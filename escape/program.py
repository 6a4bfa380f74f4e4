"""The escape image's program: the worker's own until it has its credential, then what its goal names is tried.

The goal is `{"attempts": [id, …], "world": {…}}`. What was answered is told through the doors alone, in reports of
`{"answers": {id: [control, answer]}}`; an attempt that has a process of its own is announced by a report before it is
made, since how that process ends may be the answer.
"""

from __future__ import annotations

import json
import select

from escape.attempt import BROKE, ESCAPED, OK, REPORT, STAY
from escape.attempts import ATTEMPTS
from escape.inside import Stopped, World
from spl.worker import program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from escape.attempt import Attempt
    from spl.worker.doors import Doors

_MOST_A_REPORT = 20
_MOST_WORDS = 24_000
_LONGEST = 8_000
"""What a report may hold, well below what a record of a run's own may, and what one answer in it may."""


def main(argv: list[str]) -> int:
    """Be the honest program up to the credential; see `spl.worker.program.main`."""
    early = _something_to_read()

    def drive(doors: Doors) -> None:
        _drive(doors, early=early)

    program._drive = drive  # noqa: SLF001 - the one place where the two programs part
    return program.main(argv)


def _drive(doors: Doors, *, early: bool) -> None:
    goal = json.loads(doors.perform("run", {})["goal"])
    if goal["attempts"] == [STAY]:
        _tell(doors, {"credential": doors._credential})  # noqa: SLF001 - what a worker that means harm would do
        while True:
            select.poll().poll()
    world = World(goal["world"])
    world.early, world.doors = early, doors
    told: dict[str, list[str]] = {}
    for name in goal["attempts"]:
        attempt = ATTEMPTS[name]
        control = _controlled(attempt, world)
        if attempt.alone:
            _tell(doors, {"answers": {name: [control, ""]}})
        told[name] = [control, _made(attempt, world) if control == OK else ""]
        if len(told) == _MOST_A_REPORT or _length(told) > _MOST_WORDS:
            _tell(doors, {"answers": told})
            told = {}
    _tell(doors, {"answers": told})
    doors.perform("infer", {"messages": [{"role": "user", "content": "Done."}]})


def _length(told: dict[str, list[str]]) -> int:
    return sum(len(control) + len(answer) for control, answer in told.values())


def _controlled(attempt: Attempt, world: World) -> str:
    try:
        attempt.control(world)
    except Stopped as end:
        return end.answer
    except Exception as error:  # noqa: BLE001 - whatever it was, it is what the row says
        return _broke(error)
    return OK


def _made(attempt: Attempt, world: World) -> str:
    try:
        return (ESCAPED + attempt.chain(world))[:_LONGEST]
    except Stopped as end:
        return end.answer[:_LONGEST]
    except Exception as error:  # noqa: BLE001 - the same
        return _broke(error)


def _broke(error: Exception) -> str:
    return f"{BROKE}{type(error).__name__}: {error}"[:_LONGEST]


def _tell(doors: Doors, body: dict[str, object]) -> None:
    doors.perform("record", {"kind": REPORT, "body": body})


def _something_to_read() -> bool:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(0))
