"""What can happen to a daemon, one thing a round: it strikes while clients are at work."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.end_to_end.daemon import SECONDS, children

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.disk import Disk
    from tests.end_to_end.crash.clients import Told
    from tests.end_to_end.daemon import Daemon

DEAD = "DAEMON_UNREACHABLE"
UNWRITTEN = "STORE_UNAVAILABLE"
DAMAGED = "STORE_DAMAGED"
UNCONFINED = "ISOLATION_UNAVAILABLE"
ENDING = "DAEMON_STOPPING"


@dataclass
class Scene:
    """What a fault may lay hands on, and the chance by which it chooses its moment."""

    daemon: Daemon
    disk: Disk
    told: Told
    chance: random.Random
    clock: Path

    def soon(self, most: int = 60) -> None:
        """Wait for some of the daemon's answers to the clients."""
        self.told.wait_for(self.chance.randint(1, most), SECONDS)

    def moment(self, pidfd: int, most: float = 0.1) -> None:
        """Wait for a moment, no longer than a process lives."""
        select.select([pidfd], [], [], self.chance.uniform(0, most))

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Have the daemon stand still, between two system calls of each thread, while something is done to its disk.

        ext4 says of an fsync(2) that it was aborted or shut down under that all is well (seen on Linux 6.18).
        """
        self.kill(signal.SIGSTOP)
        os.waitid(os.P_PID, self.daemon.process.pid, os.WSTOPPED)
        try:
            yield
        finally:
            self.kill(signal.SIGCONT)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send the daemon a signal."""
        self.daemon.process.send_signal(number)


@dataclass(frozen=True)
class Fault:
    """One thing that happens.

    `strike` does it, and undoes it where the daemon is to go on. `allowed` are the codes that clients may meet
    meanwhile. `dies` tells whether the daemon is gone by it, and `mend` makes the disk usable again then. `environment`
    tells a daemon that is about to start what it will do to itself.
    """

    strike: Callable[[Scene], None]
    allowed: frozenset[str] = frozenset()
    dies: bool = False
    mend: Callable[[Disk], None] | None = None
    environment: Callable[[random.Random], dict[str, str]] = lambda _: {}


# --- the daemon's end ---


def _kill(scene: Scene) -> None:
    scene.soon()
    scene.kill()


def _kill_at_an_answer(scene: Scene) -> None:
    """Kill it at once after an answer has come in, whoever's it was."""
    scene.told.wait_for(1, SECONDS)
    scene.kill()


def _kill_stopped(scene: Scene) -> None:
    scene.soon()
    scene.kill(signal.SIGSTOP)
    pidfd = os.pidfd_open(scene.daemon.process.pid)
    try:
        scene.moment(pidfd)
    finally:
        os.close(pidfd)
    scene.kill()


def _kill_while_it_stops(scene: Scene) -> None:
    scene.soon()
    pidfd = os.pidfd_open(scene.daemon.process.pid)
    try:
        scene.kill(signal.SIGTERM)
        scene.moment(pidfd)
    finally:
        os.close(pidfd)
    scene.kill()


def _wait(scene: Scene) -> None:
    """Let it come to its moment: it kills itself then."""
    scene.daemon.process.wait(SECONDS)


KINDS = (
    "core.work.loop.v1",
    "core.work.turn.v1",
    "core.work.tool_call.v1",
    "core.work.tool_result.v1",
    "core.work.loop_outcome.v1",
    "core.engine.config.v1",
)
STEPS = ("identity", "limits", "confirm")


def _around_a_commit(chance: random.Random) -> dict[str, str]:
    when, kind = chance.choice(("before", "after")), chance.choice(KINDS)
    return {"CRASH_AT": f"{when} {kind} {chance.randint(1, 5)}"}


def _in_a_launch(chance: random.Random) -> dict[str, str]:
    # Of a run's worker: those that stand by are launched before anyone has asked for something.
    when = f"launch {chance.choice(STEPS)} {chance.randint(2, 5)}"
    return {"CRASH_AT": when, "SPL_STANDBY_WORKERS": "0"}


def _stop(scene: Scene) -> None:
    scene.soon()
    scene.kill(signal.SIGTERM)
    status = scene.daemon.process.wait(SECONDS)
    assert status == 0, f"it ended with {status}"


# --- a worker's end ---


def _kill_workers(scene: Scene) -> None:
    """Kill some of the daemon's children or theirs, some stopped before: workers, monitors, what makes a backup."""
    for _ in range(scene.chance.randint(1, 5)):
        monitor = next(_monitors(scene), None)
        if monitor is None:
            return
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            pidfd = os.pidfd_open(monitor)
            try:
                scene.moment(pidfd)
                family = [monitor, *children(monitor)]
                pid = scene.chance.choice(family)
                if scene.chance.randrange(2):
                    os.kill(pid, signal.SIGSTOP)
                    scene.moment(pidfd, 0.05)
                os.kill(pid, signal.SIGKILL)
            finally:
                os.close(pidfd)


