"""The end of a confined process: seen on its pidfd, read where it cannot be mistaken, nothing left behind.

bubblewrap folds a signal into 128+n in its own exit, which a process that exits with 137 looks the same in. So the
process's own status is read: by whoever reaps it, or from its pidfd (Linux 6.15). Only where neither can be had does
the fold count; the worker's own exits stay below 64, so 128 and more is a signal then.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import struct
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bwrap import cgroup, uids
from bwrap.host import Shape
from bwrap.pipes import readable
from bwrap.process import Process, read_file, stat_fields

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Awaitable, Callable, Iterator, Mapping

T = TypeVar("T")

_CLEAR_TRIES, _CLEAR_SECONDS = 50, 0.1
_MONITOR_SECONDS = 2.0
_START_TIME = 22  # field of /proc/<pid>/stat, clock ticks since boot

# struct pidfd_info of linux/pidfd.h, as it was first: the mask comes first, the exit status last.
_PIDFD_INFO = struct.Struct("=Q52xi")
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO.size << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3


@dataclass(frozen=True, slots=True)
class Exit:
    """How a confined process ended: a code, or a signal, and why if it was this side that killed it.

    A process that was never started, or not confirmed, has no exit: its launch raised `LayerError`.
    """

    code: int | None
    signal: str | None
    killed: str | None = None

    @property
    def clean(self) -> bool:
        """Whether it ended by itself, with 0."""
        return self.code == 0

    def because(self, killed: str | None) -> Exit:
        """Give the exit with the reason this side had to kill it, if that is what ended it.

        One that had ended by itself before the kill came, or been killed for a reason, keeps its own end.
        """
        return replace(self, killed=self.killed or killed) if self.signal == "SIGKILL" else self

    def wire(self) -> dict[str, object]:
        """Give the exit as it stands in an outcome."""
        return {"code": self.code} if self.signal is None else {"signal": self.signal}


def read_exit(status: int) -> Exit:
    """Read an exit status as `subprocess` gives it: a code, or a signal as a negative number."""
    if status >= 0:
        return Exit(status, None)
    try:
        return Exit(None, signal.Signals(-status).name)
    except ValueError:
        return Exit(None, f"SIG{-status}")  # a real-time signal, which has no name of its own


def unfold(status: int) -> Exit:
    """Read the exit status of bubblewrap's monitor, in which 128+n stands for a signal of the process's."""
    return read_exit(128 - status if 128 < status <= 128 + signal.SIGRTMAX else status)


def _own_exit(pidfd: int) -> Exit | None:
    """Read how the process itself ended, and reap it if it is this one's child; None where this kernel tells nobody.

    The daemon is a subreaper: a worker that outlived its monitor is the daemon's child.
    """
    with suppress(ChildProcessError):
        found = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        if found is not None:
            code = found.si_status
            return read_exit(code if found.si_code == os.CLD_EXITED else -code)
    told = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, told)
    except OSError:
        return None
    mask, status = _PIDFD_INFO.unpack(told)
    return read_exit(os.waitstatus_to_exitcode(status)) if mask & _PIDFD_INFO_EXIT else None


def tie(reading: int, group: int) -> None:
    """Have the kernel kill a process group when this process, which writes to the pipe `reading`, ends.

    bubblewrap's child waits for its monitor before either is tied to anyone's death, and would wait for ever for one
    that died. So the pipe's end of file is made a SIGKILL to both (F_SETOWN and F_SETSIG, fcntl(2)): a process's files
    are closed before its children hear of its death, so it comes first. It reaches no init of a pid namespace, which
    the kernel spares signals it did not force. Anything written to the pipe would kill them too: `untie` before that.
    """
    fcntl.fcntl(reading, fcntl.F_SETOWN, -group)
    fcntl.fcntl(reading, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reading, fcntl.F_SETFL, fcntl.fcntl(reading, fcntl.F_GETFL) | os.O_ASYNC)


def untie(reading: int) -> None:
    """Undo `tie`: the processes are tied to this one's death by bubblewrap."""
    fcntl.fcntl(reading, fcntl.F_SETFL, fcntl.fcntl(reading, fcntl.F_GETFL) & ~os.O_ASYNC)
    fcntl.fcntl(reading, fcntl.F_SETSIG, 0)
    fcntl.fcntl(reading, fcntl.F_SETOWN, 0)


async def reap(monitor: subprocess.Popen[bytes], monitor_pidfd: int, pidfd: int, process: Process) -> Exit:
    """Wait for both processes, kill what else belongs to the worker, leave no zombie; gives how the worker ended.

    Raises `OSError` when it cannot be seen, for five seconds, that nothing is left.
    """
    with ExitStack() as held:
        namespace = _hold_view(process.pid, held)
        await _either_ended(monitor_pidfd, pidfd)
        monitor.kill()  # of one that ended with its child this asks nothing; one that was stopped never would
        await readable(monitor_pidfd)
        status = monitor.wait()
        # --die-with-parent kills the worker when its monitor goes; this does not wait for it to.
        kill(pidfd)
        await readable(pidfd)
        ended = _own_exit(pidfd) or unfold(status)
        await patiently(partial(_clear, process, namespace))
    return ended


async def patiently(clear: Callable[[], Awaitable[T]]) -> T:
    """Do what sees to it that nothing is left; again, for five seconds, where that takes what is not there.

    Raises `OSError`, what stands in the way then: nobody may take that for cleared up.
    """
    for _ in range(_CLEAR_TRIES):
        try:
            return await clear()
        except TimeoutError:
            raise  # it has waited itself
        except OSError:
            # Out of descriptors or memory for a moment: looking through /proc takes some.
            await asyncio.sleep(_CLEAR_SECONDS)
    return await clear()


