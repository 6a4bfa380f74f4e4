"""What a daemon that is told to stop lets its runs do before it ends them; with workers, see `flights.drained`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from spl.errors import DaemonStopping, StoreUnavailable
from spl.kernel import names
from tests.kernel.instance import ADMINISTRATOR, NOTE, TRANSPORT, Gated, Hanging, replies_of, says
from tests.transports.test_starting import MINE, starting

if TYPE_CHECKING:
    from pathlib import Path

    from spl.transports.starting import Transports
    from tests.kernel.instance import Instance

LONG = 1000.0
"""Seconds that no test waits for."""

STOPPED = ("failed", "The daemon was stopped while the run was going.")


async def outcome(here: Instance, thread: str) -> tuple[str, str]:
    """Give a run's outcome and summary."""
    (body,) = await here.bodies(thread, names.OUTCOME)
    return body["outcome"], body["summary"]


def nothing(*_: object, **__: object) -> None:
    """Log nothing."""


def draining(transports: Transports, seconds: float = LONG) -> tuple[asyncio.Task[None], asyncio.Event]:
    """Begin to drain; gives the task, and what hurries it."""
    hurried = asyncio.Event()
    return asyncio.create_task(transports.drain(seconds, hurried)), hurried


@pytest.mark.parametrize(
    ("reply", "how", "verdicts"),
    [(NOTE, STOPPED, ["stop"]), (says("I have done it."), ("completed", "I have done it."), [])],
)
def test_a_model_call_under_way_is_waited_for_and_the_run_ends_before_its_next_step(
    tmp_path: Path, reply: dict[str, Any], how: tuple[str, str], verdicts: list[str]
) -> None:
    provider = Gated(replies_of(tmp_path, reply, says("Never asked for.")))

    async def talk(here: Instance, transports: Transports) -> None:
        thread = (await transports.start(ADMINISTRATOR, MINE)).terms.thread
        await provider.asked.wait()
        drain, _ = draining(transports)
        await asyncio.create_task(asyncio.sleep(0))
        assert (transports.stopping, drain.done()) == (True, False)
        provider.released.set()
        await drain
        assert await outcome(here, thread) == how
        said = await here.bodies(thread, names.TOOL_VERDICT)
        assert [(each["decision"], each["layer"]) for each in said] == [(each, "stop") for each in verdicts]
        assert all("The daemon was stopped" in each["reason"] for each in said)
        # It was paid for once, and stands in the log.
        assert len(await here.bodies(thread, names.TURN)) == 1
        assert await here.bodies(thread, names.TOOL_RESULT) == []

    starting(tmp_path, talk, provider=provider)


def test_a_run_that_has_left_before_the_standby_workers_are_gone_was_told_of_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Gated(replies_of(tmp_path, NOTE))

    async def talk(here: Instance, transports: Transports) -> None:
        async def slowly() -> None:
            provider.released.set()
            await asyncio.gather(*transports._runs)

        monkeypatch.setattr(transports._standbys, "stop", slowly)
        await transports.start(ADMINISTRATOR, MINE)
        await provider.asked.wait()
        with capture_logs() as log:
            await draining(transports)[0]
        assert [each["runs"] for each in log if each["event"] == "draining"] == [1]

    starting(tmp_path, talk, provider=provider)


def test_a_run_that_was_told_to_stop_before_or_reached_a_ceiling_keeps_that_end(tmp_path: Path) -> None:
    provider = Gated(replies_of(tmp_path, NOTE))

    async def talk(here: Instance, transports: Transports) -> None:
        threads = [(await transports.start(ADMINISTRATOR, MINE)).terms.thread for _ in range(2)]
        await provider.asked.wait()
        await here.kernel.stop(ADMINISTRATOR, threads[0])
        drain, _ = draining(transports)
        await asyncio.create_task(asyncio.sleep(0))
        # While it drains, too.
        await here.kernel.stop(ADMINISTRATOR, threads[1])
        provider.released.set()
        await drain
        assert [(await outcome(here, thread))[0] for thread in threads] == ["cancelled"] * 2

    starting(tmp_path, talk, provider=provider)


