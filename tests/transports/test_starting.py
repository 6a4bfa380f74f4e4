from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from bwrap.errors import LayerError
from spl.errors import (
    DaemonStopping,
    InvalidBody,
    IsolationUnavailable,
    RunFinished,
    SplError,
    StoreUnavailable,
    WorkConcurrencyExceeded,
)
from spl.kernel import names
from spl.kernel.principals import Principal
from spl.kernel.terms import Start
from spl.transports.starting import Transports
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    MEMBERS,
    MIA,
    NED,
    NOTE,
    TRANSPORT,
    Hanging,
    Instance,
    instance,
    says,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

FACTS = {
    "layer": "network",
    "expected": "loopback alone",
    "observed": "eth0",
    "remedy": "mend the kernel",
}
MINE, THEIRS = Start(goal="a goal"), Start(goal="a goal", actor=MEMBER)


def starting(
    tmp_path: Path,
    talk: Callable[[Instance, Transports], Awaitable[None]],
    *replies: dict[str, Any],
    **options: Any,
) -> None:
    """Start runs on a host where no worker can be confined."""

    async def run() -> None:
        async with instance(tmp_path, *replies, **options) as here:
            transports = Transports(here.kernel, LayerError(**FACTS), credential_grace=30, run_grace=10)
            try:
                await talk(here, transports)
            finally:
                await transports.stop()

    asyncio.run(run())


