"""Scenarios of `bwrap.trying`, played in a child of each shape: commands that say nothing, and starts that fail."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bwrap import trying
from bwrap.errors import LayerError
from bwrap.library import Library
from bwrap.plan import Places
from bwrap.strace import Strace, find
from tests.bwrap.stage import examine

if TYPE_CHECKING:
    from bwrap.process import Process
    from tests.bwrap.stage import Stage


def prepared(stage: Stage, source: str = "pass") -> trying.Prepared:
    """Prepare a Python program."""
    os.chmod(stage.folder, 0o755)
    command = (examine().python.path, "-I", "-S", "-c", source)
    return trying.prepare(
        Library().load("worker"), examine(), Places(stage.home, f"{stage.folder}/w"), command
    )


async def tried(stage: Stage, strace: str | None = None, source: str = "pass") -> dict[str, Any]:
    """Try it to its end, watched by a program, or by strace itself."""
    return await _told(prepared(stage, source), strace)


async def _told(given: trying.Prepared, strace: str | None) -> dict[str, Any]:
    found = await trying.run(given, strace=find() if strace == "strace" else strace)
    refused = None if found.refused is None else [list(row.wire().values()) for row in found.refused]
    killed = list(found.killed.wire().values()) if found.killed else None
    return {"status": found.status, "unseen": found.unseen, "refused": refused, "killed": killed}


async def spun(stage: Stage, strace: str | None = None) -> dict[str, Any]:
    """Try what never ends, with a second of processor time."""
    given = prepared(stage, "while True: pass")
    limits = given.plan.limits.model_copy(update={"cpu_time": 1})
    return await _told(replace(given, plan=replace(given.plan, limits=limits)), strace)


async def killed(stage: Stage) -> dict[str, Any]:
    """Try what waits for its end, and kill it by its pidfd, as a person would by its number."""
    given = prepared(stage, "import os; os.read(0, 1)")
    watched = trying._Started._watched

    async def kill(self: trying._Started, process: Process, *rest: Any) -> str | None:
        unseen = await watched(self, process, *rest)
        os.kill(process.pid, signal.SIGKILL)
        return unseen

    with patch.object(trying._Started, "_watched", kill):
        return await _told(given, None)


async def with_bubblewrap(stage: Stage, path: str) -> dict[str, str]:
    """Try it with another program in bubblewrap's place; give the refusal."""
    whole = prepared(stage)
    host = replace(whole.plan.host, bubblewrap=replace(whole.plan.host.bubblewrap, path=path))
    try:
        await trying.run(replace(whole, plan=replace(whole.plan, host=host)))
    except LayerError as error:
        return error.wire()
    raise AssertionError("it ran")


async def cancelled(stage: Stage) -> bool:
    """Cancel it while its command is held."""
    held = asyncio.Event()

    async def attached(self: Strace) -> str:
        held.set()
        await asyncio.Event().wait()
        return ""

    with patch.object(Strace, "attached", attached):
        task = asyncio.create_task(trying.run(prepared(stage), strace=find()))
        await held.wait()
        task.cancel()
        await asyncio.wait([task])
    return task.cancelled()
