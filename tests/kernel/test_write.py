from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from spl.errors import (
    ActorNotCovered,
    IngestFailed,
    KindReserved,
    ScopeDenied,
    SplError,
    StoreUnavailable,
)
from spl.kernel import names
from spl.kernel.outcome import Ending
from spl.kernel.principals import Principal
from spl.records.record import Draft
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    MIA,
    NED,
    OPERATOR,
    TRANSPORT,
    chained,
    instance,
)

if TYPE_CHECKING:
    from pathlib import Path


CLEAN = Ending(clean=True)


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


@pytest.mark.parametrize(
    ("scopes", "judge", "may"),
    [
        (("records:read", "records:write", "config:write", "work:run"), MEMBER, False),
        (("records:write",), OPERATOR, True),
        (("records:write", "admin"), MEMBER, True),
    ],
)
def test_only_an_admin_writes_what_another_has_judged(
    tmp_path: Path, scopes: tuple[str, ...], judge: str, may: bool
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            operators = Principal(OPERATOR, frozenset(scopes), operator=True)
            draft = Draft("th_x", OPERATOR, "KNOW", {}, judged_by=judge)
            if may:
                assert (await here.kernel.write(operators, draft)).record.judged_by == judge
            else:
                with pytest.raises(ActorNotCovered, match=judge):
                    await here.kernel.write(operators, draft)
            assert await here.store.count() == may

    asyncio.run(run())


def test_a_record_of_ones_own_is_written_with_a_kind_or_without(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            for body in ({"kind": "my.own.kind.v1"}, {"kind": "corex.own.kind.v1"}, {}):
                appended = await here.kernel.write(MIA, Draft("th_x", MEMBER, "KNOW", dict(body)))
                assert appended.created

    asyncio.run(run())


@pytest.mark.claim("K5")
@pytest.mark.parametrize(
    "thread",
    [
        *("th_ned", "th_run_ned", "th_empty_no_more", names.CONFIG_THREAD, names.ISOLATION_THREAD),
        *(names.PRINCIPALS_THREAD, "th_engine_new", "th_run_new", "TH_RUN_new", "Th_Engine_x"),
    ],
)
def test_a_member_writes_on_no_thread_of_anothers_and_on_none_that_is_the_kernels_by_its_name(
    tmp_path: Path, thread: str
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.kernel.write(NED, Draft("th_ned", NED.actor, "KNOW", {}))
            await here.store.append(
                [
                    Draft("th_run_ned", names.ENGINE, "INTEND", {"kind": names.LOOP, "actor": NED.actor}),
                    Draft("th_empty_no_more", names.ENGINE, "KNOW", {"x": 1}),
                    Draft(names.CONFIG_THREAD, names.ENGINE, "LEARN", {"x": 1}),
                ]
            )
            before = await here.store.count()
            for body in ({}, {"kind": "my.own.kind.v1"}, {"kind": "my.work.loop.v1", "actor": MEMBER}):
                with pytest.raises(ActorNotCovered):
                    await here.kernel.write(MIA, Draft(thread, MEMBER, "KNOW", dict(body)))
            assert await here.store.count() == before

    asyncio.run(run())


@pytest.mark.claim("K5")
def test_a_member_writes_on_threads_of_its_own_those_of_its_runs_and_new_ones(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open()
            for thread in ("th_new", "th_new", "th_runner", opened.terms.thread):
                appended = await here.kernel.write(MIA, Draft(thread, MEMBER, "KNOW", {"of": thread}))
                assert (appended.record.thread, appended.record.actor) == (thread, MEMBER)
            # What others put on a run's thread stands beside its chain.
            await here.kernel.finish(opened, CLEAN)
            chain = [each for each in await here.on(opened.terms.thread) if each.kind]
            assert chained(chain)

    asyncio.run(run())


@pytest.mark.claim("K5")
def test_the_operator_writes_on_a_members_thread_and_begins_none_of_the_kernels(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open()
            await here.kernel.write(MIA, Draft("th_mia", MEMBER, "KNOW", {}))
            for thread in ("th_mia", opened.terms.thread):
                await here.kernel.write(ADMINISTRATOR, Draft(thread, OPERATOR, "KNOW", {}))
            for thread in ("th_run_new", "th_engine_new"):
                with pytest.raises(ActorNotCovered):
                    await here.kernel.write(ADMINISTRATOR, Draft(thread, OPERATOR, "KNOW", {}))

    asyncio.run(run())


@pytest.mark.claim("K5")
def test_a_members_token_that_may_configure_still_writes_no_kind_of_the_kernels(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            principal = Principal(MEMBER, frozenset(("records:write", "config:write")))
            opened = await here.open()
            before = await here.store.count()
            for kind in (
                names.TOOL_VERDICT,
                names.OUTCOME,
                names.REPORT,
                names.MEMBER,
                names.TOKEN,
                "core.x.y.v1",
            ):
                for thread in (opened.terms.thread, "th_new"):
                    with pytest.raises(KindReserved):
                        await here.kernel.write(principal, Draft(thread, MEMBER, "KNOW", {"kind": kind}))
            assert await here.store.count() == before

    asyncio.run(run())


@pytest.mark.claim("K5")
def test_of_two_members_who_begin_one_thread_at_once_one_has_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            kind = "my.own.kind.v1"
            reached, released = here.store.hold(kind)
            mias = asyncio.create_task(here.kernel.write(MIA, Draft("th_x", MEMBER, "KNOW", {"kind": kind})))
            await reached.wait()
            neds = asyncio.create_task(here.kernel.write(NED, Draft("th_x", NED.actor, "KNOW", {})))
            elsewhere = await here.kernel.write(NED, Draft("th_y", NED.actor, "KNOW", {}))
            assert elsewhere.created
            # It had time to look whose the thread is and to write, and has done neither.
            for _ in range(20):
                await here.store.count()
            assert not neds.done()
            released.set()
            assert (await mias).created
            with pytest.raises(ActorNotCovered, match="does not belong"):
                await neds
            assert [record.actor for record in await here.on("th_x")] == [MEMBER]

    asyncio.run(run())


def test_a_write_that_fails_lets_the_next_begin_the_thread(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            kind = here.store.full_for = "my.own.kind.v1"
            with pytest.raises(StoreUnavailable):
                await here.kernel.write(MIA, Draft("th_x", MEMBER, "KNOW", {"kind": kind}))
            assert (await here.kernel.write(NED, Draft("th_x", NED.actor, "KNOW", {}))).created

    asyncio.run(run())


@pytest.mark.claim("K5")
def test_a_member_judges_as_itself_or_as_nobody(tmp_path: Path) -> None:
    configuring = Principal(MEMBER, frozenset(("records:write", "config:write")))
    said = {"kind": names.CONFIG, "topic": TRANSPORT, "transport": "sandboxed"}

    async def run() -> None:
        async with instance(tmp_path) as here:

            async def write(principal: Principal, judge: str | None) -> None:
                await here.kernel.write(
                    principal, Draft("th_x", principal.actor, "KNOW", {}, judged_by=judge)
                )

            for judge in (OPERATOR, NED.actor, names.ENGINE):
                with pytest.raises(ActorNotCovered, match="does not judge"):
                    await write(MIA, judge)
                # Nor by way of the configuration, which is written as the engine.
                config = Draft(names.CONFIG_THREAD, names.ENGINE, "LEARN", dict(said), judged_by=judge)
                with pytest.raises(ActorNotCovered, match="does not judge"):
                    await here.kernel.write(configuring, config)
            assert await here.store.count() == 0
            await write(MIA, MEMBER)
            await write(MIA, None)
            await write(ADMINISTRATOR, "someone")
            assert [record.judged_by for record in await here.on("th_x")] == [MEMBER, None, "someone"]

    asyncio.run(run())
