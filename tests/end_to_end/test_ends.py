"""How a sandboxed run's process ended, as its outcome says it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.end_to_end import scripts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Json, Shape


def outcome(daemon: Daemon, thread: str) -> Json:
    daemon.finish(thread)
    (found,) = daemon.bodies(thread, "core.work.loop_outcome.v1")
    return found


def test_a_worker_that_ends_by_itself_has_the_exit_code_0(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        daemon.set_transport("sandboxed")
        found = outcome(daemon, daemon.start()["thread"])
        assert (found["outcome"], found["exit"]) == ("completed", {"code": 0})


def test_a_worker_that_someone_killed_or_its_wall_clock_ended_says_which_it_was(
    shape: Shape, home: Path
) -> None:
    provider = scripts.write(home.parent / "script", *scripts.endless())
    with shape.daemon(home, "--provider", provider) as daemon:
        daemon.set_transport("sandboxed")
        for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGKILL, "SIGKILL")):
            thread = daemon.start("Go on.")["thread"]
            os.kill(daemon.worker_pid(thread), number)
            found = outcome(daemon, thread)
            assert (found["outcome"], found["exit"]) == ("failed", {"signal": name})
            assert name in found["summary"]
        found = outcome(daemon, daemon.start("Go on.", wall_clock_secs=0.3)["thread"])
        assert (found["outcome"], found["exit"]) == ("budget_exhausted", {"signal": "SIGKILL"})
        assert found["budget_kind"] == "wall_clock"


def test_a_worker_whose_monitor_was_killed_was_killed_too(shape: Shape, home: Path) -> None:
    provider = scripts.write(home.parent / "script", *scripts.endless())
    with shape.daemon(home, "--provider", provider) as daemon:
        daemon.set_transport("sandboxed")
        thread = daemon.start("Go on.")["thread"]
        pid = daemon.worker_pid(thread)
        with open(f"/proc/{pid}/stat") as stat:
            monitor = int(stat.read().rpartition(")")[2].split()[1])
        os.kill(monitor, signal.SIGKILL)
        assert outcome(daemon, thread)["exit"] == {"signal": "SIGKILL"}
