from __future__ import annotations

import asyncio
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spl.kernel.names import OUTCOME
from spl.kernel.outcome import Ending
from spl.kernel.rows import live_row, row_from_records
from spl.records.record import Draft
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    OPERATOR,
    call,
    calls,
    chained,
    instance,
    propose,
    turn,
)

if TYPE_CHECKING:
    from tests.kernel.instance import Instance

CALLS = st.sampled_from(
    [
        ("record_note", {"text": "a note"}),
        ("record_note", {}),
        ("read_thread", {"thread": "th_none"}),
        ("calculate", {"expression": "1+1"}),
        ("calculate", {"expression": "1/0"}),
        ("bash", {"command": "id"}),
    ]
)
REPLIES = st.lists(
    st.builds(
        lambda made, tokens, reason: calls(
            *[call(name, f"c{at}", **arguments) for at, (name, arguments) in enumerate(made)],
            usage={"input_tokens": tokens, "output_tokens": 1},
            stop_reason=reason,
        ),
        st.lists(CALLS, max_size=3),
        st.integers(0, 1000),
        st.sampled_from(["tool_use", "tool_use", "length"]),
    ),
    max_size=4,
)


@pytest.mark.claim("K6")
@settings(max_examples=30, deadline=None, database=None)
@given(replies=REPLIES, before_stop=st.integers(0, 12))
def test_the_kernels_own_state_and_the_records_tell_the_same_row_at_every_step(
    replies: list[dict[str, Any]], before_stop: int
) -> None:
    async def run(folder: Path) -> None:
        async with instance(folder, *replies) as here:
            opened = await here.open()
            thread = opened.terms.thread

            async def agree() -> None:
                assert row_from_records(await here.on(thread)) == live_row(opened)

            await agree()
            proposed = count()
            for reply in replies:
                if "end" in await turn(opened):
                    break
                for made in reply["calls"]:
                    if next(proposed) == before_stop:
                        await here.kernel.stop(ADMINISTRATOR, thread)
                    allowed = (await propose(opened, made["id"]))["decision"] == "allow"
                    await agree()
                    if allowed and made["name"] == "calculate":
                        status = "error" if "/" in made["arguments"]["expression"] else "ok"
                        body = {"call_id": made["id"], "status": status, "output": "x"}
                        await opened.door("record", {"kind": "core.work.tool_result.v1", "body": body})
                    elif allowed:
                        await opened.door("call", {"call_id": made["id"]})
                    await agree()
            live = live_row(opened)
            await here.kernel.finish(opened, Ending(clean=True))
            ended = await here.kernel.rows.row(thread)
            (outcome,) = await here.bodies(thread, OUTCOME)
            named = ("state", "summary", "outcome", "ended_at")
            assert ended == {**live, **{name: outcome[name] for name in named}}
            assert chained(await here.on(thread))

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


async def with_strangers(here: Instance) -> None:
    opened = await here.open()
    before = row_from_records(await here.on(opened.terms.thread))
    for actor in (OPERATOR, MEMBER):
        for body in ({"status": "ok"}, {"kind": "my.tool.result.v1", "status": "ok", "turns": 9}):
            await here.kernel.write(ADMINISTRATOR, Draft(opened.terms.thread, actor, "KNOW", dict(body)))
    assert row_from_records(await here.on(opened.terms.thread)) == before
    assert before == live_row(opened)


def test_what_others_put_on_the_thread_does_not_count(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await with_strangers(here)

    asyncio.run(run())
