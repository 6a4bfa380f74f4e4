"""Scenarios of `bwrap.trying`, played in a child of each shape: commands that say nothing, and starts that fail."""

from __future__ import annotations

import asyncio
import os
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
    found = await trying.run(prepared(stage, source), strace=find() if strace == "strace" else strace)
    refused = None if found.refused is None else [list(row) for row in found.refused]
    return {"status": found.status, "unseen": found.unseen, "refused": refused}


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
