from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from spl.kernel import names
from spl.kernel.outcome import Ending
from spl.transports.in_process import drive
from tests.kernel.instance import NOTE, OPERATOR, Hanging, call, calls, chained, instance, says

if TYPE_CHECKING:
    from pathlib import Path


def driven(tmp_path: Path, *replies: dict[str, Any], **asked: Any) -> tuple[list[str], dict[str, Any]]:
    """Run the operator's loop in process to its end; give the kinds on its thread and its outcome."""

    async def run() -> tuple[list[str], dict[str, Any]]:
        async with instance(tmp_path, *replies) as here:
            opened = await here.open(actor=OPERATOR, **asked)
            assert opened.terms.transport == "in_process"
            await here.kernel.finish(opened, await drive(opened))
            records = await here.on(opened.terms.thread)
            assert chained(records)
            return await here.kinds(opened.terms.thread), records[-1].body

    return asyncio.run(run())


@pytest.mark.claim("K1")
def test_each_call_is_judged_before_it_runs(tmp_path: Path) -> None:
    two = calls(call("record_note", "c1", text="a note"), call("calculate", "c2", expression="2*21"))
    kinds, outcome = driven(tmp_path, two, says("Done."))
    assert kinds == [
        "loop",
        "turn",
        "tool_call",
        "tool_verdict",
        "note",
        "tool_result",
        "tool_call",
        "tool_verdict",
        "tool_result",
        "turn",
        "loop_outcome",
    ]
    assert (outcome["outcome"], outcome["state"], outcome["tool_calls_ok"]) == ("completed", "done", 2)
    assert (outcome["transport"], outcome["exit"], outcome["evidence"]) == ("in_process", None, "kernel")


@pytest.mark.claim("K1")
def test_a_denied_call_is_not_run_and_the_loop_goes_on(tmp_path: Path) -> None:
    two = calls(call("bash", "c1", command="id"), call("record_note", "c2", text="a note"))
    kinds, outcome = driven(tmp_path, two, says("Done."))
    assert kinds[2:8] == ["tool_call", "tool_verdict", "tool_call", "tool_verdict", "note", "tool_result"]
    assert (outcome["outcome"], outcome["tool_calls_ok"], outcome["tool_calls_failed"]) == ("completed", 1, 1)


@pytest.mark.claim("K6")
@pytest.mark.parametrize(
    ("replies", "asked", "outcome"),
    [
        ((says("Done."),), {}, "completed"),
        ((NOTE, says("Done.")), {"forbidden_tools": ("record_note",)}, "blocked"),
        ((calls(call("record_note")), says("Done.")), {}, "failed"),
        ((calls(call("calculate", expression="1/0")), says("Done.")), {}, "failed"),
        ((NOTE, NOTE), {"max_turns": 1}, "max_turns"),
        ((says("no", stop_reason="no_model"),), {}, "blocked"),
        (({"fail": "out of order"},), {}, "failed"),
        ((says("half a", stop_reason="length"),), {}, "failed"),
        (({**NOTE, "stop_reason": "length"}, says("Done.")), {}, "blocked"),
    ],
)
def test_a_run_ends_with_the_outcome_the_kernel_saw(
    tmp_path: Path, replies: tuple[dict[str, Any], ...], asked: dict[str, Any], outcome: str
) -> None:
    kinds, body = driven(tmp_path, *replies, **asked)
    assert (body["outcome"], body["success"]) == (outcome, outcome == "completed")
    assert kinds.count("loop_outcome") == 1


def test_a_call_on_a_cut_off_reply_is_never_run(tmp_path: Path) -> None:
    kinds, body = driven(tmp_path, {**NOTE, "stop_reason": "length"}, says("Done."))
    assert "note" not in kinds
    assert "tool_result" not in kinds
    assert body["tool_calls_failed"] == 1


def test_a_model_that_never_answers_is_broken_off_at_the_wall_clock(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path, provider=Hanging()) as here:
            opened = await here.open(actor=OPERATOR, wall_clock_secs=0.05)
            ending = await drive(opened)
            assert ending == Ending(clean=False, cause="wall_clock")
            await here.kernel.finish(opened, ending)
            (outcome,) = await here.bodies(opened.terms.thread, names.OUTCOME)
            assert (outcome["outcome"], outcome["budget_kind"]) == ("budget_exhausted", "wall_clock")

    asyncio.run(run())


def test_a_loop_that_is_cancelled_says_that_the_daemon_ended_it(tmp_path: Path) -> None:
    provider = Hanging()

    async def run() -> None:
        async with instance(tmp_path, provider=provider) as here:
            opened = await here.open(actor=OPERATOR)
            loop = asyncio.create_task(drive(opened))
            await provider.asked.wait()
            loop.cancel()
            assert await loop == Ending(clean=False, cause="daemon")

    asyncio.run(run())
