"""What is taken up while nothing is done: by an idle confined worker, and by the daemon."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from spl.bench.apparatus import WHOLE
from spl.bench.rows import Measured

if TYPE_CHECKING:
    from spl.bench.apparatus import Apparatus

_MIB: Final = 1 << 20
_LOOKS: Final = 40


def workers(bench: Apparatus) -> dict[str, Measured]:
    """Measure the memory of idle workers, beside one daemon and before there is another to share pages with."""
    used = [
        bench.cold.ask("idle", seconds=0.05)
        for _ in bench.times("workers at rest", _LOOKS if bench.size is WHOLE else bench.size.rounds)
    ]
    own, monitor = (statistics.median(each[name] for each in used) / _MIB for name in ("own", "monitor"))
    note = f"{own:.2f} MiB of it are shared with nobody; its monitor has {monitor:.2f} MiB beside it"
    return {"worker-memory": Measured.of([each["worker"] / _MIB for each in used], note=note)}


def daemon(bench: Apparatus) -> dict[str, Measured]:
    """Measure the memory of a daemon that has served, and how often it wakes."""
    daemon, size = bench.daemon, bench.size
    daemon.set_transport("sandboxed")
    daemon.ends.wait(daemon.start())
    daemon.settle()
    resident = []
    began, before = time.monotonic(), _wakeups(daemon.pid)
    for _ in bench.times("the daemon at rest", _LOOKS):
        time.sleep(size.rest_seconds / _LOOKS)
        # It does nothing for being looked at.
        resident.append(_resident(daemon.pid) / _MIB)
    rate = (_wakeups(daemon.pid) - before) / (time.monotonic() - began)
    return {
        "daemon-memory": Measured.of(resident),
        "daemon-wakeups": Measured(rate, 1, note=f"over {size.rest_seconds:g} s"),
    }


def _resident(pid: int) -> int:
    """Give the resident set of a process, in bytes (proc_pid_statm(5))."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _wakeups(pid: int) -> int:
    """Give how often the threads of a process have gone to sleep so far (proc_pid_status(5))."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        # One that ended meanwhile was not at rest, and is not counted.
        with (
            suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8", errors="replace") as file,
        ):
            for line in file:
                if line.startswith("voluntary_ctxt_switches:"):
                    total += int(line.split()[1])
    return total
