from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import (
    RunFinished,
    RunNotFound,
    StoreUnavailable,
)
from spl.kernel import names
from spl.kernel.outcome import Ending
from spl.records.record import Draft
from tests.kernel.doors import own_result
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    MIA,
    NOTE,
    OPERATOR,
    Instance,
    call,
    calls,
    carry_out,
    chained,
    instance,
    propose,
    says,
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from spl.kernel.runs import Run

CLEAN = Ending(clean=True)


# --- open and finish ---


def test_a_run_that_cannot_be_written_down_does_not_live(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.store.close()
            with pytest.raises(StoreUnavailable):
                await here.open()
            assert here.kernel.live == {}

    asyncio.run(run())


@pytest.mark.claim("K6")
def test_a_worker_that_reports_a_clean_end_of_failed_calls_is_no_success(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path, NOTE, says("All is done!")) as here:
            opened = await here.open(forbidden_tools=("record_note",))
            await turn(opened)
            await propose(opened)
            await turn(opened)
            await opened.door("record", {"kind": names.REPORT, "body": {"success": True}})
            await here.kernel.finish(opened, CLEAN)
            (outcome,) = await here.bodies(opened.terms.thread, names.OUTCOME)
            assert (outcome["outcome"], outcome["success"]) == ("blocked", False)
            assert (outcome["tool_calls_ok"], outcome["tool_calls_failed"]) == (0, 1)

    asyncio.run(run())


@pytest.mark.claim("K6")
@pytest.mark.parametrize(("clean", "outcome"), [(True, "completed"), (False, "failed")])
def test_success_needs_a_clean_exit(tmp_path: Path, clean: bool, outcome: str) -> None:
    async def run() -> None:
        async with instance(tmp_path, NOTE, says("Done.")) as here:
            opened = await worked(here)
            await here.kernel.finish(opened, Ending(clean=clean, exit={"code": 0 if clean else 1}))
            (body,) = await here.bodies(opened.terms.thread, names.OUTCOME)
            assert (body["outcome"], body["success"], body["evidence"]) == (outcome, clean, "kernel")
            assert body["exit"] == {"code": 0 if clean else 1}

    asyncio.run(run())


@pytest.mark.claim("K6")
@pytest.mark.parametrize(
    ("steps", "outcome", "summary"),
    [
        ((), "failed", "The loop ended before the model's first reply."),
        (("turn",), "failed", "The loop ended with calls of the last reply unanswered."),
        (("turn", "propose"), "failed", "The loop ended with calls of the last reply unanswered."),
        (("turn", "propose", "call"), "failed", "The loop ended with calls of the last reply unanswered."),
        (("turn", "propose", "call", "turn"), "completed", "All is done!"),
    ],
)
def test_a_loop_that_leaves_early_has_not_completed_whatever_it_says(
    tmp_path: Path, steps: tuple[str, ...], outcome: str, summary: str
) -> None:
    async def run() -> None:
        async with instance(tmp_path, NOTE, says("All is done!")) as here:
            opened = await here.open()
            await opened.door("record", {"kind": names.REPORT, "body": {"outcome": "completed"}})
            for step in steps:
                if step == "turn":
                    await turn(opened)
                else:
                    await opened.door(step, {"call_id": "c1"})
            await here.kernel.finish(opened, CLEAN)
            records = await here.on(opened.terms.thread)
            assert (records[-1].body["outcome"], records[-1].body["summary"]) == (outcome, summary)
            assert records[-1].kind == names.OUTCOME
            assert chained(records)

    asyncio.run(run())


@pytest.mark.claim("K6")
@pytest.mark.parametrize(
    ("made", "asked", "outcome", "tallies"),
    [
        # every call failed, some because they were denied
        (("note", "bad_note"), {"forbidden_tools": ("record_note",)}, "blocked", (0, 2)),
        (("bad_note", "bad_note"), {}, "failed", (0, 2)),
        (("bad_note", "bash"), {}, "failed", (0, 2)),
        # one did not
        (("note", "bash", "bad_note"), {}, "completed", (1, 2)),
    ],
)
def test_a_run_whose_every_call_failed_is_no_success_whatever_its_last_reply_says(
    tmp_path: Path, made: tuple[str, ...], asked: dict[str, Any], outcome: str, tallies: tuple[int, int]
) -> None:
    known = {"note": ("record_note", {"text": "x"}), "bad_note": ("record_note", {}), "bash": ("bash", {})}
    reply = calls(*[call(known[name][0], f"c{at}", **known[name][1]) for at, name in enumerate(made)])

    async def run() -> None:
        async with instance(tmp_path, reply, says("All is done!")) as here:
            opened = await here.open(**asked)
            await carry_out(opened)
            await turn(opened)
            await here.kernel.finish(opened, CLEAN)
            (body,) = await here.bodies(opened.terms.thread, names.OUTCOME)
            assert (body["outcome"], body["success"]) == (outcome, outcome == "completed")
            assert (body["tool_calls_ok"], body["tool_calls_failed"]) == tallies
            assert "All is done!" in body["summary"]

    asyncio.run(run())


@pytest.mark.claim("K6")
@pytest.mark.parametrize(
    ("actor", "made", "evidence"),
    [
        (MEMBER, ("calculate",), "worker"),
        (MEMBER, (), "worker"),
        (MEMBER, ("calculate", "record_note"), "kernel"),
        (OPERATOR, ("calculate",), "kernel"),
    ],
)
def test_the_outcome_says_whose_word_the_success_rests_on(
    tmp_path: Path, actor: str, made: tuple[str, ...], evidence: str
) -> None:
    reply = calls(*[call(name, name, text="x") for name in made])

    async def run() -> None:
        async with instance(tmp_path, reply, says("Done.")) as here:
            opened = await here.open(actor=actor)
            await turn(opened)
            for name in made:
                await propose(opened, name)
                if name == "calculate":
                    await opened.door("record", own_result(name))
                else:
                    await opened.door("call", {"call_id": name})
            if made:
                await turn(opened)
            await here.kernel.finish(opened, CLEAN)
            (body,) = await here.bodies(opened.terms.thread, names.OUTCOME)
            assert (body["evidence"], body["success"]) == (evidence, True)

    asyncio.run(run())


@pytest.mark.claim("K6")
def test_nothing_follows_the_outcome_and_there_is_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path, NOTE, says("Done.")) as here:
            opened = await worked(here)
            await here.kernel.finish(opened, CLEAN)
            with pytest.raises(RunFinished):
                await here.kernel.finish(opened, CLEAN)
            for door in ("infer", "propose", "call", "record"):
                with pytest.raises(RunFinished):
                    await opened.door(door, {"call_id": "c1"})
            assert (await here.kinds(opened.terms.thread)).count("loop_outcome") == 1
            assert (await here.kinds(opened.terms.thread))[-1] == "loop_outcome"

    asyncio.run(run())


