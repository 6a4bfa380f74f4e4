"""Watching a real daemon: across its death and its stop, by the command and by a client."""

from __future__ import annotations

import contextlib
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.end_to_end.daemon import SECONDS, Log

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape
    from tests.end_to_end.model import Model


@contextlib.contextmanager
def watching(shape: Shape, daemon: Daemon) -> Iterator[tuple[subprocess.Popen[str], Log]]:
    """Run `spl thread watch th_1` over TCP; gives the process and what it prints, one record a line."""
    url, token = f"http://127.0.0.1:{daemon.port}", (daemon.home / "token").read_text().strip()
    with (
        ThreadPoolExecutor(1) as reading,
        shape.begin("thread", "watch", "th_1", "-o", "json", SPL_URL=url, SPL_TOKEN=token) as process,
    ):
        assert process.stdout is not None
        printed = Log()
        reading.submit(printed.follow, process.stdout)
        try:
            yield process, printed
        finally:
            process.kill()


def write(daemon: Daemon, *numbers: int) -> None:
    for number in numbers:
        where = {"thread": "th_1", "actor": "did:sync:user:op", "act": "KNOW"}
        daemon.request("POST", "/v1/records", {**where, "body": {"n": number}})


def test_a_thread_is_watched_across_a_daemon_that_is_killed_and_one_that_is_stopped_without_gap_or_repeat(
    same_user: Shape, home: Path
) -> None:
    with contextlib.ExitStack() as stack:
        with same_user.daemon(home) as daemon:
            write(daemon, 0, 1)
            process, printed = stack.enter_context(watching(same_user, daemon))
            write(daemon, 2)
            printed.wait_for('"n": 2}')
            daemon.process.kill()
            daemon.process.wait(SECONDS)
        with same_user.daemon(home, "--port", str(daemon.port)) as daemon:
            write(daemon, 3, 4)
            printed.wait_for('"n": 4}')
            assert daemon.stop() == 0
        with same_user.daemon(home, "--port", str(daemon.port)) as daemon:
            write(daemon, 5)
            printed.wait_for('"n": 5}')
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 130
    assert [json.loads(line)["body"]["n"] for line in printed.lines] == [0, 1, 2, 3, 4, 5]


def test_a_watcher_is_told_how_a_run_ends_that_the_daemons_stop_breaks_off_and_then_that_it_stops(
    same_user: Shape, home: Path, model: Model
) -> None:
    with model.daemon(same_user, home, SPL_RUN_GRACE_SECONDS="0.2", SPL_STOP_GRACE_SECONDS="20") as daemon:
        thread = daemon.start("Go on.")["thread"]
        asked = model.asked()
        events = daemon.client.watch(f"/v1/threads/{thread}/watch")
        assert [next(events).name for _ in range(2)] == ["heartbeat", "record.created"]
        # One that nobody reads keeps the daemon from nothing: it would be there for the grace, on each listener.
        unread = daemon.client.watch("/v1/watch")
        next(unread)
        assert daemon.stop() == 0
        asked.wait_until_broken_off()
        *told, last = events
        kinds = [event.data["record"]["body"]["kind"] for event in told if event.name == "record.created"]
        assert kinds[-1] == "core.work.loop_outcome.v1"
        assert (last.name, last.data) == ("server_shutdown", {"retry_after_ms": 1000})
