"""A daemon that is there to be killed: it launches a worker that ignores everything, says its pids and waits.

It says its folder too, which it will not be there to remove.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from bwrap import launch as launching
from spl.hardening import protect
from tests.bwrap.stage import Stage

if TYPE_CHECKING:
    from bwrap.process import Process

# Blocks every signal that can be blocked, and outlasts the end of its standard input.
STUBBORN = """
import select, signal
for _each in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(_each, signal.SIG_IGN)
def _credential():
    while True:
        select.poll().poll()
"""


async def main(moment: str) -> None:
    """Come to a moment of a launch, and stop there: `held` before its exec, `ready`, or `entrusted`."""
    with Stage() as stage:
        sys.stdout.write(f"{stage.folder}\n")
        image = stage.image(STUBBORN)
        if moment == "held":
            with patch.object(launching.Launch, "_limit", _stop_when_held):
                await stage.launch(image=image)
        worker = await stage.launch(image=image)
        if moment == "entrusted":
            worker.entrust(b'{"credential": "c0ffee"}\n')
        _stop_at(None, worker.process)


def _stop_when_held(launch: object, process: Process) -> None:
    """Stop once the child waits to be released: before that it waits for bubblewrap, and has nobody to die with.

    What is left of that moment is for the next daemon's sweep.
    """
    while True:
        words = Path(f"/proc/{process.pid}/syscall").read_text().split()
        if words[0] != "running" and _is_pipe(process.pid, int(words[1], 16)):
            break
        os.sched_yield()
    _stop_at(launch, process)


def _is_pipe(pid: int, descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith("pipe:")
    except OSError:
        return False


def _stop_at(_: object, process: Process) -> None:
    sys.stdout.write(f"{process.pid} {process.monitor}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    protect()
    asyncio.run(main(sys.argv[1]))