async def worked(here: Instance, **asked: Any) -> Run:
    """Give an open run that has written its note and has nothing more to do."""
    opened = await here.open(**asked)
    await turn(opened)
    await propose(opened)
    await opened.door("call", {"call_id": "c1"})
    await turn(opened)
    return opened


# --- orphans ---


@pytest.mark.claim("M5")
def test_each_run_of_a_dead_daemon_gets_one_outcome_at_the_end_of_its_chain(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path, NOTE, says("Done.")) as here:
            done = await worked(here)
            await here.kernel.finish(done, CLEAN)
            cut = await worked(here)
            bare = await here.open()
            await cut.door("record", {"kind": names.REPORT, "body": {"text": "so far"}})
            before = await here.on(cut.terms.thread)
            # Others write on the thread too, and one even names the chain's head as its parent.
            for parents in ((), (before[-1].id,)):
                draft = Draft(cut.terms.thread, OPERATOR, "KNOW", {"kind": "my.own.note.v1"}, parents)
                await here.kernel.write(ADMINISTRATOR, draft)
        async with instance(tmp_path) as again:
            assert await again.kernel.close_orphans() == [cut.terms.thread, bare.terms.thread]
            assert await again.kernel.close_orphans() == []
            outcome = (await again.on(cut.terms.thread))[-1]
            assert outcome.parents == (before[-1].id,)
            assert chained([*before, outcome])
            assert chained(await again.on(bare.terms.thread))
            row = await again.kernel.rows.row(cut.terms.thread)
            assert (row["state"], row["outcome"]) == ("stopped_short", "failed")
            assert (row["turns"], row["tool_calls_ok"], row["tool_calls_failed"]) == (2, 1, 0)
            assert outcome.body["success"] is False
            for each in (done, cut, bare):
                assert len(await again.bodies(each.terms.thread, names.OUTCOME)) == 1

    asyncio.run(run())


