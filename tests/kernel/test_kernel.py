from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import (
    ActorNotCovered,
    IngestFailed,
    InvalidBody,
    KindReserved,
    ProfileInvalid,
    RunActorNotCovered,
    RunNotFound,
    ScopeDenied,
    SplError,
    StoreUnavailable,
)
from spl.kernel import names
from spl.kernel.kernel import Start
from spl.kernel.outcome import Ending
from spl.kernel.principals import Principal
from spl.records.record import Draft
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    MEMBERS,
    NOTE,
    OPERATOR,
    TRANSPORT,
    Instance,
    chained,
    instance,
    propose,
    says,
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from spl.kernel.runs import Run, Terms

MIA = Principal(MEMBER, frozenset(("records:write", "work:run")))
CLEAN = Ending(clean=True)


def terms(here: Instance, principal: Principal = ADMINISTRATOR, **asked: Any) -> Terms:
    return here.kernel.terms(principal, Start(**{"goal": "a goal", **asked}))


# --- terms ---


@pytest.mark.claim("T1")
def test_the_transport_follows_from_whom_the_run_is_for_not_from_who_asks(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            assert terms(here).transport == "in_process"
            assert terms(here, actor=OPERATOR).transport == "in_process"
            assert terms(here, actor=MEMBER).transport == "sandboxed"
            assert terms(here, MIA).transport == "sandboxed"
            await here.configure(TRANSPORT, "sandboxed")
            await here.configure(MEMBERS, "in_process")
            assert terms(here).transport == "sandboxed"
            assert terms(here, actor=MEMBER).transport == "in_process"

    asyncio.run(run())


@pytest.mark.claim("T1", "T6")
def test_what_was_decided_at_the_start_stands_when_the_configuration_changes(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path, NOTE, says("Done.")) as here:
            runs = [await here.open(actor=OPERATOR), await here.open(actor=MEMBER)]
            await here.configure(TRANSPORT, "sandboxed")
            await here.configure(MEMBERS, "in_process")
            for each, transport in zip(runs, ("in_process", "sandboxed"), strict=True):
                assert each.terms.transport == transport
                assert (await here.kernel.row(each.terms.thread))["transport"] == transport
                await turn(each)
                await here.kernel.finish(each, CLEAN)
                (outcome,) = await here.bodies(each.terms.thread, names.OUTCOME)
                assert outcome["transport"] == transport

    asyncio.run(run())


@pytest.mark.claim("B1")
def test_the_row_shows_the_ceiling_that_the_run_holds(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open()
            assert opened.terms.ceilings.budget_usd is not None
            assert (await here.kernel.row(opened.terms.thread))["budget_usd"] == 0.25
            await here.configure(TRANSPORT, "sandboxed")
            own = await here.open(actor=OPERATOR)
            assert (await here.kernel.row(own.terms.thread))["budget_usd"] == 5.0

    asyncio.run(run())


def test_a_profile_belongs_to_a_sandboxed_run_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            assert terms(here).profile is None
            assert (terms(here, actor=MEMBER).profile, terms(here, actor=MEMBER).tier) == ("worker", "trial")

    asyncio.run(run())


def test_a_sandboxed_run_gets_the_profile_of_its_tier_before_that_of_all(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.configure(TRANSPORT, "sandboxed")
            await here.say(topic="work_loop_profile", profile="strict")
            assert (terms(here).profile, terms(here, actor=MEMBER).profile) == ("strict", "strict")
            await here.say(topic="work_loop_profile", profile="small", tier="operator")
            assert (terms(here).profile, terms(here, actor=MEMBER).profile) == ("small", "strict")

    asyncio.run(run())


def test_a_run_in_flight_keeps_its_profile(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open()
            await here.say(topic="work_loop_profile", profile="strict")
            assert (await here.kernel.row(opened.terms.thread))["profile"] == "worker"

    asyncio.run(run())


@pytest.mark.claim("I4")
def test_anchor_and_receipt_bear_the_same_digest_of_the_profile(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open()
            (anchor,) = await here.bodies(opened.terms.thread, names.LOOP)
            (receipt,) = await here.bodies(opened.terms.thread, names.ISOLATION)
            assert anchor["profile_digest"] == receipt["profile_digest"] == "d" * 64
            own = await here.open(actor=OPERATOR)
            (anchor,) = await here.bodies(own.terms.thread, names.LOOP)
            assert (anchor["profile"], anchor["profile_digest"]) == (None, None)

    asyncio.run(run())


def test_a_profile_that_cannot_be_used_is_refused_when_it_is_chosen_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            with pytest.raises(ProfileInvalid, match="no profile 'wroker'"):
                await here.say(topic="work_loop_profile", profile="wroker")
            assert await here.store.count() == 0
            assert here.kernel.config.profile == "worker"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("principal", "asked", "error"),
    [
        (Principal(MEMBER, frozenset()), {}, ScopeDenied),
        (MIA, {"actor": OPERATOR}, RunActorNotCovered),
        (ADMINISTRATOR, {"actor": names.ENGINE}, InvalidBody),
        (ADMINISTRATOR, {"tools": ("bash",)}, InvalidBody),
        (ADMINISTRATOR, {"tools": ("record_note", "Calculate")}, InvalidBody),
    ],
)
def test_a_start_that_may_not_be_is_refused(
    tmp_path: Path, principal: Principal, asked: dict[str, Any], error: type[SplError]
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            with pytest.raises(error):
                terms(here, principal, **asked)
            assert await here.store.count() == 0

    asyncio.run(run())


def test_a_request_names_a_part_of_the_tools(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            assert terms(here).tools == ("record_note", "read_thread", "calculate")
            assert terms(here, tools=("calculate", "record_note")).tools == ("record_note", "calculate")
            assert terms(here, tools=()).tools == ()

    asyncio.run(run())


# --- write ---


@pytest.mark.claim("K5")
@pytest.mark.parametrize(
    ("principal", "thread", "actor", "kind", "error"),
    [
        (ADMINISTRATOR, names.CONFIG_THREAD, OPERATOR, names.CONFIG, KindReserved),
        (ADMINISTRATOR, "th_other", names.ENGINE, names.CONFIG, KindReserved),
        (MIA, names.CONFIG_THREAD, names.ENGINE, names.CONFIG, ScopeDenied),
        (MIA, "th_x", OPERATOR, "my.own.kind.v1", ActorNotCovered),
        (ADMINISTRATOR, "th_x", names.ENGINE, "my.own.kind.v1", ActorNotCovered),
        (Principal(MEMBER, frozenset(("records:read",))), "th_x", MEMBER, "my.own.kind.v1", ScopeDenied),
        (ADMINISTRATOR, "th_x", OPERATOR, "core", KindReserved),
        (ADMINISTRATOR, "th_x", OPERATOR, "core.", KindReserved),
        (ADMINISTRATOR, "th_x", OPERATOR, "Core.work.note.v1", IngestFailed),
        (ADMINISTRATOR, "th_x", OPERATOR, ["core.work.note.v1"], IngestFailed),
    ],
)
def test_what_someone_may_not_write_is_refused_and_not_written(
    tmp_path: Path, principal: Principal, thread: str, actor: str, kind: object, error: type[SplError]
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            body = {"kind": kind, "topic": TRANSPORT, "transport": "sandboxed"}
            with pytest.raises(error):
                await here.kernel.write(principal, Draft(thread, actor, "KNOW", body))
            assert await here.store.count() == 0

    asyncio.run(run())


def test_a_record_of_ones_own_is_written_with_a_kind_or_without(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            for body in ({"kind": "my.own.kind.v1"}, {"kind": "corex.own.kind.v1"}, {}):
                appended = await here.kernel.write(MIA, Draft("th_x", MEMBER, "KNOW", dict(body)))
                assert appended.created

    asyncio.run(run())


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
            row = await again.kernel.row(cut.terms.thread)
            assert (row["state"], row["outcome"]) == ("stopped_short", "failed")
            assert (row["turns"], row["tool_calls_ok"], row["tool_calls_failed"]) == (2, 1, 0)
            assert outcome.body["success"] is False
            for each in (done, cut, bare):
                assert len(await again.bodies(each.terms.thread, names.OUTCOME)) == 1

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
                rows, more = await here.kernel.rows(**asked)
                return [row["thread"] for row in rows], more

            assert await listed() == (threads, False)
            assert await listed(state="running") == (threads[3:], False)
            assert await listed(state="done", actor=MEMBER) == ([threads[0], threads[2]], False)
            assert await listed(state="no such state") == ([], False)
            assert await listed(limit=2) == (threads[:2], True)
            assert await listed(limit=2, actor=MEMBER) == ([threads[0], threads[2]], True)
            assert await listed(limit=1, state="running") == ([threads[3]], True)
            rows, _ = await here.kernel.rows(state=None, actor=None, since=0, limit=2)
            assert await listed(since=rows[-1]["sequence"]) == (threads[2:], False)

    asyncio.run(run())


def test_a_thread_without_a_run_has_no_row(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.kernel.write(MIA, Draft("th_x", MEMBER, "KNOW", {}))
            for thread in ("th_x", "th_none", "", "a\0b"):
                with pytest.raises(RunNotFound):
                    await here.kernel.row(thread)

    asyncio.run(run())
