"""A daemon that is told to stop: its runs leave at their next step, it answers meanwhile, and it waits no longer."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from spl.errors import DaemonStopping
from tests.end_to_end import scripts
from tests.end_to_end.daemon import SECONDS, held, wait_until_gone
from tests.end_to_end.load import Caller

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape
    from tests.end_to_end.model import Model

SUMMARY = "The daemon was stopped while the run was going."


def test_runs_leave_at_their_next_step_and_whoever_asks_is_answered_until_they_have(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home, SPL_DRAIN_SECONDS="20") as daemon:
        threads = []
        for transport in ("in_process", "sandboxed"):
            daemon.set_transport(transport)
            threads.append(daemon.start("Go on.")["thread"])
        asked = [model.asked() for _ in threads]
        daemon.process.send_signal(signal.SIGTERM)
        told = json.loads(daemon.log.wait_for("draining"))
        assert (told["runs"], told["seconds"]) == (2, 20)

        # What there is to see is seen, over either socket, and by the command that people look with.
        assert daemon.request("GET", "/v1/engine/health")["status"] == "stopping"
        status = shape.run("status", "--home", str(home), "-o", "json")
        assert (status.returncode, json.loads(status.stdout)["status"]) == (0, "stopping")
        assert [each["state"] for each in daemon.request("GET", "/v1/runs")["data"]] == ["running"] * 2
        caller = Caller(daemon, (home / "token").read_text().strip())
        answer, headers, refusal = caller.ask("POST", "/v1/work/loop", {"goal": "Another."})
        caller.close()
        assert (answer, refusal["code"], headers["retry-after"]) == (503, "DAEMON_STOPPING", "1")
        refused = shape.run("run", "Another.", "--home", str(home))
        assert refused.returncode == DaemonStopping.exit_status
        assert "DAEMON_STOPPING: the daemon is stopping and starts nothing more; try again" in refused.stderr
        said = daemon.request("POST", "/v1/work/loop/preview", {"goal": "Another."})
        assert (said["would_start"], [each["code"] for each in said["refusals"]]) == (
            False,
            ["DAEMON_STOPPING"],
        )

        for each in asked:
            each.answer(scripts.calling(scripts.NOTE))
        assert daemon.process.wait(SECONDS) == 0
        assert "breaking off" not in "".join(daemon.log.lines)
    with model.daemon(shape, home) as daemon:
        for thread, ended in zip(threads, (None, {"code": 0}), strict=True):
            (outcome,) = daemon.bodies(thread, "core.work.loop_outcome.v1")
            assert (outcome["outcome"], outcome["summary"], outcome["exit"]) == ("failed", SUMMARY, ended)
            assert outcome["turns"] == 1
            (verdict,) = daemon.bodies(thread, "core.work.tool_verdict.v1")
            assert (verdict["decision"], verdict["layer"]) == ("stop", "stop")
            assert daemon.bodies(thread, "core.work.note.v1") == []


@pytest.mark.one_shape
def test_a_run_that_does_not_leave_is_broken_off_when_the_daemon_is_told_a_second_time(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home, SPL_DRAIN_SECONDS="3600") as daemon:
        daemon.set_transport("sandboxed")
        thread = daemon.start("Go on.")["thread"]
        asked, worker = model.asked(), daemon.worker_pid(thread)
        short = shape.run("stop", "--home", str(home), "--timeout", "0")
        assert short.returncode == 11
        assert "has not ended 0 seconds after SIGTERM; " in short.stderr
        daemon.log.wait_for("draining")
        # A terminal that goes away asks nobody twice.
        daemon.process.send_signal(signal.SIGHUP)
        for _ in range(5):
            assert daemon.request("GET", f"/v1/runs/{thread}")["state"] == "running"
        # Two more at once end it, and both see it end.
        daemon.process.send_signal(signal.SIGSTOP)
        stops = [shape.begin("stop", "--home", str(home), "-o", "json") for _ in range(2)]
        while not all("anon_inode:[pidfd]" in held(stop) for stop in stops):
            assert all(stop.poll() is None for stop in stops)
        daemon.process.send_signal(signal.SIGCONT)
        for stop in stops:
            said, complained = stop.communicate(timeout=SECONDS)
            assert (stop.returncode, complained) == (0, "")
            assert json.loads(said) == {"stopped": daemon.process.pid}
        assert daemon.process.wait(SECONDS) == 0
        wait_until_gone(worker)
        asked.wait_until_broken_off()
        assert "told to stop again" in daemon.log.wait_for("breaking off runs")
    with model.daemon(shape, home) as daemon:
        (outcome,) = daemon.bodies(thread, "core.work.loop_outcome.v1")
        assert (outcome["summary"], outcome["exit"]) == (SUMMARY, {"signal": "SIGKILL"})
