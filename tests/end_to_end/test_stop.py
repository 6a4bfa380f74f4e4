"""A run that is told to stop: by either name, on both transports, wherever it is then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import RunFinished
from tests.end_to_end import scripts
from tests.end_to_end.daemon import wait_until_gone

if TYPE_CHECKING:
    from tests.end_to_end.daemon import Daemon, Shape
    from tests.end_to_end.model import Model

STOPS: tuple[tuple[str, dict[str, Any] | None], ...] = (
    ("/v1/runs/{}/events", {"type": "stop"}),
    ("/v1/work/loop/{}/cancel", None),
)
TRANSPORTS = ("in_process", "sandboxed")
IMPATIENT = {"SPL_RUN_GRACE_SECONDS": "0.2"}


def stop(daemon: Daemon, thread: str, way: int = 0) -> None:
    """Tell a run to stop, in one of the two ways."""
    path, body = STOPS[way]
    assert daemon.request("POST", path.format(thread), body) == {
        "object": "event",
        "type": "stop",
        "thread": thread,
    }


def start(daemon: Daemon, transport: str) -> tuple[str, int | None]:
    """Start a run; gives its thread and its worker's pid, if it has one."""
    daemon.set_transport(transport)
    thread = daemon.start("Go on.")["thread"]
    return thread, daemon.worker_pid(thread) if transport == "sandboxed" else None


def stopped(daemon: Daemon, thread: str, worker: int | None) -> dict[str, Any]:
    """Check that a run was cancelled and nothing of it is left; gives its outcome."""
    row = daemon.finish(thread)
    (outcome,) = daemon.bodies(thread, "core.work.loop_outcome.v1")
    assert (row["state"], row["outcome"]) == ("stopped", "cancelled")
    assert (outcome["state"], outcome["outcome"], outcome["success"]) == ("stopped", "cancelled", False)
    assert outcome["summary"] == f"Stopped by {outcome['stopped_by']}."
    assert outcome["stopped_by"].startswith("did:sync:user:")
    daemon.set_standby(0)
    # Neither a process nor a zombie, of the worker or of what watched over it.
    assert worker is None or not os.path.exists(f"/proc/{worker}")
    daemons = daemon.process.pid
    assert Path(f"/proc/{daemons}/task/{daemons}/children").read_text() == ""
    work_loop = daemon.request("GET", "/v1/engine/health")["work_loop"]
    assert work_loop["admission_available"] == work_loop["admission_capacity"]
    for way in range(len(STOPS)):
        with pytest.raises(RunFinished):
            stop(daemon, thread, way)
    return outcome


@pytest.mark.claim("T7", "K2")
def test_the_next_call_after_a_stop_is_answered_with_a_stop_verdict_and_the_run_ends(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        for transport in TRANSPORTS:
            for way in range(len(STOPS)):
                thread, worker = start(daemon, transport)
                asked = model.asked()
                stop(daemon, thread, way)
                asked.answer(scripts.calling(scripts.NOTE))
                outcome = stopped(daemon, thread, worker)
                (verdict,) = daemon.bodies(thread, "core.work.tool_verdict.v1")
                assert (verdict["decision"], verdict["layer"]) == ("stop", "stop")
                assert daemon.bodies(thread, "core.work.note.v1") == []
                # It came to its end by itself.
                assert outcome["exit"] == (None if worker is None else {"code": 0})


@pytest.mark.claim("T7")
def test_a_run_that_makes_no_further_call_is_stopped_too(shape: Shape, home: Path, model: Model) -> None:
    with model.daemon(shape, home) as daemon:
        for transport in TRANSPORTS:
            thread, worker = start(daemon, transport)
            asked = model.asked()
            stop(daemon, thread)
            stop(daemon, thread)
            asked.answer(scripts.saying("I have done it all."))
            stopped(daemon, thread, worker)
            assert daemon.bodies(thread, "core.work.tool_verdict.v1") == []


@pytest.mark.claim("T7")
def test_a_model_call_that_never_ends_is_broken_off_after_the_grace(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home, **IMPATIENT) as daemon:
        for transport in TRANSPORTS:
            thread, worker = start(daemon, transport)
            asked = model.asked()
            stop(daemon, thread)
            asked.wait_until_broken_off()
            outcome = stopped(daemon, thread, worker)
            assert outcome["exit"] == (None if worker is None else {"signal": "SIGKILL"})


@pytest.mark.claim("T7")
def test_a_worker_that_is_held_still_is_stopped_all_the_same(shape: Shape, home: Path, model: Model) -> None:
    with model.daemon(shape, home, **IMPATIENT) as daemon:
        thread, worker = start(daemon, "sandboxed")
        assert worker is not None
        asked = model.asked()
        os.kill(worker, 19)
        stop(daemon, thread)
        asked.wait_until_broken_off()
        assert stopped(daemon, thread, worker)["exit"] == {"signal": "SIGKILL"}


@pytest.mark.claim("T7")
def test_a_command_of_the_hosts_that_never_ends_is_killed_with_its_run(
    same_user: Shape, home: Path, model: Model
) -> None:
    told = home.with_name("told")
    os.mkfifo(told)
    told.chmod(0o666)
    with model.daemon(same_user, home, **IMPATIENT) as daemon:
        thread, _ = start(daemon, "in_process")
        model.asked().answer(scripts.bash(f"echo $$ > {told}; exec sleep 1000"))
        pid = int(told.read_text())
        pidfd = os.pidfd_open(pid)
        stop(daemon, thread)
        wait_until_gone(pid, pidfd)
        os.close(pidfd)
        stopped(daemon, thread, pid)
