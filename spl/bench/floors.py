"""The floors: what the kernel, bubblewrap and the interpreter cost by themselves, on the same host in the same run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

from spl.bench.rows import F1, F2, F3
from spl.errors import HostRefused

if TYPE_CHECKING:
    from collections.abc import Mapping


def commands(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Give the command of each floor; `facts` are the helper's.

    bubblewrap has the namespaces of a run and the fewest mounts there can be: the host's own root, read-only.
    """
    true = shutil.which("true", path="/usr/bin:/bin") or "/bin/true"
    bare = [facts["bubblewrap"], *facts["namespaces"], "--ro-bind", "/", "/", "--"]
    return {F1: [true], F2: [*bare, true], F3: [*bare, facts["python"], "-I", "-S", "-c", "pass"]}


def spawned(command: list[str], environ: Mapping[str, str] | None = None, *, quiet: bool = False) -> float:
    """Run a command to its end; gives the milliseconds from posix_spawn(3) on. Raises `HostRefused` where it fails.

    With `quiet`, it reads nothing, what it prints goes nowhere, and what it left running in its session is killed.
    """
    nowhere = "/dev/null"
    actions = [(os.POSIX_SPAWN_OPEN, fd, nowhere, os.O_RDWR, 0) for fd in (0, 1, 2)] if quiet else None
    began = time.perf_counter_ns()
    pid = os.posix_spawn(command[0], command, environ or {}, file_actions=actions, setsid=quiet)
    try:
        # Its number stays its own until it is waited for: what is killed is never another's.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        took = time.perf_counter_ns() - began
    finally:
        # Broken off while it runs, it does not go on; of a tool that is set-user-id nothing may be ours to kill.
        with contextlib.suppress(PermissionError):
            (os.killpg if quiet else os.kill)(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if status != 0:
        raise HostRefused(
            f"what is to be measured failed: {command[0]} ended with {os.waitstatus_to_exitcode(status)}"
        )
    return took / 1e6
