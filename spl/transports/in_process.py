"""The loop inside the daemon: the same machine a worker runs, its steps taken straight to the kernel's doors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spl.errors import SplError
from spl.kernel.outcome import Ending
from spl.loop.machine import DoorError, work

if TYPE_CHECKING:
    from spl.kernel.runs import Run


async def drive(run: Run) -> Ending:
    """Run a loop to its end, or to its wall clock; gives how it ended."""
    try:
        async with asyncio.timeout(run.terms.ceilings.wall_clock_secs):
            await _loop(run)
    except TimeoutError:
        return Ending(clean=False, cause="wall_clock")
    except asyncio.CancelledError:
        return Ending(clean=False, cause="daemon")
    except DoorError as error:
        return Ending(clean=False, said=str(error))
    return Ending(clean=True)


async def _loop(run: Run) -> None:
    machine = work()
    step = next(machine)
    while True:
        try:
            try:
                answer = await run.door(*step)
            except SplError as error:
                step = machine.throw(DoorError(error.code, error.message))
            else:
                step = machine.send(answer)
        except StopIteration:
            return
