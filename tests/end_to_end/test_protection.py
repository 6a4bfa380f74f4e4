"""The daemon's own protection (M2), on a live daemon of either shape."""

from __future__ import annotations

import ctypes
import json
import os
import re
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.daemon import SECONDS, wait_until_gone
from tests.end_to_end.test_isolation import live_worker
from tests.test_hardening import INTRUDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.daemon import Shape

_PR_SET_CHILD_SUBREAPER = 36


def intrude(shape: Shape, pid: int) -> dict[str, str | None]:
    """Have another process of the daemon's user, or a root without capabilities, try to get at a process.

    A root that has every capability of the daemon's could trace anything; tests/test_hardening.py sets two without any
    against each other.
    """
    done = subprocess.run(
        [sys.executable, "-c", INTRUDER, "itself" if shape.uid else "capless", str(pid)],
        user=shape.uid,
        group=shape.uid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    attempts: dict[str, str | None] = json.loads(done.stdout)
    return attempts


@pytest.mark.claim("M2")
def test_another_process_of_the_same_user_gets_at_nothing_of_a_live_daemon(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        attempts = intrude(shape, daemon.process.pid)
    assert {"mem", "environ", "exe", "maps", "trace"} <= set(attempts)
    assert set(attempts.values()) <= {"EACCES", "EPERM"}, attempts


@pytest.mark.claim("M2")
def test_a_live_daemon_dumps_no_core_and_makes_nothing_for_others(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        pid = daemon.process.pid
        assert re.search(r"^Max core file size +1 +1 ", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
        assert re.search(r"^Umask:\t0077$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        # What an undumpable process shows in /proc is root's (proc(5)).
        assert os.stat(f"/proc/{pid}/environ").st_uid == 0
        assert {path: mode for path in home.rglob("*") if (mode := others(path))} == {}


def others(path: Path) -> int:
    """Give what a file's mode lets anyone but its owner do; nothing, for a link."""
    found = path.lstat()
    return 0 if stat.S_ISLNK(found.st_mode) else stat.S_IMODE(found.st_mode) & 0o077


@pytest.mark.claim("M2")
def test_a_careless_umask_opens_nothing_and_a_strict_one_closes_nothing_that_must_be_open(
    shape: Shape, home: Path
) -> None:
    for umask in ("000", "077"):
        prefix = ["sh", "-c", f'umask {umask}; exec "$@"', "sh"]
        with shape.daemon(home, prefix=prefix) as daemon:
            daemon.set_transport("sandboxed")
            assert daemon.finish(daemon.start()["thread"])["state"] == "done"
            assert {path: mode for path in home.rglob("*") if (mode := others(path))} == {}
            worker_socket = os.stat(home / "run" / "spl-worker.sock").st_mode
            assert stat.S_IMODE(worker_socket) == (0o600 if shape.uid else 0o666)


@pytest.mark.claim("M2", "B4")
def test_the_credentials_in_a_daemons_environment_are_gone_from_it_once_it_serves(
    shape: Shape, home: Path
) -> None:
    secrets = {"ANTHROPIC_API_KEY": "sk-the-secret", "SPL_TOKEN": "spl-the-secret"}
    with live_worker(shape, home, **secrets) as (daemon, _, worker):
        for pid in (daemon.process.pid, monitor_of(worker), worker):
            block = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"the-secret" not in block
            assert b"ANTHROPIC_API_KEY" not in block


@pytest.mark.claim("I11", "M2")
def test_what_a_daemon_was_started_with_and_what_it_opens_goes_on_to_no_child(
    shape: Shape, home: Path
) -> None:
    witness = str(home.with_name("witness"))
    prefix = ["sh", "-c", f'exec 7>{witness}; exec "$@"', "sh"]
    with live_worker(shape, home, prefix=prefix) as (daemon, _, worker):
        own = held(daemon.process.pid)
        assert own["7"] == witness
        monitor = held(monitor_of(worker))
        for child in (monitor, held(worker)):
            assert witness not in child.values()
        # Its sockets, its database and its lock are the daemon's alone.
        private = {link for link in own.values() if link.startswith(("socket:", f"{home}/"))}
        assert private
        assert private & set(monitor.values()) == set()


@contextmanager
def subreaper() -> Iterator[None]:
    """Have what a process of this one's leaves behind come to this one, unless somebody is nearer."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def test_a_worker_whose_monitor_is_killed_comes_to_the_daemon_which_leaves_no_zombie(
    shape: Shape, home: Path
) -> None:
    with subreaper(), live_worker(shape, home) as (daemon, thread, worker):
        pidfd = os.pidfd_open(worker)
        os.kill(monitor_of(worker), 9)
        wait_until_gone(worker, pidfd)
        daemon.finish(thread)
        assert not os.path.exists(f"/proc/{worker}")
        # Were the daemon no reaper, the worker would have become this process's child.
        with pytest.raises(ChildProcessError):
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        os.close(pidfd)


def monitor_of(worker: int) -> int:
    """Give the pid of a worker's parent."""
    return int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])


def held(pid: int) -> dict[str, str]:
    """Give a process's descriptors and what each is."""
    folder = f"/proc/{pid}/fd"
    return {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