@pytest.mark.claim("I12", "A3")
def test_a_layer_that_cannot_be_confirmed_refuses_the_start_by_its_name(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        with pytest.raises(IsolationUnavailable, match="the layer network cannot be confirmed") as error:
            await transports.start(ADMINISTRATOR, THEIRS)
        assert error.value.fields == FACTS
        assert here.kernel.admission.available(1) == here.kernel.admission.capacity(1)
        assert here.kernel.live == {}
        assert await here.store.count() == 1
        (refusal,) = await here.on(names.ISOLATION_THREAD)
        assert (refusal.kind, refusal.actor) == (names.REFUSAL, names.ENGINE)
        assert FACTS.items() <= refusal.body.items()
        assert refusal.body["actor"] == MEMBER

    starting(tmp_path, talk)


def test_a_host_that_can_confine_nobody_says_so_whatever_the_ceiling(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        with pytest.raises(IsolationUnavailable):
            await transports.start(ADMINISTRATOR, THEIRS)
        (refusal,) = await here.on(names.ISOLATION_THREAD)
        assert refusal.body["profile"] == "worker"

    starting(tmp_path, talk, capacity=0)


@pytest.mark.claim("T1", "T2")
def test_each_start_goes_where_the_newest_configuration_says(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        assert (await transports.start(ADMINISTRATOR, MINE)).terms.transport == "in_process"
        await here.configure(TRANSPORT, "sandboxed")
        await here.configure(MEMBERS, "in_process")
        with pytest.raises(IsolationUnavailable):
            await transports.start(ADMINISTRATOR, MINE)
        assert (await transports.start(ADMINISTRATOR, THEIRS)).terms.transport == "in_process"
        await here.configure(TRANSPORT, "sandboxd")
        assert (await transports.start(ADMINISTRATOR, MINE)).terms.transport == "in_process"

    starting(tmp_path, talk, says("Done."))


def test_a_run_in_process_takes_no_slot_and_goes_to_its_end(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        written = here.written(names.OUTCOME)
        run = await transports.start(ADMINISTRATOR, MINE)
        outcome = await written
        assert (outcome.thread, outcome.body["outcome"]) == (run.terms.thread, "completed")

    starting(tmp_path, talk, NOTE, says("Done."), capacity=0)


def test_a_start_that_may_not_be_takes_nothing(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        with pytest.raises(InvalidBody):
            await transports.start(ADMINISTRATOR, Start(goal="x", actor=MEMBER, tools=("bash",)))
        assert here.kernel.admission.available(1) == 2
        assert here.kernel.usage._going == {}
        assert await here.store.count() == 0

    starting(tmp_path, talk)


def test_a_start_goes_on_when_the_request_that_asked_for_it_is_gone(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        reached, released = here.store.hold(names.LOOP)
        written = here.written(names.OUTCOME)
        request = asyncio.create_task(transports.start(ADMINISTRATOR, MINE))
        await reached.wait()
        request.cancel()
        released.set()
        assert (await written).body["outcome"] == "completed"
        with pytest.raises(asyncio.CancelledError):
            await request

    starting(tmp_path, talk, says("Done."))


def test_stopping_breaks_off_a_run_whose_model_never_answers_and_writes_its_outcome(tmp_path: Path) -> None:
    provider = Hanging()

    async def talk(here: Instance, transports: Transports) -> None:
        run = await transports.start(ADMINISTRATOR, MINE)
        await provider.asked.wait()
        await transports.stop()
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["summary"]) == (
            "failed",
            "The daemon was stopped while the run was going.",
        )
        assert here.kernel.live == {}
        with pytest.raises(DaemonStopping, match="stopping"):
            await transports.start(ADMINISTRATOR, MINE)

    starting(tmp_path, talk, provider=provider)


def test_stopping_waits_for_an_outcome_that_is_being_written(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        reached, released = here.store.hold(names.OUTCOME)
        run = await transports.start(ADMINISTRATOR, MINE)
        await reached.wait()
        stopping = asyncio.create_task(transports.stop())
        await asyncio.create_task(asyncio.sleep(0))
        assert not stopping.done()
        asyncio.get_running_loop().call_soon(released.set)
        await stopping
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert outcome["outcome"] == "completed"

    starting(tmp_path, talk, says("Done."))


def test_stopping_waits_for_a_start_that_is_under_way(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        reached, released = here.store.hold(names.LOOP)
        start = asyncio.create_task(transports.start(ADMINISTRATOR, MINE))
        await reached.wait()
        stopping = asyncio.create_task(transports.stop())
        released.set()
        await stopping
        run = await start
        assert len(await here.bodies(run.terms.thread, names.OUTCOME)) == 1

    starting(tmp_path, talk, says("Done."))


def test_a_run_whose_outcome_cannot_be_written_gets_it_at_the_next_start(tmp_path: Path) -> None:
    provider = Hanging()

    async def talk(here: Instance, transports: Transports) -> None:
        await transports.start(ADMINISTRATOR, MINE)
        await provider.asked.wait()
        await here.store.close()
        await transports.stop()

    starting(tmp_path, talk, provider=provider)

    async def run() -> None:
        async with instance(tmp_path) as again:
            (thread,) = await again.kernel.close_orphans()
            assert (await again.kernel.rows.row(thread))["state"] == "stopped_short"

    asyncio.run(run())


def test_an_outcome_that_the_log_cannot_take_is_written_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        append, refused = here.store.append, asyncio.Event()

        async def full(drafts: Any) -> Any:
            if not refused.is_set() and drafts[0].body.get("kind") == names.OUTCOME:
                refused.set()
                raise StoreUnavailable("the log cannot be written: the disk is full")
            return await append(drafts)

        monkeypatch.setattr(here.store, "append", full)
        monkeypatch.setattr("spl.transports.starting._RETRY_SECONDS", 0.001)
        run = await transports.start(ADMINISTRATOR, MINE)
        await refused.wait()
        await asyncio.gather(*transports._runs)
        assert (await here.kernel.rows.row(run.terms.thread))["state"] == "done"

    starting(tmp_path, talk, says("done"))


# --- previews ---


@pytest.mark.claim("T5", "T1")
def test_a_preview_gives_the_terms_of_a_start_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        asked = Start(goal="a goal", max_turns=3, tools=("record_note", "bash"), forbidden_tools=("search",))
        for topic, start in ((TRANSPORT, MINE), (MEMBERS, THEIRS)):
            for transport in ("in_process", "sandboxed", "sandboxd"):
                await here.configure(topic, transport)
                said = await transports.preview(ADMINISTRATOR, start)
                assert said["transport"] == here.kernel.terms(ADMINISTRATOR, start).transport
        await here.configure(TRANSPORT, "in_process")
        before = await here.store.count()
        said = await transports.preview(ADMINISTRATOR, asked)
        assert await transports.preview(ADMINISTRATOR, asked) == said
        assert (await here.store.count(), here.kernel.live) == (before, {})
        assert (said["object"], said["would_start"], said["refusals"]) == ("preview", True, [])
        assert said["admission"] is None
        run = await transports.start(ADMINISTRATOR, asked)
        (anchor,) = await here.bodies(run.terms.thread, names.LOOP)
        # What it would start is what is started.
        terms = {name: value for name, value in said.items() if name in run.terms.wire()}
        assert len(terms) == 11
        assert terms.items() <= anchor.items()
        assert (said["tier"], said["tools"], said["forbidden_tools"], said["narrowed"]) == (
            "operator",
            ["record_note", "bash"],
            ["search"],
            [],
        )
        assert said["ceilings"]["max_turns"] == 3

    starting(tmp_path, talk, says("Done."))


@pytest.mark.claim("T5")
def test_a_preview_names_every_refusal_that_a_start_would_meet(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        await here.tier("trial", concurrent_runs=0, daily_runs=0, daily_cost_usd=0)
        before = await here.store.count()
        said = await transports.preview(ADMINISTRATOR, THEIRS)
        assert said["would_start"] is False
        assert [each["code"] for each in said["refusals"]] == [
            "WORK_CONCURRENCY_EXCEEDED",
            "WORK_DAILY_COUNT_EXCEEDED",
            "WORK_DAILY_CAP_EXCEEDED",
            "ISOLATION_UNAVAILABLE",
        ]
        assert FACTS.items() <= said["refusals"][-1].items()
        assert said["admission"] == {"admission_capacity": 0, "admission_available": 0}
        # Not even a refusal is written down for it.
        assert await here.store.count() == before
        with pytest.raises(WorkConcurrencyExceeded) as error:
            await transports.start(ADMINISTRATOR, THEIRS)
        assert said["refusals"][0] == error.value.wire()

    starting(tmp_path, talk)


@pytest.mark.claim("T5")
def test_a_preview_of_a_start_that_may_not_be_is_refused_as_the_start_is(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        for principal, start in (
            (ADMINISTRATOR, Start(goal="x", actor=MEMBER, tools=("bash",))),
            (MIA, Start(goal="x", actor=NED.actor)),
            (Principal(MEMBER, frozenset()), MINE),
        ):
            answers = await asyncio.gather(
                transports.preview(principal, start),
                transports.start(principal, start),
                return_exceptions=True,
            )
            preview, started = answers
            assert isinstance(preview, SplError)
            assert isinstance(started, SplError)
            assert preview.wire() == started.wire()
        assert await here.store.count() == 0

    starting(tmp_path, talk)


@pytest.mark.claim("T5")
def test_a_preview_says_that_the_log_takes_nothing_for_as_long_as_it_does_not(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        assert (await transports.preview(ADMINISTRATOR, MINE))["would_start"]
        writer = here.store._writer_connection
        [(pages,)] = writer.execute("PRAGMA page_count").fetchall()
        writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreUnavailable, match="full") as error:
            await transports.start(ADMINISTRATOR, Start(goal="x" * 100_000))
        said = await transports.preview(ADMINISTRATOR, MINE)
        assert (said["would_start"], said["refusals"]) == (False, [error.value.wire()])
        writer.execute("PRAGMA max_page_count = 1000000")
        await here.configure(TRANSPORT, "in_process")
        assert (await transports.preview(ADMINISTRATOR, MINE))["would_start"]

    starting(tmp_path, talk)


# --- stops and flips, in process ---


@pytest.mark.claim("T7")
def test_a_stopped_run_whose_model_never_answers_gets_its_outcome_and_gives_its_place_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Hanging()

    async def talk(here: Instance, transports: Transports) -> None:
        await here.configure(MEMBERS, "in_process")
        monkeypatch.setattr(transports, "_run_grace", 0.01)
        run = await transports.start(ADMINISTRATOR, THEIRS)
        with pytest.raises(WorkConcurrencyExceeded):
            await transports.start(ADMINISTRATOR, THEIRS)
        await provider.asked.wait()
        await here.kernel.stop(MIA, run.terms.thread)
        await asyncio.gather(*transports._runs)
        row = await here.kernel.rows.row(run.terms.thread)
        assert (row["state"], row["outcome"], row["summary"]) == (
            "stopped",
            "cancelled",
            f"Stopped by {MEMBER}.",
        )
        with pytest.raises(RunFinished):
            await here.kernel.stop(MIA, run.terms.thread)
        await transports.start(ADMINISTRATOR, THEIRS)

    starting(tmp_path, talk, provider=provider)


@pytest.mark.claim("T6")
def test_a_run_in_process_stays_there_when_its_key_is_flipped(tmp_path: Path) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        await here.configure(MEMBERS, "in_process")
        runs = [await transports.start(ADMINISTRATOR, start) for start in (MINE, THEIRS)]
        for topic in (TRANSPORT, MEMBERS):
            await here.configure(topic, "sandboxed")
        for run in runs:
            assert (await here.kernel.rows.row(run.terms.thread))["transport"] == "in_process"
            assert run.terms.thread in here.kernel.live
            with pytest.raises((IsolationUnavailable, WorkConcurrencyExceeded)):
                await transports.start(ADMINISTRATOR, Start(goal="x", actor=run.terms.actor))

    starting(tmp_path, talk, provider=Hanging())
