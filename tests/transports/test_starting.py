from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from bwrap.errors import LayerError
from spl.errors import InvalidBody, IsolationUnavailable, StoreUnavailable
from spl.kernel import names
from spl.kernel.kernel import Start
from spl.transports.starting import Transports
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    MEMBERS,
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
            transports = Transports(here.kernel, LayerError(**FACTS), credential_grace=30)
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
        with pytest.raises(StoreUnavailable, match="stopping"):
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
            assert (await again.kernel.row(thread))["state"] == "stopped_short"

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
        assert (await here.kernel.row(run.terms.thread))["state"] == "done"

    starting(tmp_path, talk, says("done"))
