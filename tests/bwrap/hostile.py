"""Scenarios of a worker that means harm, or is broken, played in a child of each shape."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Any

from bwrap.errors import LayerError
from bwrap.pipes import readable
from escape.weakened import allowing_all

if TYPE_CHECKING:
    from bwrap.confined import Confined
    from tests.bwrap.stage import Stage

CREDENTIAL = b'{"credential": "c0ffee"}\n'


async def run(stage: Stage, changes: str, extra: str = "", grace: float | None = None) -> dict[str, Any]:
    """Entrust a worker with its credential and see it end by itself, or within some seconds."""
    worker = await stage.launch(stage.plan(extra=extra), stage.image(changes))
    return await _see_end(worker, grace)


async def killed_before_its_credential(stage: Stage) -> dict[str, Any]:
    """Entrust a worker that someone killed in the meantime."""
    worker = await stage.launch()
    pidfd = os.pidfd_open(worker.process.pid)
    os.kill(worker.process.pid, 9)
    await readable(pidfd)
    os.close(pidfd)
    return await _see_end(worker, None)


async def gone_once_it_is_ready(stage: Stage) -> str:
    """Launch a worker that ends as soon as it has said that it is ready: before it is confirmed, or after."""
    try:
        worker = await stage.launch(image=stage.image("def _credential(): os._exit(7)"))
    except LayerError:
        return "refused"
    ended = await _see_end(worker, None)
    return f"code {ended['code']}"


async def stopped_twice(stage: Stage) -> list[str | None]:
    """Stop a worker for two reasons, one after the other."""
    worker = await stage.launch()
    return [(await worker.stop(why)).killed for why in ("the first", "the second")]


async def with_a_child(stage: Stage) -> str:
    """Launch a worker that forks where nothing keeps it from it; give the layer that refuses it."""
    forks = """
import select, signal
_tried = attempt_all
def attempt_all(rows):
    if os.fork() == 0:
        os.setsid()
        for each in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(each, signal.SIG_IGN)
        while True:
            select.poll().poll()
    return _tried(rows)
"""
    try:
        await stage.launch(allowing_all(stage.plan()), stage.image(forks))
    except LayerError as error:
        return error.layer
    raise AssertionError("it was confirmed")


async def _see_end(worker: Confined, grace: float | None) -> dict[str, Any]:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    worker.entrust(CREDENTIAL)
    ended = await (worker.wait() if grace is None else worker.stop("its time", grace=grace))
    return {
        "code": ended.code,
        "signal": ended.signal,
        "killed": ended.killed,
        "said": worker.stderr,
        "grown_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most,
    }
