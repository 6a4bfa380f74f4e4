"""Workers that stand by in a real daemon: there while they are wanted, given to runs, and gone with it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.daemon import SECONDS, children, wait_until_gone
from tests.end_to_end.test_metrics import scraped

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape


def standing_by(daemon: Daemon) -> dict[int, int]:
    """Give the pid of each worker with that of its monitor."""
    return {pid: monitor for monitor in children(daemon.process.pid) for pid in children(monitor)}


@pytest.mark.claim("I13")
def test_workers_that_stand_by_die_with_a_daemon_that_is_killed(shape: Shape, home: Path) -> None:
    with contextlib.ExitStack() as stack, shape.daemon(home) as daemon:
        daemon.set_standby(3)
        pids = [pid for pair in standing_by(daemon).items() for pid in pair]
        assert len(pids) == 6
        held = {pid: os.pidfd_open(pid) for pid in pids}
        for pidfd in held.values():
            stack.callback(os.close, pidfd)
        daemon.process.kill()
        for pid, pidfd in held.items():
            wait_until_gone(pid, pidfd)
        daemon.process.wait(SECONDS)


@pytest.mark.claim("T4", "A3", "I12")
def test_runs_are_given_those_that_stand_by_and_what_is_told_of_them_is_what_there_is(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home, SPL_STANDBY_WORKERS="1") as daemon:
        daemon.set_transport("sandboxed")
        daemon.set_standby(2)
        work_loop = daemon.request("GET", "/v1/engine/health")["work_loop"]
        assert work_loop["standby"] == {"target": 2, "ready": 2}
        assert work_loop["admission_available"] == work_loop["admission_capacity"]
        token = (home / "token").read_text().strip()
        waiting = standing_by(daemon)
        thread = daemon.start()["thread"]
        assert daemon.worker_pid(thread) in waiting
        assert daemon.finish(thread)["state"] == "done"
        (receipt,) = daemon.bodies(thread, "core.work.isolation.v1")
        assert receipt["confirmed_at"] < receipt["looked_at"]
        daemon.set_standby(2)
        found = scraped(daemon, token)
        assert (found["spl_standby_workers",], found["spl_workers",]) == (2, 0)
        assert found["spl_sandboxed_starts_total", "standby"] == 1
        assert found["spl_sandboxed_starts_total", "new"] == 0
        assert len(standing_by(daemon)) == 2
        daemon.set_standby(0)
        assert standing_by(daemon) == {}
        daemon.finish(daemon.start()["thread"])
        assert scraped(daemon, token)["spl_sandboxed_starts_total", "new"] == 1
        assert daemon.stop() == 0
    assert list((home / "run" / "workers").iterdir()) == []
