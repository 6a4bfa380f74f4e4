"""The bench image's program: the worker's own until it has its credential; then it times the verdict on each call.

The goal is `{"at": nanoseconds}` of CLOCK_MONOTONIC, before which nothing is proposed: so that several runs propose at
once. What a verdict took is told through the doors, in one report.
"""

from __future__ import annotations

import select
import time

from spl.worker import program
from spl.worker.jsontext import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spl.worker.doors import Doors

REPORT = "core.work.report.v1"


def main(argv: list[str]) -> int:
    """Be the honest program up to the credential; see `spl.worker.program.main`."""
    program._drive = _drive  # noqa: SLF001 - the one place where the two programs part
    return program.main(argv)


def _drive(doors: Doors) -> None:
    goal = loads(doors.perform("run", {})["goal"])
    reply = doors.perform("infer", {"messages": [{"role": "user", "content": "Begin."}]})["reply"]
    # A worker cannot sleep: it waits for nothing, for as long.
    select.poll().poll(max(0, goal["at"] - time.monotonic_ns()) // 1_000_000)
    took = []
    began = time.monotonic_ns()
    for call in reply["calls"]:
        asked = time.monotonic_ns()
        verdict = doors.perform("propose", {"call_id": call["id"]})
        took.append(time.monotonic_ns() - asked)
        if verdict["decision"] != "allow":
            raise ValueError("a verdict that was to be allow")
    body = {"took": took, "began": began, "ended": time.monotonic_ns()}
    doors.perform("record", {"kind": REPORT, "body": body})