async def _either_ended(monitor_pidfd: int, pidfd: int) -> None:
    """Wait for the monitor to end; or for its child, and then no more than a moment for the monitor."""
    await readable(monitor_pidfd, pidfd)
    if _has_ended(monitor_pidfd):
        return
    monitor = asyncio.ensure_future(readable(monitor_pidfd))
    try:
        await asyncio.wait((monitor,), timeout=_MONITOR_SECONDS)
    finally:
        monitor.cancel()
        await asyncio.gather(monitor, return_exceptions=True)


def _hold_view(pid: int, held: ExitStack) -> str | None:
    """Give a process's mount namespace and keep it: once it is gone, the kernel gives its number to the next one."""
    try:
        descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    held.callback(os.close, descriptor)
    return os.readlink(f"/proc/self/fd/{descriptor}")


async def _clear(process: Process, namespace: str | None) -> None:
    """Kill what still belongs to a worker, again until there is none: it may fork while it is looked for."""
    leased = process.shape is Shape.HOSTED and process.uid not in (0, os.geteuid())
    if leased and not uids.in_use(process.uid):
        return  # nothing of its uid, not even a zombie: no need to look through /proc
    ended: set[int] = set()
    running = uids.running_uids()
    while left := set(belonging(process.shape, process.uid, namespace, running)) - ended:
        for pid in left:
            await _end(pid, process, namespace)
        ended |= left
        running = uids.running_uids()
    await reap_adopted(process.uid, running)


def kill(pidfd: int) -> None:
    """Send SIGKILL to the process a pidfd names, if it is still there."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


async def _end(pid: int, process: Process, namespace: str | None) -> None:
    """Kill and reap what belonged to a worker when it was looked for, if it does still."""
    with suppress(ProcessLookupError), _opened(pid) as pidfd:
        # Others were waited for since: the number may have come to mean a stranger.
        if pid in belonging(process.shape, process.uid, namespace):
            await _kill_and_reap(pidfd)


async def _kill_and_reap(pidfd: int) -> None:
    kill(pidfd)
    await readable(pidfd)
    with suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)  # noqa: ASYNC222 - it has ended, this does not wait


@contextmanager
def _opened(pid: int) -> Iterator[int]:
    """Open a pidfd for a while: what is found out of the pid in that time is true of the process it names."""
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


async def clear_group(path: str) -> None:
    """Reap what has ended in a worker's group, in which nothing lives any more.

    Killed all at once, a child may have ended before its parent has: it comes to this process when that has too.
    """
    while left := list(cgroup.members(path)):
        for pid in left:
            with suppress(ProcessLookupError), _opened(pid) as pidfd:
                # Of another group by now, the number has come to mean a stranger.
                if cgroup.path_of(pid) == path:
                    await _kill_and_reap(pidfd)


async def reap_adopted(uid: int, running: Mapping[int, int] | None = None) -> None:
    """Kill and reap what of a worker's uid has come to this process as the subreaper, of what is `running`, or was.

    It is no child this process started, and nobody's to wait for, if it comes from another user namespace: the one
    namespace that a zombie still has.
    """
    own = os.readlink("/proc/self/ns/user")
    running = uids.running_uids() if running is None else running
    for pid in [pid for pid, owner in running.items() if owner == uid]:
        with suppress(OSError):
            # A child of this process keeps its number until it is reaped, and only here.
            if os.readlink(f"/proc/{pid}/ns/user") != own and parent(pid) == os.getpid():
                with _opened(pid) as pidfd:
                    await _kill_and_reap(pidfd)


def kill_pid(pid: int, still: Callable[[], bool]) -> bool:
    """Kill the process with this pid if `still` says, once its pidfd is open, that it is the one meant.

    Asked only then, no number can come to mean another process in between. Gives whether it was killed: one that has
    ended, and that nobody has reaped, was not.
    """
    try:
        with _opened(pid) as pidfd:
            if not still() or _has_ended(pidfd):
                return False
            kill(pidfd)
    except ProcessLookupError:
        return False
    return True


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def parent(pid: int) -> int | None:
    """Give the pid of a process's parent, or None when it is gone."""
    return _stat(pid, 4)


def started(pid: int) -> int | None:
    """Give a process's start time in clock ticks since boot, or None when it is gone."""
    return _stat(pid, _START_TIME)


def _stat(pid: int, field: int) -> int | None:
    try:
        return int(stat_fields(read_file(f"/proc/{pid}/stat"))[field - 3])
    except (FileNotFoundError, ProcessLookupError):
        return None


def belonging(
    shape: Shape, uid: int, namespace: str | None, running: Mapping[int, int] | None = None
) -> Iterator[int]:
    """Give what still belongs to a worker: its uid's processes when hosted, else those in its mount namespace.

    Looked for among what is `running`, by default now.

    A namespace that is this process's own, and a uid that is its own or root's, tell nothing apart: a bubblewrap that
    failed to make one must not have everything of this user, or of root, taken for the worker's.
    """
    if namespace == _view(os.getpid()):
        namespace = None
    leased = shape is Shape.HOSTED and uid not in (0, os.geteuid())
    for pid, owner in (uids.running_uids() if running is None else running).items():
        if owner != uid and owner != 0:
            continue
        if (leased and owner == uid) or (namespace is not None and _view(pid) == namespace):
            yield pid


def _view(pid: int) -> str | None:
    """Give a process's mount namespace: always a worker's own, and final while it is still held.

    Its user namespace is not: `--disable-userns` has bubblewrap make a second one within the first.
    """
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return None
