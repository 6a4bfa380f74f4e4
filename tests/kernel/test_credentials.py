from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from spl.kernel.credentials import Credentials
from spl.kernel.outcome import Ending
from tests.kernel.instance import instance

if TYPE_CHECKING:
    from pathlib import Path

    from spl.kernel.runs import Run

PID, MADE_AT = 4321, 100.0


class Process:
    """What a credential is given to: a pid, when it was made, and whether it still lives."""

    def __init__(self) -> None:
        self.alive = True

    def holds(self, pid: int, accepted_at: float) -> bool:
        return pid == PID and accepted_at >= MADE_AT and self.alive


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.claim("I14")
def test_a_credential_works_for_its_process_until_it_expires_and_not_after(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with instance(tmp_path, clock=clock) as here:
            opened = await here.open()
            credentials = here.kernel.credentials
            bearer = credentials.mint(opened, Process().holds, seconds=150)
            clock.now += 149.9
            assert credentials.find(bearer, PID, MADE_AT + 1) is opened
            clock.now += 0.1
            assert credentials.find(bearer, PID, MADE_AT + 1) is None

    asyncio.run(run())


@pytest.mark.claim("I14")
def test_a_credential_of_a_run_without_a_wall_clock_does_not_expire(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with instance(tmp_path, clock=clock) as here:
            opened = await here.open()
            bearer = here.kernel.credentials.mint(opened, Process().holds, seconds=None)
            clock.now += 1e9
            assert here.kernel.credentials.find(bearer, PID, MADE_AT) is opened

    asyncio.run(run())


@pytest.mark.claim("I14")
@pytest.mark.parametrize(
    ("pid", "accepted_at", "alive"),
    [(PID + 1, MADE_AT, True), (0, MADE_AT, True), (PID, MADE_AT - 0.01, True), (PID, MADE_AT, False)],
    ids=["another process", "a process of another pid namespace", "an older connection", "a dead holder"],
)
def test_a_credential_is_no_good_for_anyone_else(
    tmp_path: Path, pid: int, accepted_at: float, alive: bool
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open()
            process = Process()
            credentials = here.kernel.credentials
            bearer = credentials.mint(opened, process.holds, seconds=60)
            assert credentials.find(bearer, PID, MADE_AT) is opened
            process.alive = alive
            assert credentials.find(bearer, pid, accepted_at) is None

    asyncio.run(run())


@pytest.mark.claim("I14")
def test_a_credential_dies_at_its_runs_end_and_no_other_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            credentials = here.kernel.credentials
            runs = [await here.open(), await here.open()]
            bearers = [credentials.mint(each, Process().holds, seconds=60) for each in runs]
            await here.kernel.finish(runs[0], Ending(clean=True))
            assert credentials.find(bearers[0], PID, MADE_AT) is None
            assert credentials.find(bearers[1], PID, MADE_AT) is runs[1]

    asyncio.run(run())


@pytest.mark.claim("I14")
@pytest.mark.parametrize("bearer", ["", "spl_run_", "\udcff", "x" * 10_000])
def test_an_unknown_credential_is_nobodys(bearer: str) -> None:
    assert Credentials(Clock()).find(bearer, PID, MADE_AT) is None


def test_no_secret_is_kept_and_no_two_are_alike(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened: Run = await here.open()
            credentials = here.kernel.credentials
            first, second = (credentials.mint(opened, Process().holds, seconds=1) for _ in range(2))
            assert first != second
            assert first.startswith("spl_run_")
            assert len(first) > 40
            assert first not in repr(vars(credentials))

    asyncio.run(run())
