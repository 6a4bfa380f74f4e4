"""A process in a daemon's place, for live tests of both shapes: plays scenarios one after another.

Each line on standard input names a scenario; each line on standard output is what it gave and what it left behind.
Without a shape of its own to take: root's is hosted, any other uid's is same-user.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import traceback
from typing import Any

from spl.hardening import protect
from tests.bwrap.stage import Stage, examine


def main() -> None:
    """Serve until standard input ends."""
    protect()
    for line in sys.stdin:
        said = json.loads(line)
        answer: dict[str, Any] = {}
        # What is loaded on first use and kept is no leak.
        examine()
        with Stage() as warm:
            warm.plan()
            asyncio.run(_nothing())
        before = _held()
        try:
            scenario = getattr(importlib.import_module(said["module"]), said["name"])
            with Stage(home=os.fsdecode(bytes.fromhex(said["home"]))) as stage:
                answer["result"] = asyncio.run(scenario(stage, **said["arguments"]))
                answer["left"] = [f"ledger {name}" for name in stage.workers()]
        except Exception:  # noqa: BLE001 - told to the test, which fails with it
            answer["failure"] = traceback.format_exc()
        answer["left"] = [*answer.get("left", []), *sorted(_held() - before)]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


async def _nothing() -> None:
    """Start and stop an event loop."""


def _held() -> set[str]:
    """Name everything this process holds: its descriptors and its children, zombies too."""
    held = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            held.add(f"descriptor {name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue  # that of this listing
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                words = file.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(words[1]) == os.getpid():
            held.add(f"child {name} {words[0]}")
    return held


if __name__ == "__main__":
    main()