@pytest.mark.claim("K6")
@pytest.mark.parametrize(
    ("actor", "ran", "evidence"),
    [
        (MEMBER, None, "worker"),
        (MEMBER, "loop", "worker"),
        (MEMBER, "kernel", "kernel"),
        (OPERATOR, None, "kernel"),
    ],
)
def test_a_call_that_a_dead_daemon_left_without_a_result_has_failed_and_whose_word_the_rest_is_is_said(
    tmp_path: Path, actor: str, ran: str | None, evidence: str
) -> None:
    two = calls(call("record_note", "c1", text="x"), call("calculate", "c2", expression="1+1"))

    async def run() -> None:
        async with instance(tmp_path, two) as here:
            opened = await here.open(actor=actor)
            await turn(opened)
            for call_id in ("c1", "c2"):
                await propose(opened, call_id)
            if ran == "kernel":
                await opened.door("call", {"call_id": "c1"})
            elif ran == "loop":
                await opened.door("record", own_result("c2"))
        async with instance(tmp_path) as again:
            assert await again.kernel.close_orphans() == [opened.terms.thread]
            (outcome,) = await again.bodies(opened.terms.thread, names.OUTCOME)
            ok = 0 if ran is None else 1
            assert (outcome["tool_calls_ok"], outcome["tool_calls_failed"]) == (ok, 2 - ok)
            assert outcome["evidence"] == evidence
            assert (await again.kernel.rows.row(opened.terms.thread))["tool_calls_failed"] == 2 - ok

    asyncio.run(run())


@pytest.mark.claim("K6")
def test_a_call_of_the_kernels_that_failed_makes_no_evidence_of_its_own(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path, calls(call("record_note", text=7))) as here:
            opened = await here.open()
            await turn(opened)
            await propose(opened)
            assert (await opened.door("call", {"call_id": "c1"}))["status"] == "error"
        async with instance(tmp_path) as again:
            await again.kernel.close_orphans()
            (outcome,) = await again.bodies(opened.terms.thread, names.OUTCOME)
            assert (outcome["tool_calls_failed"], outcome["evidence"]) == (1, "worker")

    asyncio.run(run())


# --- rows ---


def test_runs_are_listed_by_state_and_actor_in_pages(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path, says("Done.")) as here:
            runs = [await here.open(actor=actor) for actor in (MEMBER, OPERATOR, MEMBER, OPERATOR, MEMBER)]
            for each in runs[:3]:
                await turn(each)
                await here.kernel.finish(each, CLEAN)
            threads = [each.terms.thread for each in runs]

            async def listed(**fields: Any) -> tuple[list[str], bool]:
                asked = {"state": None, "actor": None, "since": 0, "limit": 100, **fields}
                rows, more = await here.kernel.rows.page(**asked)
                return [row["thread"] for row in rows], more

            assert await listed() == (threads, False)
            assert await listed(state="running") == (threads[3:], False)
            assert await listed(state="done", actor=MEMBER) == ([threads[0], threads[2]], False)
            assert await listed(state="no such state") == ([], False)
            assert await listed(limit=2) == (threads[:2], True)
            assert await listed(limit=2, actor=MEMBER) == ([threads[0], threads[2]], True)
            assert await listed(limit=1, state="running") == ([threads[3]], True)
            rows, _ = await here.kernel.rows.page(state=None, actor=None, since=0, limit=2)
            assert await listed(since=rows[-1]["sequence"]) == (threads[2:], False)

    asyncio.run(run())


def test_a_thread_without_a_run_has_no_row(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.kernel.write(MIA, Draft("th_x", MEMBER, "KNOW", {}))
            for thread in ("th_x", "th_none", "", "a\0b"):
                with pytest.raises(RunNotFound):
                    await here.kernel.rows.row(thread)

    asyncio.run(run())
