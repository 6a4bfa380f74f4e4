"""Admission on a live daemon: how many sandboxed runs its memory carries, and that every place is free again."""

from __future__ import annotations

import http.client
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import AdmissionCeiling, IsolationUnavailable
from tests.end_to_end import scripts
from tests.end_to_end.daemon import SECONDS, wait_until_gone
from tests.end_to_end.test_profiles import LOWER, NETWORK, choose, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.end_to_end.daemon import Daemon, Shape

MEMINFO = "MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {} kB\n"
GIB = 1 << 20
"""In kB, as the kernel says it."""

# A worker of the shipped profile may take up a little over 552 MiB: 512 of its own, the rest the kernel's for it.
ONE, THREE = 2 * GIB, 4 * GIB

COUNTING = """#!/bin/sh
echo started >> {count}
exec {real} "$@"
"""


def planted(shape: Shape, home: Path, memory: int) -> list[str]:
    """Give a prefix under which so many kB are available, and each start of bubblewrap is counted."""
    meminfo, real, fake, count = (
        home.with_name(name) for name in ("meminfo", "bwrap-real", "bwrap", "count")
    )
    meminfo.write_text(MEMINFO.format(memory))
    real.write_bytes(Path("/usr/bin/bwrap").read_bytes())
    fake.write_text(COUNTING.format(count=count, real=real))
    count.touch()
    for path, mode in ((real, 0o755), (fake, 0o755), (count, 0o666)):
        path.chmod(mode)
    steps = (f"mount --bind {meminfo} /proc/meminfo", f"mount --bind {fake} /usr/bin/bwrap")
    prefix = ["unshare", "-m", "sh", "-c", " && ".join((*steps, 'exec "$@"')), "sh"]
    if shape.uid:
        # Only root can hide a file; the daemon is the ordinary user again after that.
        prefix += ["setpriv", f"--reuid={shape.uid}", f"--regid={shape.uid}", "--clear-groups", "--"]
    return prefix


def started(home: Path) -> int:
    """Give how often bubblewrap was started."""
    return home.with_name("count").read_text().count("started")


def endless(home: Path) -> Sequence[str]:
    """Give the flags of a daemon whose runs do not end by themselves."""
    return ("--provider", scripts.write(home.parent / "script", *scripts.endless()))


def places(daemon: Daemon) -> tuple[int, int]:
    """Give what health says of capacity and what is available."""
    work_loop = daemon.request("GET", "/v1/engine/health")["work_loop"]
    return work_loop["admission_capacity"], work_loop["admission_available"]


def set_capacity(daemon: Daemon, capacity: int | None) -> None:
    daemon.configure(topic="admission_capacity", capacity=capacity)


def kill_worker(daemon: Daemon, thread: str) -> dict[str, Any]:
    """Kill a run's worker from outside and wait for the run's end; gives its row."""
    pid = daemon.worker_pid(thread)
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        wait_until_gone(pid, pidfd)
    finally:
        os.close(pidfd)
    return daemon.finish(thread)


