from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import (
    CallNotAllowed,
    RunFinished,
    RunNotFound,
    ScopeDenied,
    StoreUnavailable,
    TokenRevoked,
)
from spl.kernel import names
from spl.kernel.outcome import Ending
from spl.kernel.principals import Principal
from spl.kernel.terms import Start
from tests.kernel.doors import CLEAN, at_the_doors, refused
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    MIA,
    NED,
    NOTE,
    OPERATOR,
    RECEIPT,
    Hanging,
    Instance,
    call,
    calls,
    carry_out,
    chained,
    propose,
    says,
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from spl.kernel.runs import Run

SUMMARY = f"Stopped by {OPERATOR}."


async def outcome(here: Instance, run: Run, ending: Ending = CLEAN) -> dict[str, Any]:
    """Have the run's outcome written and give it."""
    await here.kernel.finish(run, ending)
    (body,) = await here.bodies(run.terms.thread, names.OUTCOME)
    assert chained(await here.on(run.terms.thread))
    return body


@pytest.mark.claim("T7", "K2")
def test_the_next_call_of_a_stopped_run_is_answered_with_a_stop_verdict_and_nothing_runs(
    tmp_path: Path,
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await propose(run, "c1")
        await run.door("call", {"call_id": "c1"})
        await here.kernel.stop(ADMINISTRATOR, run.terms.thread)
        verdict = await propose(run, "c2")
        assert (verdict["decision"], verdict["layer"], verdict["rule"]) == ("stop", "stop", None)
        assert verdict["reason"] == f"the run is ending: {SUMMARY}"
        (*_, judged) = await here.bodies(run.terms.thread, names.TOOL_VERDICT)
        assert (judged["decision"], judged["layer"], judged["call_id"]) == ("stop", "stop", "c2")
        await refused(here, run, "call", {"call_id": "c2"}, CallNotAllowed)
        body = await outcome(here, run)
        assert (body["outcome"], body["state"], body["success"]) == ("cancelled", "stopped", False)
        assert (body["tool_calls_ok"], body["tool_calls_failed"]) == (1, 1)
        assert body["summary"] == SUMMARY
        assert body["stopped_by"] == OPERATOR
        assert (await here.kernel.rows.row(run.terms.thread))["state"] == "stopped"

    two = calls(call("record_note", "c1", text="one"), call("record_note", "c2", text="two"))
    at_the_doors(tmp_path, two, talk=talk)


@pytest.mark.claim("T7", "K2")
def test_a_stop_answers_before_every_other_layer(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await here.rule("deny-all", "true", priority=1000)
        await turn(run)
        await here.kernel.stop(ADMINISTRATOR, run.terms.thread)
        assert (await propose(run))["layer"] == "stop"

    at_the_doors(tmp_path, {**calls(call("bash")), "stop_reason": "length"}, talk=talk)


@pytest.mark.claim("T7")
def test_a_call_that_was_allowed_before_the_stop_is_not_run_after_it(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        assert (await propose(run))["decision"] == "allow"
        await here.kernel.stop(ADMINISTRATOR, run.terms.thread)
        why = await refused(here, run, "call", {"call_id": "c1"}, CallNotAllowed)
        assert why == f"the run is ending: {SUMMARY}"

    at_the_doors(tmp_path, NOTE, talk=talk)


def test_of_the_calls_that_were_allowed_before_the_daemon_stops_only_the_newest_is_still_run(
    tmp_path: Path,
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        for call_id in ("c1", "c2", "c3"):
            assert (await propose(run, call_id))["decision"] == "allow"
        run.leave()
        await run.door("call", {"call_id": "c3"})
        why = await refused(here, run, "call", {"call_id": "c1"}, CallNotAllowed)
        assert why == "the run is ending: The daemon was stopped while the run was going."
        assert run.ending.is_set()
        body = await outcome(here, run)
        assert (body["outcome"], body["tool_calls_ok"], body["tool_calls_failed"]) == ("failed", 1, 2)

    three = calls(*(call("record_note", f"c{number}", text="one") for number in (1, 2, 3)))
    at_the_doors(tmp_path, three, talk=talk)


@pytest.mark.claim("T7")
def test_a_stopped_run_makes_no_further_model_call(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await carry_out(run)
        await here.kernel.stop(ADMINISTRATOR, run.terms.thread)
        assert await turn(run) == {"end": "cancelled"}
        assert run.budget.turns == 1
        body = await outcome(here, run)
        assert (body["outcome"], body["turns"], body["tool_calls_failed"]) == ("cancelled", 1, 0)

    at_the_doors(tmp_path, NOTE, says("Done."), talk=talk)


@pytest.mark.claim("T7", "K6")
def test_a_run_that_was_told_to_stop_is_cancelled_even_if_its_last_reply_asks_for_nothing(
    tmp_path: Path,
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await here.kernel.stop(ADMINISTRATOR, run.terms.thread)
        body = await outcome(here, run)
        assert (body["outcome"], body["state"]) == ("cancelled", "stopped")

    at_the_doors(tmp_path, says("Done."), talk=talk)


@pytest.mark.claim("T7")
def test_a_run_that_is_told_to_stop_when_a_ceiling_is_ending_it_is_cancelled(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await carry_out(run)
        assert await turn(run) == {"end": "max_turns"}
        await here.kernel.stop(MIA, run.terms.thread)
        assert await turn(run) == {"end": "cancelled"}
        body = await outcome(here, run)
        assert (body["outcome"], body["state"], body["stopped_by"]) == ("cancelled", "stopped", MEMBER)

    at_the_doors(tmp_path, NOTE, talk=talk, asked={"max_turns": 1})


@pytest.mark.claim("T7")
def test_a_model_call_that_never_ends_does_not_keep_a_stopped_run(tmp_path: Path) -> None:
    provider = Hanging()

    async def talk(here: Instance, run: Run) -> None:
        answer = asyncio.create_task(turn(run))
        await provider.asked.wait()
        await here.kernel.stop(ADMINISTRATOR, run.terms.thread)
        assert run.ending.is_set()
        body = await outcome(here, run, Ending(clean=False, exit={"signal": "SIGKILL"}, cause="stop"))
        assert (body["outcome"], body["state"], body["exit"]) == (
            "cancelled",
            "stopped",
            {"signal": "SIGKILL"},
        )
        with pytest.raises(asyncio.CancelledError):
            await answer

    at_the_doors(tmp_path, provider=provider, talk=talk)


@pytest.mark.claim("T7", "K6")
@pytest.mark.parametrize("cause", ["stop", "wall_clock"])
def test_a_call_that_was_allowed_and_is_broken_off_has_failed(tmp_path: Path, cause: str) -> None:
    begun, never = tmp_path / "begun", tmp_path / "never"
    for each in (begun, never):
        os.mkfifo(each)

    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await propose(run, "c1")
        await run.door("call", {"call_id": "c1"})
        await propose(run, "c2")
        going = asyncio.create_task(run.door("call", {"call_id": "c2"}))
        assert await asyncio.to_thread(begun.read_text) == "on\n"
        assert (run.tally.ok, run.tally.failed, run.tally.going) == (1, 0, 1)
        if cause == "stop":
            await here.kernel.stop(ADMINISTRATOR, run.terms.thread)
        body = await outcome(here, run, Ending(clean=False, cause=cause))
        with pytest.raises(asyncio.CancelledError):
            await going
        assert (body["tool_calls_ok"], body["tool_calls_failed"]) == (1, 1)
        assert body["outcome"] == ("cancelled" if cause == "stop" else "budget_exhausted")
        assert (await here.kernel.rows.row(run.terms.thread))["tool_calls_failed"] == 1

    command = f"echo on > {begun}; exec cat {never}"
    two = calls(call("record_note", "c1", text="one"), call("bash", "c2", command=command))
    at_the_doors(tmp_path, two, talk=talk, asked={"actor": OPERATOR})


@pytest.mark.claim("T7")
def test_stopping_twice_is_fine_and_the_first_to_stop_is_named(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        thread = run.terms.thread
        await here.kernel.stop(MIA, thread)
        await here.kernel.stop(ADMINISTRATOR, thread)
        body = await outcome(here, run)
        assert (body["summary"], body["stopped_by"]) == (f"Stopped by {MEMBER}.", MEMBER)

    at_the_doors(tmp_path, NOTE, talk=talk)


@pytest.mark.claim("T7")
def test_a_run_that_has_ended_or_is_being_ended_cannot_be_stopped(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        thread = run.terms.thread
        await turn(run)
        reached, released = here.store.hold(names.OUTCOME)
        finishing = asyncio.create_task(here.kernel.finish(run, CLEAN))
        await reached.wait()
        for _ in range(2):
            with pytest.raises(RunFinished, match=thread):
                await here.kernel.stop(ADMINISTRATOR, thread)
            released.set()
            await finishing
        (body,) = await here.bodies(thread, names.OUTCOME)
        assert body["outcome"] == "completed"
        assert "stopped_by" not in body

    at_the_doors(tmp_path, says("Done."), talk=talk)


@pytest.mark.claim("T7")
def test_a_member_stops_its_own_runs_and_learns_of_no_others(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        own = await here.open(actor=OPERATOR)
        for principal, thread, error in (
            (NED, run.terms.thread, RunNotFound),
            (MIA, own.terms.thread, RunNotFound),
            (MIA, "th_run_none", RunNotFound),
            (Principal(MEMBER, frozenset(("records:write",))), run.terms.thread, ScopeDenied),
        ):
            with pytest.raises(error):
                await here.kernel.stop(principal, thread)
        assert run.end is None
        assert own.end is None
        with pytest.raises(RunNotFound) as unknown:
            await here.kernel.stop(MIA, "th_run_none")
        with pytest.raises(RunNotFound) as others:
            await here.kernel.stop(MIA, own.terms.thread)
        # The same words for both: nobody learns from them that there is such a run.
        assert others.value.message.replace(own.terms.thread, "th_run_none") == unknown.value.message
        await here.kernel.finish(own, CLEAN)
        with pytest.raises(RunNotFound):
            await here.kernel.stop(MIA, own.terms.thread)
        await here.kernel.stop(MIA, run.terms.thread)
        assert run.end is not None

    at_the_doors(tmp_path, talk=talk)


@pytest.mark.claim("T7")
def test_a_member_who_is_taken_away_has_its_runs_stopped_and_nobody_elses(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await here.kernel.members.add("mia", agent=False, tier="paid", by=OPERATOR)
        own, second = await here.open(actor=OPERATOR), await here.open()
        over = await here.open()
        over.shut()
        _, stopped = await here.kernel.revoke_member("mia", OPERATOR)
        assert set(stopped) == {run.terms.thread, second.terms.thread}
        assert (own.end, over.end) == (None, None)
        assert (await outcome(here, run))["summary"] == SUMMARY

    at_the_doors(tmp_path, talk=talk)


@pytest.mark.claim("T7")
def test_a_run_that_is_being_written_down_when_its_member_is_revoked_is_told_to_stop(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await here.kernel.members.add("mia", agent=False, tier="paid", by=OPERATOR)
        reached, released = here.store.hold(names.LOOP)
        terms = here.kernel.terms(MIA, Start("a goal"))
        opening = asyncio.create_task(here.kernel.open(terms, RECEIPT))
        await reached.wait()
        _, stopped = await here.kernel.revoke_member("mia", OPERATOR)
        assert terms.thread in stopped
        released.set()
        assert await turn(await opening) == {"end": "cancelled"}

    at_the_doors(tmp_path, talk=talk)


@pytest.mark.claim("T7")
def test_a_revocation_that_the_log_cannot_take_stops_the_members_runs_all_the_same(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        members = here.kernel.members
        _, _, token = await members.add("mia", agent=False, tier="paid", by=OPERATOR)
        terms = here.kernel.terms(MIA, Start("a goal"))
        here.store.full_for = names.MEMBER
        with pytest.raises(StoreUnavailable):
            await here.kernel.revoke_member("mia", OPERATOR)
        assert await turn(run) == {"end": "cancelled"}
        for dead in (here.kernel.open(terms, RECEIPT), asyncio.to_thread(members.find, token)):
            with pytest.raises(TokenRevoked):
                await dead
        assert list(here.kernel.live) == [run.terms.thread]

    at_the_doors(tmp_path, talk=talk)
