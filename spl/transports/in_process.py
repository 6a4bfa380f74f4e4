"""The loop inside the daemon: the same machine a worker runs, its steps taken straight to the kernel's doors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spl.errors import SplError
from spl.kernel.outcome import Ending
from spl.loop.machine import DoorError, work

if TYPE_CHECKING:
    from spl.kernel.runs import Run


async def drive(run: Run, *, grace: float) -> Ending:
    """Run a loop to its end, or to its wall clock; gives how it ended.

    A run that is to end is given `grace` seconds to come to its next step, then it is broken off where it is.
    """
    loop = asyncio.create_task(_loop(run))
    try:
        async with asyncio.timeout(run.terms.ceilings.wall_clock_secs):
            await run.until_ending(loop)
            await asyncio.wait((loop,), timeout=grace)
    except TimeoutError:
        return Ending(clean=False, cause="wall_clock")
    except asyncio.CancelledError:
        return Ending(clean=False, cause="daemon")
    finally:
        await _break_off(loop)
    if loop.cancelled():
        return Ending(clean=False, cause="stop")
    fault = loop.exception()
    if isinstance(fault, DoorError):
        return Ending(clean=False, said=str(fault))
    if fault is not None:
        raise fault
    return Ending(clean=True)


async def _break_off(loop: asyncio.Task[None]) -> None:
    if not loop.done():
        loop.cancel()
        await asyncio.wait((loop,))
    if not loop.cancelled():
        # Asked for here: one that failed while it was broken off would be logged as a fault that nobody saw.
        loop.exception()


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