def start_raw(daemon: Daemon) -> tuple[int, str | None, dict[str, Any]]:
    """Ask for a run; give the status, the header Retry-After, and the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=SECONDS)
    token = (daemon.home / "token").read_text().strip()
    connection.request("POST", "/v1/work/loop", b'{"goal":"x"}', {"authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    said = answer.status, answer.getheader("retry-after"), json.loads(answer.read())
    connection.close()
    return said


@pytest.mark.claim("A1", "A3")
def test_the_memory_and_the_profile_in_force_decide_how_many_runs_go_on_at_once(
    shape: Shape, home: Path
) -> None:
    with shape.as_root_first().daemon(home, prefix=planted(shape, home, THREE)) as daemon:
        assert places(daemon) == (3, 3)
        assert "3 sandboxed at once" in daemon.announcement
        write(shape, home, LOWER)
        choose(daemon, "own")
        # 64 MiB instead of 512, and the kernel's share as before.
        assert places(daemon) == (19, 19)
        write(shape, home, '[limits]\naddress_space = "2G"\n')
        assert places(daemon) == (0, 0)
        daemon.set_transport("sandboxed")
        with pytest.raises(
            AdmissionCeiling, match="half of the memory that was available is 2048 MiB"
        ) as error:
            daemon.start()
        assert "set-capacity" in str(error.value.fields["remedy"])
        write(shape, home, NETWORK)
        assert places(daemon) == (0, 0)
        choose(daemon, None)
        assert places(daemon) == (3, 3)


@pytest.mark.claim("A1", "A2", "A3")
def test_a_start_past_the_ceiling_is_refused_with_both_numbers_and_starts_no_process(
    shape: Shape, home: Path
) -> None:
    prefix = planted(shape, home, ONE)
    # What stands by is started as well, and none of a start's.
    environment = {"SPL_STANDBY_WORKERS": "0"}
    with shape.as_root_first().daemon(home, *endless(home), prefix=prefix, **environment) as daemon:
        daemon.set_transport("sandboxed")
        assert places(daemon) == (1, 1)
        before = started(home)
        first = daemon.start()["thread"]
        assert (started(home), places(daemon)) == (before + 1, (1, 0))
        records = len(daemon.bodies("th_engine_isolation"))
        for _ in range(3):
            status, retry_after, said = start_raw(daemon)
            assert (status, said["code"], retry_after) == (503, "ADMISSION_CEILING", "1")
            assert (said["admission_capacity"], said["admission_available"]) == (1, 0)
        assert started(home) == before + 1
        assert len(daemon.bodies("th_engine_isolation")) == records
        assert [row["thread"] for row in daemon.request("GET", "/v1/runs")["data"]] == [first]
        assert kill_worker(daemon, first)["outcome"] == "failed"
        assert places(daemon) == (1, 1)
        second = daemon.start()["thread"]
        assert started(home) == before + 2
        kill_worker(daemon, second)


@pytest.mark.claim("A3")
def test_every_place_is_free_again_however_the_runs_ended(shape: Shape, home: Path) -> None:
    replies = (scripts.calling(scripts.NOTE), scripts.saying("Done."))
    provider = scripts.write(home.parent / "script", *replies)
    with shape.daemon(home, "--provider", provider) as daemon:
        daemon.set_transport("sandboxed")
        set_capacity(daemon, 2)
        # Completed, out of turns, refused by a layer.
        assert daemon.finish(daemon.start()["thread"])["outcome"] == "completed"
        assert places(daemon) == (2, 2)
        assert daemon.finish(daemon.start(max_turns=1)["thread"])["outcome"] == "max_turns"
        assert places(daemon) == (2, 2)
        write(shape, home, LOWER)
        choose(daemon, "own")
        write(shape, home, NETWORK)
        with pytest.raises(IsolationUnavailable):
            daemon.start()
        choose(daemon, None)
        assert places(daemon) == (2, 2)


@pytest.mark.claim("A1", "A3")
def test_a_capacity_that_is_set_is_in_force_at_once_and_leaves_running_runs_alone(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home, *endless(home), SPL_ADMISSION_CAPACITY="1") as daemon:
        daemon.set_transport("sandboxed")
        assert places(daemon) == (1, 1)
        set_capacity(daemon, 2)
        runs = [daemon.start()["thread"], daemon.start()["thread"]]
        assert places(daemon) == (2, 0)
        set_capacity(daemon, 0)
        assert places(daemon) == (0, 0)
        with pytest.raises(AdmissionCeiling, match="is set to 0"):
            daemon.start()
        states = [daemon.request("GET", f"/v1/runs/{thread}")["state"] for thread in runs]
        assert states == ["running", "running"]
        set_capacity(daemon, 1)
        kill_worker(daemon, runs[0])
        with pytest.raises(AdmissionCeiling):
            daemon.start()
        kill_worker(daemon, runs[1])
        assert places(daemon) == (1, 1)
        set_capacity(daemon, 5)
        assert places(daemon) == (5, 5)
        set_capacity(daemon, None)
        assert places(daemon) == (1, 1)


@pytest.mark.claim("A1")
def test_a_kernel_that_does_not_say_what_is_available_admits_none_unless_a_capacity_is_set(
    shape: Shape, home: Path
) -> None:
    prefix = planted(shape, home, ONE)
    home.with_name("meminfo").write_text("MemTotal: 99999999 kB\n")
    with shape.as_root_first().daemon(home, prefix=prefix) as daemon:
        daemon.log.wait_for("does not say MemAvailable")
        daemon.set_transport("sandboxed")
        with pytest.raises(AdmissionCeiling):
            daemon.start()
        set_capacity(daemon, 1)
        assert daemon.finish(daemon.start()["thread"])["state"] == "done"
