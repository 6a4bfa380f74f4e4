"""What the log says of each sandboxed start, held against what the kernel says of who speaks to the worker socket."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end import scripts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape
    from tests.end_to_end.model import Model

_PIDFD_GETFD = 438
"""The number of pidfd_getfd(2), on every architecture."""


def sockets_of(pid: int) -> Iterator[socket.socket]:
    """Give the sockets that a process has open, each as a copy of its own descriptor; for root."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    copied = libc.syscall(_PIDFD_GETFD, pidfd, int(name), 0)
                    # Closed since it was listed.
                    if copied != -1:
                        with socket.socket(fileno=copied) as found:
                            yield found
    finally:
        os.close(pidfd)


def peers(daemon: Daemon) -> dict[int, int]:
    """Give the uid of each pid that is connected to a daemon's worker socket: SO_PEERCRED of the daemon's own end."""
    bound = os.path.realpath(daemon.home / "run" / "spl-worker.sock")
    found = {}
    for each in sockets_of(daemon.process.pid):
        if each.family == socket.AF_UNIX and each.getsockname() == bound:
            pid, uid, _ = struct.unpack("3i", each.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            # A listening socket names who made it (unix(7)).
            if pid != daemon.process.pid:
                found[pid] = uid
    return found


@pytest.mark.claim("M3")
def test_each_sandboxed_start_is_logged_with_the_pid_and_uid_that_the_kernel_gives_of_its_worker(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        daemon.set_transport("sandboxed")
        known: dict[int, int] = {}
        held = []
        for profile in ("worker", "strict", "worker"):
            daemon.configure(topic="work_loop_profile", profile=profile)
            run = daemon.start("Wait.")
            # It waits for its model's reply, and so is connected.
            held.append((run["thread"], model.asked()))
            said = daemon.log.wait_for(f'"running sandboxed", "thread": "{run["thread"]}"')
            assert said.startswith('{"event": "running sandboxed", "thread": ')
            line = json.loads(said)
            now = peers(daemon)
            (pid,) = now.keys() - known.keys()
            assert (line["pid"], line["uid"], line["profile"]) == (pid, now[pid], profile)
            assert (line["level"], line["actor"]) == ("info", run["actor"])
            known = now
        assert len(known) == 3
        for thread, asked in held:
            asked.answer(scripts.saying("Done."))
            assert daemon.finish(thread)["profile"] in {"worker", "strict"}
