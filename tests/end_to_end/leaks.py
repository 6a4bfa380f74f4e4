"""Many runs through one real daemon, some of them killed, and what is there afterwards that was not there before."""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import signal
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bwrap.uids import Pool
from spl.errors import IsolationUnavailable
from tests.end_to_end.daemon import children

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.daemon import Daemon, Json

UIDS = (60900, 60915)
"""A range of the soak's own, so that nothing else on the host counts."""
SETTING = {"SPL_WORKER_UIDS": f"{UIDS[0]}-{UIDS[1]}"}

OWNED = "owned by a worker's uid"

_RUN_SECONDS = 0.1
_SETTLING = 200
_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/spl")


@dataclass
class Figures:
    """What was done, and what was held before and after it, by kind and name."""

    done: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    before: dict[str, Counter[str]] = field(default_factory=dict)
    after: dict[str, Counter[str]] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)
    receipt: Json = field(default_factory=dict)

    def leaked(self) -> dict[str, Counter[str]]:
        """Give what is there after and was not before, and the other way round."""
        return {
            kind: (self.after[kind] - was) + (was - self.after[kind])
            for kind, was in self.before.items()
            if self.after[kind] != was
        }


def soak(daemon: Daemon, runs: int, kills: int, seed: int) -> Figures:
    """Do so many runs one after another, and kill so many workers, each at a moment of its life."""
    chance = random.Random(seed)
    figures = Figures()
    daemon.set_transport("sandboxed")
    first = _run(daemon)  # what a daemon loads on first use, and keeps
    (figures.receipt,) = daemon.bodies(first, "core.work.isolation.v1")
    figures.before = at_rest(daemon) | {OWNED: Counter(owned(*UIDS))}
    figures.memory.append(memory(daemon))
    for number in range(runs):
        _run(daemon)
        figures.done += 1
        _say(f"{number + 1} of {runs} runs", number)
    while figures.killed["starting"] + figures.killed["running"] < kills:
        figures.killed[_kill(daemon, chance)] += 1
        _say(f"killed {dict(figures.killed)}", sum(figures.killed.values()))
        assert figures.killed["ended before"] < 20 + 10 * kills, "nothing is killed in time"
    figures.after = settled(daemon, figures.before) | {OWNED: Counter(owned(*UIDS))}
    figures.memory.append(memory(daemon))
    return figures


def _run(daemon: Daemon) -> str:
    row = daemon.finish(daemon.start()["thread"])
    assert (row["state"], row["outcome"], row["tool_calls_ok"]) == ("done", "completed", 1), row
    daemon.log.lines.clear()
    return str(row["thread"])


def _kill(daemon: Daemon, chance: random.Random) -> str:
    """Kill a worker, or its monitor, some milliseconds after the monitor was made; say how far its run had come."""
    with ThreadPoolExecutor(1) as other:
        starting = other.submit(daemon.start)
        monitor = None
        while monitor is None and not starting.done():
            monitor = next(children(daemon.process.pid), None)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if monitor is not None:
                _kill_family(monitor, chance)
        try:
            row = starting.result()
        except IsolationUnavailable:
            return "starting"
    row = daemon.finish(row["thread"])
    (outcome,) = daemon.bodies(row["thread"], "core.work.loop_outcome.v1")
    daemon.log.lines.clear()
    if outcome["exit"] == {"code": 0}:
        assert row["outcome"] == "completed"
        return "ended before"
    assert (outcome["exit"], row["outcome"]) == ({"signal": "SIGKILL"}, "failed"), outcome
    return "running"


def _kill_family(monitor: int, chance: random.Random) -> None:
    pidfd = os.pidfd_open(monitor)
    try:
        # It may end by itself before that.
        select.select([pidfd], [], [], chance.uniform(0, _RUN_SECONDS))
        for child in [*children(monitor)][: chance.randrange(2)]:
            os.kill(child, signal.SIGKILL)
            return
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


# --- what is held ---


