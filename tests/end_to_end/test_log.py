"""A log that takes no more while a run is going: what cannot be written down does not happen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from spl.errors import StoreDamaged, StoreUnavailable
from tests.end_to_end import scripts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape
    from tests.end_to_end.model import Model

pytestmark = pytest.mark.one_shape


@contextlib.contextmanager
def full(shape: Shape, daemon: Daemon) -> Iterator[None]:
    """Let a daemon write to no file for a while, as on a full disk: write(2) fails, by RLIMIT_FSIZE (setrlimit(2))."""
    limit(shape, daemon, "0")
    try:
        yield
    finally:
        limit(shape, daemon, "unlimited")


def limit(shape: Shape, daemon: Daemon, size: str) -> None:
    """Set how long a file may become by a daemon's hand; its own user may, and here no root but that one."""
    command = ["prlimit", f"--pid={daemon.process.pid}", f"--fsize={size}:unlimited"]
    subprocess.run(command, user=shape.uid, group=shape.uid, extra_groups=[], check=True)


def failing(daemon: Daemon) -> str | None:
    """Give why the log takes nothing, as health says it."""
    said: str | None = daemon.request("GET", "/v1/engine/health")["store"]["failing"]
    return said


@pytest.mark.claim("K1", "K3")
def test_a_verdict_that_cannot_be_written_down_is_a_denial_and_nothing_runs(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        daemon.set_transport("sandboxed")
        thread = daemon.start("Take a note.")["thread"]
        worker = daemon.worker_pid(thread)
        asked = model.asked()
        # Held still between its model's reply, which is written down, and what it makes of it.
        os.kill(worker, signal.SIGSTOP)
        asked.answer(scripts.calling(scripts.NOTE))
        while not daemon.bodies(thread, "core.work.turn.v1"):
            assert daemon.process.poll() is None
        with full(shape, daemon):
            before = daemon.bodies(thread)
            os.kill(worker, signal.SIGCONT)
            asked = model.asked()
            assert asked.shown.startswith("This call was not run (log): its verdict cannot be written down")
            assert daemon.bodies(thread) == before
            with pytest.raises(StoreUnavailable) as error:
                daemon.start("Another.")
            # From now on health and a preview say so.
            assert failing(daemon) == error.value.message
            preview = daemon.request("POST", "/v1/work/loop/preview", {"goal": "x"})
            assert preview["refusals"][0]["code"] == "STORE_UNAVAILABLE"
            assert daemon.request("GET", f"/v1/runs/{thread}")["state"] == "running"
        asked.answer(scripts.calling(scripts.SUM))
        model.asked().answer(scripts.saying("Done."))
        row = daemon.finish(thread)
        assert daemon.bodies(thread, "core.work.note.v1") == []
        # The call that was judged, with room again, ran.
        verdicts = daemon.bodies(thread, "core.work.tool_verdict.v1")
        assert [(each["tool"], each["decision"]) for each in verdicts] == [("calculate", "allow")]
        assert (row["state"], row["tool_calls_ok"]) == ("done", 1)
        assert failing(daemon) is None


@pytest.mark.claim("K3")
def test_a_command_whose_verdict_cannot_be_written_down_does_not_run_in_process_either(
    same_user: Shape, home: Path, model: Model
) -> None:
    let_go, second = (home.with_name(name) for name in ("let-go", "second"))
    os.mkfifo(let_go)
    let_go.chmod(0o666)
    with model.daemon(same_user, home) as daemon:
        thread = daemon.start("Two commands.")["thread"]
        commands = [f"cat {let_go}", f"touch {second}"]
        model.asked().answer(
            scripts.calling(*({"name": "bash", "arguments": {"command": each}} for each in commands))
        )
        # It opens once the first command reads it, and so is going on.
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(let_go.open("w"))
            stack.enter_context(full(same_user, daemon))
            opened.close()
            daemon.log.wait_for("the outcome cannot be written")
            assert daemon.request("GET", f"/v1/runs/{thread}")["state"] == "running"
        row = daemon.finish(thread)
        assert (row["state"], row["outcome"]) == ("stopped_short", "failed")
        assert len(daemon.bodies(thread, "core.work.tool_verdict.v1")) == 1
    assert not second.exists()


@pytest.mark.claim("M5")
def test_a_daemon_whose_log_is_gone_does_not_begin_a_new_one(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        assert daemon.stop() == 0
    for each in home.glob("hub.db*"):
        each.unlink()
    refused = shape.run("serve", "--home", str(home), "--port", "0")
    assert refused.returncode == StoreDamaged.exit_status
    assert refused.stderr.startswith("spl: STORE_DAMAGED: ")
    assert "begins with an empty log, without members, rules, tiers or runs" in refused.stderr
    assert list(home.glob("hub.db*")) == []