def _monitors(scene: Scene) -> Iterator[int]:
    while scene.daemon.process.poll() is None:
        yield from children(scene.daemon.process.pid)


# --- the disk ---


def _fill(scene: Scene) -> None:
    scene.soon()
    scene.disk.fill()
    scene.told.wait_for_refusal({UNWRITTEN}, SECONDS)
    scene.soon()
    scene.disk.empty()


def _fail(scene: Scene) -> None:
    scene.soon()
    with scene.stopped():
        scene.disk.fail()
    scene.told.wait_for_refusal({UNWRITTEN}, SECONDS)
    scene.soon()
    if scene.chance.randrange(2):
        scene.kill()
    else:
        # A disk that takes nothing does not keep it from ending as it should.
        status = scene.daemon.stop()
        assert status == 0, f"it ended with {status}"


def _cut(scene: Scene) -> None:
    scene.soon()
    with scene.stopped():
        scene.disk.cut()
    if scene.chance.randrange(2):
        scene.told.wait_for_refusal({UNWRITTEN, DAMAGED}, SECONDS)
    scene.kill()


def _mount_anew(disk: Disk) -> None:
    disk.unmount()
    disk.mount()


def _fail_calls(scene: Scene) -> None:
    """Have the calls of the log's writer fail, by strace(1) on the daemon's threads but its first."""
    scene.soon()
    pid = scene.daemon.process.pid
    calls = scene.chance.choice(("fdatasync,fsync", "pwrite64", "fdatasync,fsync,pwrite64,ftruncate"))
    error = scene.chance.choice(("EIO", "ENOSPC"))
    threads = [name for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid]
    command = [
        "strace",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:error={error}",
    ]
    attached = [f"--attach={each}" for each in threads]
    # It complains of a thread that has ended meanwhile.
    with subprocess.Popen([*command, *attached], stderr=subprocess.DEVNULL) as tracer:
        try:
            scene.told.wait_for_refusal({UNWRITTEN}, SECONDS)
            scene.soon()
        finally:
            tracer.terminate()


# --- the clock ---

JUMPS = (-1.0, 1.0, -86_400.0, 86_400.0, -1.7e9, 2.3e9, 0.0)
"""Seconds; those before the last are to about 1970 and to about 2100."""


def _jump(scene: Scene) -> None:
    for _ in range(scene.chance.randint(2, 5)):
        set_clock(scene.clock, scene.chance.choice(JUMPS))
        scene.soon(20)


def set_clock(path: Path, seconds: float) -> None:
    """Set the daemon's clock so many seconds ahead."""
    draft = path.with_suffix(".draft")
    draft.write_text(str(seconds))
    draft.chmod(0o644)
    draft.replace(path)


def _shorten(log: Path) -> None:
    os.truncate(log, log.stat().st_size // 2)


def _zero(log: Path) -> None:
    with log.open("r+b") as file:
        file.write(bytes(4096))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut in half": _shorten,
    "its first page zeros": _zero,
    "empty": lambda log: os.truncate(log, 0),
    "gone": os.unlink,
}
"""What can become of a log's file while no daemon has it open."""

FAULTS: dict[str, Fault] = {
    "killed": Fault(_kill, frozenset({DEAD}), dies=True),
    "killed at an answer": Fault(_kill_at_an_answer, frozenset({DEAD}), dies=True),
    "killed while it was stopped": Fault(_kill_stopped, frozenset({DEAD}), dies=True),
    "killed while it ended": Fault(_kill_while_it_stops, frozenset({DEAD, UNWRITTEN, ENDING}), dies=True),
    "killed around a commit": Fault(_wait, frozenset({DEAD}), dies=True, environment=_around_a_commit),
    "killed in a launch": Fault(_wait, frozenset({DEAD}), dies=True, environment=_in_a_launch),
    "told to end": Fault(_stop, frozenset({DEAD, UNWRITTEN, ENDING}), dies=True),
    "workers killed": Fault(_kill_workers, frozenset({UNCONFINED})),
    "the disk full": Fault(_fill, frozenset({UNWRITTEN, UNCONFINED})),
    "the disk read-only": Fault(
        _fail, frozenset({DEAD, UNWRITTEN, UNCONFINED, ENDING}), dies=True, mend=_mount_anew
    ),
    # SQLite takes a page that a dead disk does not give it for one that is not as it should be.
    "the power cut": Fault(
        _cut, frozenset({DEAD, UNWRITTEN, UNCONFINED, DAMAGED}), dies=True, mend=_mount_anew
    ),
    "calls that fail": Fault(_fail_calls, frozenset({UNWRITTEN, UNCONFINED})),
    "the clock jumps": Fault(_jump),
}
"""By name, as a failure and docs/soak.md tell of them; see `World` for two more."""