def holdings(daemon: Daemon) -> dict[str, Counter[str]]:
    """Give everything that a run takes and must give back, by kind and name."""
    pid = daemon.process.pid
    return {
        "processes": Counter(_processes(pid)),
        "descriptors": Counter(_descriptors(pid)),
        "mounts": Counter(_lines(f"/proc/{pid}/mountinfo")),
        "uids in use": Counter(str(uid) for uid in range(UIDS[0], UIDS[1] + 1) if _held(uid)),
        "files under the home": Counter(_files(str(daemon.home))),
        "files beside the worker socket": Counter(_files(_instance(daemon))),
    }


def owned(first: int, last: int) -> Iterator[str]:
    """Name whatever on this host belongs to a uid of a range: files, System V objects, message queues, keys."""
    mine = range(first, last + 1)
    for place in filter(os.path.isdir, _PLACES):
        # By the folder's descriptor: what lies there may have a longer path than the kernel takes.
        for path, folders, names, folder in os.fwalk(place):
            for name in (".", *folders, *names):
                with contextlib.suppress(FileNotFoundError):
                    if os.lstat(name, dir_fd=folder).st_uid in mine:
                        yield os.path.join(path, name)
    for kind in ("shm", "msg", "sem"):
        head, *rows = _lines(f"/proc/sysvipc/{kind}")
        names = head.split()
        for row in rows:
            said = dict(zip(names, row.split(), strict=True))
            if {int(said["uid"]), int(said["cuid"])} & set(mine):
                yield f"{kind} {said}"
    for row in _lines("/proc/keys"):
        # The kernel makes these two for each uid as it is looked up, and drops them with the uid's last process.
        if int(row.split()[5]) in mine and not re.search(r" _uid(_ses)?\.\d+", row):
            yield f"key {row}"


def at_rest(daemon: Daemon) -> dict[str, Counter[str]]:
    """Look until one look is as the one before, with a request between: its last connection may be closing still.

    No worker stands by while it is looked, and some do from then on.
    """
    daemon.set_standby(0)
    before = None
    while (now := holdings(daemon)) != before:
        before = now
        daemon.request("GET", "/v1/engine/health")
    daemon.configure(topic="standby_workers", workers=None)
    return now


def settled(daemon: Daemon, before: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Look again for as long as the daemon has not yet seen its last connections close, which each request lets it.

    No worker stands by from then on.
    """
    daemon.set_standby(0)
    after = holdings(daemon)
    for _ in range(_SETTLING):
        if after.items() <= before.items():
            break
        daemon.request("GET", "/v1/engine/health")
        after = holdings(daemon)
    return after


def _processes(pid: int) -> Iterator[str]:
    """Name all that descends from a process, zombies too, and all that runs under the soak's uids."""
    for child in children(pid):
        yield f"{child} of {pid}"
        yield from _processes(child)
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError):
            if UIDS[0] <= os.stat(f"/proc/{name}").st_uid <= UIDS[1]:
                yield f"{name} under a worker's uid"


def workers(daemon: Daemon) -> int:
    """Give how many workers a daemon has now, by their monitors."""
    return sum(1 for _ in children(daemon.process.pid))


def descriptors(daemon: Daemon) -> int:
    """Give how many descriptors a daemon holds."""
    return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))


def _descriptors(pid: int) -> Iterator[str]:
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield re.sub(r":\[\d+\]", "", os.readlink(f"/proc/{pid}/fd/{name}"))


def _instance(daemon: Daemon) -> str:
    """Give the folder of a hosted daemon's worker socket; the locks beside it stay, one for each uid ever leased."""
    return os.path.dirname(os.path.realpath(daemon.home / "run" / "spl-worker.sock"))


def _held(uid: int) -> bool:
    if not Pool().knows(uid):
        return False
    lease = Pool().take(uid)
    if lease is not None:
        lease.release()
    return lease is None


def _files(folder: str) -> Iterator[str]:
    for path, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(path, name)


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return [line.rstrip("\n") for line in file]


def memory(daemon: Daemon) -> int:
    """Give the daemon's resident memory in KiB."""
    status: dict[str, Any] = dict(line.split(":", 1) for line in _lines(f"/proc/{daemon.process.pid}/status"))
    return int(status["VmRSS"].split()[0])


def _say(what: str, number: int) -> None:
    if number % 50 == 0:
        sys.stderr.write(f"{what}\n")
