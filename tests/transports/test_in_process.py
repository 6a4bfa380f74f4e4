from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import RunFinished
from spl.kernel import names
from spl.kernel.outcome import Ending
from spl.transports.in_process import drive
from tests.kernel.instance import (
    ADMINISTRATOR,
    NOTE,
    OPERATOR,
    Gated,
    Hanging,
    call,
    calls,
    chained,
    instance,
    replies_of,
    says,
)

if TYPE_CHECKING:
    from pathlib import Path

GRACE = 30
"""Seconds that nothing here waits for."""


def driven(tmp_path: Path, *replies: dict[str, Any], **asked: Any) -> tuple[list[str], dict[str, Any]]:
    """Run the operator's loop in process to its end; give the kinds on its thread and its outcome."""

    async def run() -> tuple[list[str], dict[str, Any]]:
        async with instance(tmp_path, *replies) as here:
            opened = await here.open(actor=OPERATOR, **asked)
            assert opened.terms.transport == "in_process"
            await here.kernel.finish(opened, await drive(opened, grace=GRACE))
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
    two = calls(call("no_tool", "c1", command="id"), call("record_note", "c2", text="a note"))
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
            ending = await drive(opened, grace=GRACE)
            assert ending == Ending(clean=False, cause="wall_clock")
            await here.kernel.finish(opened, ending)
            (outcome,) = await here.bodies(opened.terms.thread, names.OUTCOME)
            assert (outcome["outcome"], outcome["budget_kind"]) == ("budget_exhausted", "wall_clock")
            assert outcome["summary"] == "The run's wall clock of 0.05 seconds ran out (wall_clock_secs)."

    asyncio.run(run())


def test_a_loop_that_is_cancelled_says_that_the_daemon_ended_it(tmp_path: Path) -> None:
    provider = Hanging()

    async def run() -> None:
        async with instance(tmp_path, provider=provider) as here:
            opened = await here.open(actor=OPERATOR)
            loop = asyncio.create_task(drive(opened, grace=GRACE))
            await provider.asked.wait()
            loop.cancel()
            assert await loop == Ending(clean=False, cause="daemon")

    asyncio.run(run())


def test_a_loop_that_fails_as_it_is_cancelled_is_no_fault_that_nobody_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []

    async def run() -> None:
        async def failing(*_: object) -> None:
            loop.cancel()
            raise RunFinished("it has ended")

        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        async with instance(tmp_path) as here:
            opened = await here.open(actor=OPERATOR)
            monkeypatch.setattr(opened, "door", failing)
            loop = asyncio.create_task(drive(opened, grace=GRACE))
            assert await loop == Ending(clean=False, cause="daemon")
        gc.collect()

    asyncio.run(run())
    assert told == []


# --- a run that is to end ---


@pytest.mark.claim("T7")
@pytest.mark.parametrize("reply", [NOTE, says("Done.")], ids=["a call", "no call"])
def test_a_stopped_loop_leaves_by_itself_at_its_next_step(tmp_path: Path, reply: dict[str, Any]) -> None:
    provider = Gated(replies_of(tmp_path, reply))

    async def run() -> None:
        async with instance(tmp_path, provider=provider) as here:
            opened = await here.open(actor=OPERATOR)
            loop = asyncio.create_task(drive(opened, grace=GRACE))
            await provider.asked.wait()
            await here.kernel.stop(ADMINISTRATOR, opened.terms.thread)
            provider.released.set()
            assert await loop == Ending(clean=True)
            verdicts = await here.bodies(opened.terms.thread, names.TOOL_VERDICT)
            assert [each["layer"] for each in verdicts] == (["stop"] if reply is NOTE else [])
            assert await here.bodies(opened.terms.thread, names.TOOL_RESULT) == []

    asyncio.run(run())


@pytest.mark.claim("T7")
@pytest.mark.parametrize("at", ["model", "log"])
def test_a_stopped_loop_that_comes_to_no_step_is_broken_off_after_its_grace(tmp_path: Path, at: str) -> None:
    async def run() -> None:
        provider = Hanging()
        script = None if at == "log" else provider
        async with instance(tmp_path, NOTE, provider=script) as here:
            opened = await here.open(actor=OPERATOR)
            reached, released = here.store.hold(names.TOOL_VERDICT)
            loop = asyncio.create_task(drive(opened, grace=0.01))
            await (reached if at == "log" else provider.asked).wait()
            await here.kernel.stop(ADMINISTRATOR, opened.terms.thread)
            if at == "log":
                # What is being written is waited for all the same: the chain goes on behind it.
                (task,) = opened._busy
                while not task.cancelling():  # noqa: ASYNC110 - nothing else tells of it
                    await asyncio.sleep(0)
                released.set()
            assert await loop == Ending(clean=False, cause="stop")
            assert opened._busy == set()
            await here.kernel.finish(opened, Ending(clean=False, cause="stop"))
            records = await here.on(opened.terms.thread)
            assert (records[-1].body["outcome"], records[-1].body["exit"]) == ("cancelled", None)
            assert chained(records)

    asyncio.run(run())


@pytest.mark.claim("T7")
def test_a_run_that_nobody_stops_is_given_all_the_time_its_model_takes(tmp_path: Path) -> None:
    provider = Gated(replies_of(tmp_path, says("Done.")))

    async def run() -> None:
        async with instance(tmp_path, provider=provider) as here:
            opened = await here.open(actor=OPERATOR)
            loop = asyncio.create_task(drive(opened, grace=0))
            await provider.asked.wait()
            provider.released.set()
            assert await loop == Ending(clean=True)

    asyncio.run(run())


def test_a_fault_of_the_kernels_own_comes_out_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object) -> None:
        raise RuntimeError("a fault")

    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open(actor=OPERATOR)
            monkeypatch.setattr(opened, "door", failing)
            with pytest.raises(RuntimeError, match="a fault"):
                await drive(opened, grace=GRACE)

    asyncio.run(run())


@pytest.mark.claim("K3")
def test_a_loop_whose_verdict_cannot_be_written_runs_nothing_and_is_no_success(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path, NOTE, says("All is done!")) as here:
            opened = await here.open(actor=OPERATOR)
            here.store.full_for = names.TOOL_VERDICT
            await here.kernel.finish(opened, await drive(opened, grace=GRACE))
            assert await here.kinds(opened.terms.thread) == ["loop", "turn", "turn", "loop_outcome"]
            (outcome,) = await here.bodies(opened.terms.thread, names.OUTCOME)
            assert (outcome["outcome"], outcome["success"]) == ("failed", False)

    asyncio.run(run())
