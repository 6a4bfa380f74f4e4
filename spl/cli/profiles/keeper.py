"""The keeper of a command that nothing confines: whatever it starts is a descendant of the keeper, which ends it."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS_OFF: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

PATIENCE: Final = 2.0
"""Seconds that a command has to end when it is asked to, and strace when its command was killed."""

LOOK: Final = 0.05
"""Seconds between two looks at what is left of it."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def beginning(keeping: int, mask: set[int | signal.Signals]) -> Callable[[], None]:
    """Give what a child of this process does before it is strace: it becomes the keeper, and strace a child of it.

    `keeping` is the one descriptor that the keeper has, so that its end is seen; `mask` what strace finds blocked.

    A signal at the death of a parent would reach strace alone, which lets go of what it traces; and the command shares
    this one's process group, for it has the terminal, so that there is no group to kill.
    """
    parent = os.getpid()
    ignored = [number for number in CALLS_OFF if signal.getsignal(number) is signal.SIG_IGN]

    def begin() -> None:
        subreap(True)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)  # which one that was stopped hears too
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        leader = os.fork()
        if leader != 0:
            status = 255
            try:
                os.setsid()
                os.closerange(0, keeping)
                os.closerange(keeping + 1, os.sysconf("SC_OPEN_MAX"))
                status = _keep(parent, leader)
            finally:
                os._exit(status)
        # Undone, what sh has done to what is in the background: the end of its terminal is the command's again. And
        # no handler of this process's may run in the child.
        for number in CALLS_OFF:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return begin


def _keep(parent: int, leader: int) -> int:
    """Wait for the end of strace, of a parent, or for its word, and leave nothing; gives strace's exit status."""
    status = None
    while status is None and os.getppid() == parent:
        number = signal.sigwait((signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT))
        if number == signal.SIGTERM:
            status = _ask(leader)
            break
        status = _reap(leader)
    clear()
    return 255 if status is None else status


def _ask(leader: int) -> int | None:
    """Have all but strace end: as it is asked to, and what is left after a moment by force; strace ends with it.

    strace itself is asked nothing: it would let go of all but its first.
    """
    asked: set[int] = set()
    begun = time.monotonic()
    while (status := _reap(leader)) is None and (taken := time.monotonic() - begun) < 2 * PATIENCE:
        for pid in _descendants(os.getpid()):
            if pid != leader and (taken > PATIENCE or pid not in asked):
                asked.add(pid)
                _kill(pid, signal.SIGKILL if taken > PATIENCE else signal.SIGTERM)
        signal.sigtimedwait((signal.SIGCHLD,), LOOK)
    return status


def _reap(leader: int) -> int | None:
    """Reap what has ended; gives the exit status of one of them, as a shell has it, if that has."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
            if ended[0] == leader:
                code = os.waitstatus_to_exitcode(ended[1])
                found = 128 - code if code < 0 else code
    return found


def clear() -> None:
    """Kill the children of this process, then those they leave to it, until there are none that it may signal.

    A child's number is its own until it is reaped, which only this process does: no other can be killed in its place.
    """
    while children := _children(os.getpid()):
        killed = [_kill(pid, signal.SIGKILL) for pid in children]
        if not any(killed):
            return
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for each in found:
        found += _children(each)
    return found


def _children(pid: int) -> list[int]:
    """Give the children of a process, those of each of its threads (proc_pid_task_children(5))."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            path = f"/proc/{pid}/task/{thread}/children"
            with suppress(FileNotFoundError, ProcessLookupError), open(path, "rb") as file:
                found += map(int, file.read().split())
    return found


def _kill(pid: int, number: signal.Signals) -> bool:
    """Send a signal; gives whether this process may."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def subreap(yes: bool) -> None:
    """Have what loses its parent below this process come to it, or no more (PR_SET_CHILD_SUBREAPER, prctl(2))."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def _prctl(option: int, value: int) -> None:
    """Set something of this process (prctl(2)); raises `OSError`."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
