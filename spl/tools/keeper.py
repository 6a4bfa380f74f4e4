"""The keeper of one command: a process that starts it and leaves nothing of it, whatever becomes of the daemon.

It is run as `python -I -S -c SOURCE DAEMON PROGRAM ARGUMENT...`. What the command leaves behind comes to the keeper as
the subreaper (prctl(2)), with a session of its own or without. So all of it is the keeper's to kill and reap: when the
command ends, when the daemon asks for it with SIGTERM, and when the daemon dies, of which the kernel tells it with
SIGCONT: a keeper that the command has stopped hears that too. It ends with 0 once nothing is left. Only SIGKILL ends it
before, and then what it kept comes to the daemon.

Descriptor 2 is the command's output and errors. To descriptor 1 the keeper tells, each a line of a word and a number:
`failed` and an errno when the command cannot be started; `ended` and its wait status (waitpid(2)) when it ended by
itself; `left` and how many may not be killed (a command of another user, by sudo), for whose end it stays.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36


def main(daemon: int, command: list[str]) -> None:
    """Run a command, and return once nothing of it is left. It takes the whole process: its signals and children."""
    # What is blocked stays to be waited for, even what came before anyone waited.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    environment = _environment()
    _bind()
    if os.getppid() != daemon:
        return  # it died before this process was bound to it
    try:
        leader = os.posix_spawn(
            command[0],
            command,
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)],
            setsid=True,
            setsigmask=mask,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them
        )
    except OSError as error:
        _tell("failed", error.errno or 0)
        return
    status = _status(leader)
    if status is not None:
        _tell("ended", status)
    _clear()


def _environment() -> dict[bytes, bytes]:
    """Give the environment that came with this process; Python may have put LC_CTYPE into its own (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        pairs = (pair.partition(b"=") for pair in file.read().split(b"\0") if pair)
        return {name: value for name, _, value in pairs}


def _bind() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in (
        (_PR_SET_CHILD_SUBREAPER, 1),
        (_PR_SET_PDEATHSIG, signal.SIGCONT),
        # So that the command cannot tell in the keeper's place, by /proc/<pid>/fd (proc(5)).
        (_PR_SET_DUMPABLE, 0),
    ):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _status(leader: int) -> int | None:
    """Reap what ends until the command itself does, and give its status; None when all is to end before."""
    while signal.sigwait((signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT)) == signal.SIGCHLD:
        # One signal may stand for several ends.
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            if found[0] == leader:
                return found[1]
    return None


def _clear() -> None:
    """Kill the children of this process, then the children they leave to it, until there are none.

    A child's number is its own until it is reaped, which only this process does: no other can be killed in its place.
    """
    told = False
    while True:
        killed = [_kill(int(pid)) for pid in _children()]
        if killed and not any(killed) and not told:
            _tell("left", len(killed))
            told = True
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return


def _children() -> list[bytes]:
    # See proc_pid_task_children(5). It leaves none out: no child is gone from it before this process reaps it.
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
        return file.read().split()


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except PermissionError:
        return False
    return True


def _tell(word: str, number: int) -> None:
    # Whoever would hear it may be dead.
    with suppress(BrokenPipeError):
        os.write(1, f"{word} {number}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
    os._exit(0)
