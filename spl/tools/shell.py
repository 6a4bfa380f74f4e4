"""A command of the host's, run to its end or its time limit, with nothing that it started left afterwards.

A keeper of its own stands over each command (`keeper.py`), and ends all of it. What a command that kills its keeper
leaves comes to this process where it is a subreaper (prctl(2)), as the daemon is, and is ended here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from bwrap.pipes import readable

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

_PIECE = 65536
_CLEAR_SECONDS = 5.0
# As it was when this program was loaded: an update may replace it while the daemon runs.
_KEEPER = Path(__file__).with_name("keeper.py").read_text(encoding="utf-8")
# What could not be ended, until it has; asyncio itself keeps no task.
_later: set[asyncio.Task[None]] = set()


class Ended(NamedTuple):
    """How a command ended: its status as `subprocess` gives it, None when it was stopped at its time limit.

    `output` is the first of what it wrote, of `written` bytes in all. `cleared` says that nothing is left of it.
    """

    output: bytes
    written: int
    status: int | None
    cleared: bool


async def run(
    command: Sequence[str], *, folder: str, environment: Mapping[str, str], seconds: float, most: int
) -> Ended:
    """Run a command with no input, and keep at most so many bytes of its output and errors, as they come.

    Raises `OSError` when it cannot be started. If the task is cancelled, the command is killed first; it is, too, when
    this process dies, or the thread this is called on (PR_SET_PDEATHSIG, prctl(2)).
    """
    with ExitStack() as held:
        reading, writing = os.pipe()
        held.callback(os.close, reading)
        try:
            # In a process group of its own: what a terminal sends to this one's does not reach it.
            process = subprocess.Popen(  # noqa: ASYNC220 - asyncio's own takes a thread a child on Python 3.11
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", _KEEPER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=writing,
                cwd=folder,
                env=environment,
                process_group=0,
            )
        finally:
            os.close(writing)
        head = _Head(reading, most)
        held.callback(head.close)
        report = cast("IO[bytes]", process.stdout)  # it was asked for
        late = False
        try:
            async with asyncio.timeout(seconds):
                await readable(report.fileno())
        except TimeoutError:
            late = True
        finally:
            # At once, before anything can break in; what follows goes on even then.
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # the command may have stopped it
            told, cleared = await asyncio.shield(asyncio.ensure_future(_clear(process, report)))
        if "failed" in told:
            raise OSError(told["failed"], os.strerror(told["failed"]), command[0])
        # Without a word of its end it was killed, by the keeper or here.
        status = os.waitstatus_to_exitcode(told.get("ended", signal.SIGKILL))
        # What it wrote had come by then: the loop hears of a pipe and of an end at once.
        return Ended(head.kept, head.written, None if late else status, cleared)


async def _clear(process: subprocess.Popen[bytes], report: IO[bytes]) -> tuple[dict[str, int], bool]:
    """Wait until a keeper has ended all, as it was told to, and reap it; end here what one leaves that is killed.

    Gives what it told, and whether nothing is left.
    """
    told = b""
    with report, suppress(TimeoutError):
        async with asyncio.timeout(_CLEAR_SECONDS):
            while b"left" not in told:
                await readable(report.fileno())
                piece = os.read(report.fileno(), _PIECE)
                if not piece:
                    await _reap(process)
                    break
                told += piece
    words = {word: int(number) for word, number in (line.split() for line in told.decode().splitlines())}
    if "left" in words:
        _kept(_reap(process))
        return words, False
    if process.returncode == 0:
        return words, True
    # It was killed, or stopped again and again, by the command.
    process.kill()
    await _reap(process)
    return words, await _sweep()


async def _reap(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        await _ended(process.pid)
        process.wait()


async def _sweep() -> bool:
    """Kill and reap what came to this process from a keeper that was killed; False when it does not go."""
    try:
        async with asyncio.timeout(_CLEAR_SECONDS):
            # Again and again: what an orphan leaves comes here too.
            while orphans := [
                int(name) for name in os.listdir("/proc") if name.isdecimal() and _orphan(int(name))
            ]:
                await asyncio.wait([_kept(_end(pid)) for pid in orphans])
    except (TimeoutError, OSError):
        return False
    return True


async def _end(pid: int) -> None:
    with suppress(ProcessLookupError), _pidfd(pid) as pidfd:
        # Asked once the pidfd is open: the number could have come to mean another process.
        if _orphan(pid):
            with suppress(PermissionError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            await readable(pidfd)
            with suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222 - does not wait


def _orphan(pid: int) -> bool:
    """Whether a process is this one's to end though it did not start it: a child in another session.

    A session is left for a new one only (setsid(2)), and all that this process starts stays in its own. A sandboxed
    worker is in another too, and comes here when its monitor dies: then it is to end as well.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # After the name, which may hold anything: state, parent, group, session (proc_pid_stat(5)).
            _, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(parent) == os.getpid() and int(session) != os.getsid(0)


def _kept(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    task = asyncio.ensure_future(work)
    _later.add(task)
    task.add_done_callback(_later.discard)
    return task


@contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def _ended(pid: int) -> None:
    """Wait for a child to end, and leave it to be reaped."""
    with _pidfd(pid) as pidfd:
        await readable(pidfd)


class _Head:
    """The first of what comes through a pipe; the rest is read and dropped, so that whoever writes goes on."""

    def __init__(self, descriptor: int, most: int) -> None:
        self.kept = b""
        self.written = 0
        self._descriptor = descriptor
        self._most = most
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self.take)

    def take(self) -> None:
        """Read what has come, at most a piece."""
        try:
            piece = os.read(self._descriptor, _PIECE)
        except BlockingIOError:
            return
        if not piece:
            self.close()
        self.written += len(piece)
        self.kept += piece[: self._most - len(self.kept)]

    def close(self) -> None:
        """Read no more when something comes; can be called twice."""
        self._loop.remove_reader(self._descriptor)
