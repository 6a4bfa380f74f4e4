"""Out by the worker socket: too much of everything, so that nobody else is served."""

from __future__ import annotations

import os

from escape.attempts._knocking import (
    INFER,
    INVALID,
    KEPT_BUSY,
    NOBODY,
    PLAN,
    RECORDS,
    RUN,
    Connection,
    answers_in,
    ask,
    codes,
    judged,
    kept,
    knock,
    message,
    pour,
)
from escape.inside import pause, stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from escape.attempt import Attempt
    from escape.inside import World

_MOST_RECORDS = 256
"""Of its own words that a run may write."""


def _others_are_served(world: World) -> str:
    """Give what a request that needs nothing of this run is answered, while whatever is going on goes on."""
    return judged(pour(world, message(world, RUN, bearer="")), "a door opened")


def _half_a_request(world: World) -> str:
    request = message(world, INFER, {"messages": []})
    half = [Connection(world) for _ in range(3)]
    try:
        for each, piece in zip(half, (request[:9], request[:-4], b""), strict=True):
            each.send(piece)
        return _others_are_served(world)
    finally:
        for each in half:
            each.close()


def _connections(world: World) -> str:
    pause(200)  # the connection of the control may still be about to be let go
    connections = [Connection(world) for _ in range(12)]
    try:
        for each in connections:
            each.send(message(world, RUN))
        told = [codes(answers_in(each.exchange(b""))) for each in connections]
    finally:
        for each in connections:
            each.close()
    world.doors.perform("run", {})
    said = f"{told.count('200')} answered, {told.count('closed')} closed"
    if told.count("200") > 7:  # its kept connection is the eighth
        return said
    return stopped(said)


def _flood(world: World) -> str:
    burst = kept(message(world, RUN)) * 49 + message(world, RUN)
    for _ in range(40):
        answers = pour(world, burst)
        if len(answers) != 50:
            stopped(f"the flood itself: {codes(answers[-1:])}")
    world.doors.perform("run", {})
    return _others_are_served(world)


def _unread(world: World) -> str:
    request = kept(message(world, RUN))
    hogs = [Connection(world) for _ in range(4)]
    try:
        for each in hogs:
            for _ in range(30):
                each.send(request * 20)
        return _others_are_served(world)
    finally:
        for each in hogs:
            each.close()
        world.doors.perform("run", {})


def _share(world: World) -> str:
    # One was written when this attempt was announced. What comes of it cannot be told in a record any more: that the
    # program ends because its report is refused is the answer, and it ends otherwise if the refusal was another.
    for number in range(_MOST_RECORDS - 1):
        if ask(world, RECORDS, {"kind": PLAN, "body": {"number": number}})[0] != 200:
            os._exit(1)
    answers = pour(world, message(world, RECORDS, {"kind": PLAN, "body": {}}))
    if codes(answers) != INVALID:
        return f"a record more than its share: {codes(answers)}"
    stopped("its report is taken all the same")


_FULL = "the log, which is for ever, is a run's to fill"

ATTEMPTS: tuple[Attempt, ...] = (
    knock(
        "load.half", "says half of a head, half of a body, nothing", _half_a_request, NOBODY, escape=KEPT_BUSY
    ),
    *(
        knock(f"load.{name}", sentence, chain, answer, escape=escape, alone=True)
        for name, sentence, chain, answer, escape in (
            (
                "connections",
                "opens more connections than it is given",
                _connections,
                "7 answered, 5 closed",
                KEPT_BUSY,
            ),
            ("flood", "asks two thousand times", _flood, NOBODY, KEPT_BUSY),
            ("unread", "asks, and reads no answer", _unread, NOBODY, KEPT_BUSY),
            ("share", "writes as many records as it can", _share, "ended by itself with 11", _FULL),
        )
    ),
)
