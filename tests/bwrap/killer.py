"""A process that kills daemons: each launches a worker that ignores everything, and dies by SIGKILL at some moment.

What a daemon leaves comes to this process, the next subreaper (prctl(2)): that it has no child any more is the proof
that nothing is left.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bwrap import cgroup
from bwrap import launch as launching
from bwrap.ledger import Ledger
from spl.hardening import protect
from tests.bwrap.doomed import STUBBORN
from tests.bwrap.stage import Stage

if TYPE_CHECKING:
    from bwrap.plan import Plan
    from bwrap.process import Process
    from bwrap.sealed import Sealed

SECONDS = 3
"""How long what a daemon left may take to end: what does not end by itself waits for ever."""

_PR_SET_CHILD_SUBREAPER = 36
_LAUNCH_SECONDS = 0.12
_SYSTEM = ("posix", "fcntl", "resource", "_posixsubprocess", "select", "select.epoll", "select.poll", "_io")


def main(moment: str, seed: str, rounds: str, extra: str) -> None:
    """Kill so many daemons at a moment by name, or by chance; say of each what became of what it left."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    chance = random.Random(int(seed))
    with Stage() as stage:
        stage.ledger.groups = cgroup.take()  # what it is in is its daemons' too
        plan, image = stage.plan(extra=extra), stage.image(STUBBORN)
        calls = _calls(stage, plan, image) if moment == "chance" else 0
        told = []
        for turn in range(int(rounds)):
            # Every other one at the n-th call it makes to the operating system, the rest after some milliseconds.
            call = chance.randrange(calls) if calls and turn % 2 else None
            seconds = chance.uniform(0, _LAUNCH_SECONDS) if calls and not turn % 2 else SECONDS
            daemon = _Daemon(stage, plan, image, moment, call)
            daemon.die(seconds)
            told.append(_left(stage) | {"reached": daemon.reached, "call": call, "after": seconds})
    sys.stdout.write(json.dumps(told) + "\n")


class _Daemon:
    """A child that launches one worker and says how far it has come."""

    def __init__(self, stage: Stage, plan: Plan, image: Sealed, moment: str, call: int | None) -> None:
        self.reached = "nothing"
        self.calls = 0
        reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(reading)
                _play(stage, plan, image, moment, call, writing)
            finally:
                os._exit(99)
        os.close(writing)
        self._said = open(reading, "rb", buffering=0)  # noqa: SIM115 - closed by `die`

    def die(self, seconds: float) -> None:
        """Kill it after so many seconds, or once it says that it is there, or it did so itself."""
        deadline = time.monotonic() + seconds
        while select.select([self._said], [], [], max(deadline - time.monotonic(), 0))[0]:
            line = self._said.readline().split()
            if not line:
                break
            self.reached, self.calls = line[0].decode(), int(line[1])
            if self.reached == "there":
                break
        os.kill(self._pid, signal.SIGKILL)
        self._said.close()


def _calls(stage: Stage, plan: Plan, image: Sealed) -> int:
    """Give how many calls to the operating system a whole launch makes."""
    daemon = _Daemon(stage, plan, image, "chance", None)
    daemon.die(SECONDS)
    assert daemon.reached == "there"
    _left(stage)
    return daemon.calls


def _left(stage: Stage) -> dict[str, Any]:
    """Wait until nothing is left of a killed daemon, by itself or once the next one has swept."""
    by_itself = _all_end()
    swept = Ledger(f"{stage.home}/run/workers").sweep()
    # The probes' own connections: were they to fill the backlog, the next worker would wait for room in it.
    with suppress(BlockingIOError):
        while True:
            stage.listener.accept()[0].close()
    place = stage.ledger.groups.place
    groups = [each for each in os.listdir(place.folder) if each.startswith("worker-")] if place else []
    left = 0 if by_itself else len(swept)
    return {"left": left, "for_ever": not by_itself and not _all_end(), "groups": groups}


def _all_end() -> bool:
    """Reap every child, and say whether the last of them ended in time."""
    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return True
    except TimeoutError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_late(*_: object) -> None:
    raise TimeoutError


def _play(stage: Stage, plan: Plan, image: Sealed, moment: str, call: int | None, telling: int) -> None:
    """Be a daemon until it is killed."""
    made = 0

    def count(_: object, event: str, called: Any) -> None:
        nonlocal made
        if event == "c_call" and (called.__module__ or type(called.__self__).__module__) in _SYSTEM:
            if made == call:
                os.kill(os.getpid(), signal.SIGKILL)
            made += 1

    def tell(what: str) -> None:
        os.write(telling, f"{what} {made}\n".encode())

    add = stage.ledger.add

    def held(nonce: str, process: Process) -> None:
        add(nonce, process)
        tell("held")

    async def live() -> None:
        tell("started")
        sys.setprofile(count)
        worker = await stage.launch(plan, image)
        tell("confirmed")
        worker.entrust(b'{"credential": "c0ffee"}\n')
        tell("entrusted")
        tell("there")
        await worker.wait()

    with ExitStack() as changes:
        changes.enter_context(patch.object(stage.ledger, "add", held))
        if moment == "spawned":
            _wait_before_bubblewrap(changes, tell)
        if moment == "forked":
            _stop_bubblewrap_once_it_forked(changes, tell)
        asyncio.run(live())


def _wait_before_bubblewrap(changes: ExitStack, tell: Any) -> None:
    """Have bubblewrap start only when its daemon is dead, untied to it as it is until `Popen` has come back."""
    spawn = subprocess.Popen

    def late(command: list[str], **options: Any) -> Any:
        started = spawn(["/bin/sh", "-c", 'read nothing; exec "$@"', "sh", *command], **options)
        tell("there")
        return started

    changes.enter_context(patch("subprocess.Popen", late))
    changes.enter_context(patch("bwrap.supervise.tie", lambda *_: None))


def _stop_bubblewrap_once_it_forked(changes: ExitStack, tell: Any) -> None:
    """Have bubblewrap go no further than its fork: its child waits for it."""

    async def stopped(self: launching.Launch, uid: int, gid: int) -> Process:
        monitor = self._pid_of_monitor()
        while not _read(f"/proc/{monitor}/task/{monitor}/children"):
            assert not select.select([self._open["monitor"]], [], [], 0)[0], (
                "bubblewrap ended before it forked"
            )
        os.kill(monitor, signal.SIGSTOP)
        tell("there")
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    changes.enter_context(patch.object(launching.Launch, "_held", stopped))


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


if __name__ == "__main__":
    protect()
    main(*sys.argv[1:])
