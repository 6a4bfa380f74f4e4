"""A run opened with no loop behind it, so that a test can knock at its doors itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from spl.kernel import names
from spl.kernel.outcome import Ending
from tests.kernel.instance import Instance, call, calls, instance

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from spl.errors import SplError
    from spl.kernel.runs import Run

    Talk = Callable[[Instance, Run], Awaitable[None]]

SUM = calls(call("calculate", expression="1+1"))
BOTH = calls(call("record_note", "c1", text="a note"), call("calculate", "c2", expression="1+1"))
CLEAN = Ending(clean=True)


def at_the_doors(tmp_path: Path, *replies: dict[str, Any], talk: Talk, **options: Any) -> None:
    """Open a member's run, sandboxed but with no worker behind it, and knock at its doors."""
    asked = options.pop("asked", {})

    async def run() -> None:
        async with instance(tmp_path, *replies, **options) as here:
            await talk(here, await here.open(**asked))

    asyncio.run(run())


async def refused(here: Instance, run: Run, door: str, payload: dict[str, Any], error: type[SplError]) -> str:
    """Have a door refuse with this very error and write nothing; give its message."""
    before = await here.store.count()
    with pytest.raises(error) as found:
        await run.door(door, payload)
    assert type(found.value) is error
    assert await here.store.count() == before
    return found.value.message


def own_result(call_id: object = "c1", **fields: object) -> dict[str, Any]:
    return {"kind": names.TOOL_RESULT, "body": {"call_id": call_id, "status": "ok", "output": "2", **fields}}