@pytest.mark.parametrize("how", ["the bound", "no time at all", "told again"])
def test_a_model_that_never_answers_is_waited_for_up_to_the_bound_or_until_it_is_told_again(
    tmp_path: Path, how: str
) -> None:
    provider = Hanging()

    async def talk(here: Instance, transports: Transports) -> None:
        thread = (await transports.start(ADMINISTRATOR, MINE)).terms.thread
        await provider.asked.wait()
        drain, hurried = draining(transports, {"the bound": 0.05, "no time at all": 0}.get(how, LONG))
        if how == "told again":
            await asyncio.create_task(asyncio.sleep(0))
            hurried.set()
        await drain
        assert await here.bodies(thread, names.OUTCOME) == []
        await transports.stop()
        assert await outcome(here, thread) == STOPPED
        assert here.kernel.live == {}

    starting(tmp_path, talk, provider=provider)


def test_a_start_that_has_written_nothing_yet_is_refused_and_one_that_has_is_told_to_leave(
    tmp_path: Path,
) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        reached, released = here.store.hold(names.LOOP)
        first = asyncio.create_task(transports.start(ADMINISTRATOR, MINE))
        await reached.wait()
        # It has been taken, and has come to nothing yet, when the other begins.
        second = asyncio.create_task(transports.start(ADMINISTRATOR, MINE))
        drain, _ = draining(transports)
        with pytest.raises(DaemonStopping, match="starts nothing more") as refused:
            await second
        assert refused.value.fields == {"retry_after_secs": 1}
        assert not drain.done()
        released.set()
        run = await first
        await drain
        assert await outcome(here, run.terms.thread) == STOPPED
        # The one's place, and the other's, are free again.
        assert here.kernel.usage._going == {}
        assert len(await here.store.select(kind=names.LOOP)) == 1

    starting(tmp_path, talk, NOTE, says("Done."))


@pytest.mark.claim("T5")
@pytest.mark.parametrize("transport", ["in_process", "sandboxed"])
def test_a_preview_of_a_daemon_that_stops_says_what_a_start_is_refused_by(
    tmp_path: Path, transport: str
) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        await here.configure(TRANSPORT, transport)
        # With nothing to wait for it ends at once.
        await transports.drain(LONG, asyncio.Event())
        said = await transports.preview(ADMINISTRATOR, MINE)
        with pytest.raises(DaemonStopping) as refused:
            await transports.start(ADMINISTRATOR, MINE)
        assert (said["would_start"], said["refusals"][0]) == (False, refused.value.wire())

    starting(tmp_path, talk)


def test_an_outcome_that_waits_for_a_log_which_takes_nothing_keeps_the_daemon_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(here: Instance, transports: Transports) -> None:
        async def full(drafts: Any) -> Any:
            if drafts[0].body.get("kind") == names.OUTCOME:
                raise StoreUnavailable("the log cannot be written: the disk is full")
            return await append(drafts)

        append = here.store.append
        monkeypatch.setattr(here.store, "append", full)
        monkeypatch.setattr("spl.transports.starting._RETRY_SECONDS", LONG)
        # By the time that anyone hears of it, it waits for the next time.
        waits = asyncio.Event()
        log = SimpleNamespace(info=nothing, error=lambda *_, **__: waits.set())
        monkeypatch.setattr("spl.transports.starting._log", log)
        await transports.start(ADMINISTRATOR, MINE)
        await waits.wait()
        await transports.drain(LONG, asyncio.Event())
        assert here.kernel.live == {}

    starting(tmp_path, talk, says("done"))


def test_fifty_runs_at_once_all_leave(tmp_path: Path) -> None:
    provider = Gated(replies_of(tmp_path, *[NOTE] * 100))

    async def talk(here: Instance, transports: Transports) -> None:
        threads = [(await transports.start(ADMINISTRATOR, MINE)).terms.thread for _ in range(50)]
        await provider.asked.wait()
        drain, _ = draining(transports)
        provider.released.set()
        await drain
        assert {await outcome(here, thread) for thread in threads} == {STOPPED}

    starting(tmp_path, talk, provider=provider)


def test_a_run_is_broken_off_while_a_start_that_takes_its_time_is_waited_for(tmp_path: Path) -> None:
    provider = Hanging()

    async def talk(here: Instance, transports: Transports) -> None:
        thread = (await transports.start(ADMINISTRATOR, MINE)).terms.thread
        await provider.asked.wait()
        reached, released = here.store.hold(names.LOOP)
        late = asyncio.create_task(transports.start(ADMINISTRATOR, MINE))
        await reached.wait()
        (run,) = transports._runs
        stop = asyncio.create_task(transports.stop())
        await asyncio.wait([run], timeout=2)
        told = run.done(), stop.done()
        released.set()
        await stop
        assert told == (True, False)
        for each in (thread, (await late).terms.thread):
            assert await outcome(here, each) == STOPPED
        assert here.kernel.live == {}

    starting(tmp_path, talk, provider=provider)
