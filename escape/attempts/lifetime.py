"""Out by outliving: the run, the stop, the daemon."""

from __future__ import annotations

import _thread
import ctypes
import os
import signal

from escape.attempt import Attempt, Wall
from escape.attempts._making import Making
from escape.inside import Stopped, World, call, do, each, every, pause, reap, stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SET_DEATH_SIGNAL, _GET_DEATH_SIGNAL = 1, 2
_SET_SUBREAPER = 36
_CLONE_PARENT, _CLONE_THREAD = 0x8000, 0x10000
_SIG_BLOCK, _SIG_SETMASK = 0, 2


def _death_signal(world: World) -> str:
    number = (ctypes.c_int * 1)()
    call("prctl", _GET_DEATH_SIGNAL, number, 0, 0, 0)
    if number[0] == signal.SIGKILL:
        stopped("SIGKILL when its parent ends")
    return f"signal {number[0]} when its parent ends, which is no end"


def _clear(world: World) -> str:
    call("prctl", _SET_DEATH_SIGNAL, 0, 0, 0, 0)
    call("prctl", _SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    return "it goes on when the daemon has ended"


def _double_fork(world: World) -> str:
    child = do("fork", os.fork)
    if child == 0:
        # From here on nobody's death is the grandchild's: it would live as long as it liked.
        try:
            if os.fork() == 0:
                os.setsid()
        finally:
            os._exit(0)
    reap(child)
    return "a grandchild in a session of its own outlives the run"


def _clones(world: World) -> str:
    def made(step: str, *arguments: int) -> Callable[[], str]:
        def route() -> str:
            child = call(step, *arguments)
            if child == 0:
                os._exit(0)
            return "a child" if reap(child) else "a sibling, which its parent knows nothing of"

        return route

    return every(
        made("clone", signal.SIGCHLD, 0, 0, 0, 0),
        made("clone", _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0),
        made("clone", 0, 0, 0, 0, 0),
        *([made("fork")] if world.machine == "x86_64" else []),
    )


def _program(world: World, path: str) -> int:
    words = (ctypes.c_char_p * 6)(*(word.encode() for word in (path, "-I", "-S", "-c", "pass")), None)
    return call("execve", path, words, (ctypes.c_char_p * 1)())


def _thread_and_execute(world: World) -> str:
    ends: list[str] = []

    def execute() -> None:
        # The new program has the second task's death signal: none.
        try:
            _program(world, world.python)
        except Stopped as end:
            ends.append(end.answer)

    def second() -> str:
        try:
            _thread.start_new_thread(execute, ())
        except RuntimeError:
            stopped("no second task")
        for _ in range(100):
            if ends:
                stopped(ends[0])
            pause(10)
        return "a second task"

    # A task that shares signals with nobody is EINVAL to the kernel: with EPERM, it was the filter.
    return every(lambda: each("clone", [(_CLONE_THREAD, 0, 0, 0, 0)], "a task"), second)


def _execute_again(world: World) -> str:
    _program(world, world.python)
    return "it starts from the beginning"


def _ignore(world: World) -> str:
    def ignore(number: int) -> Callable[[], str]:
        def route() -> str:
            do("sigaction", signal.signal, number, signal.SIG_IGN)
            return f"signal {number} does nothing any more"

        return route

    return every(ignore(signal.SIGKILL), ignore(signal.SIGSTOP))


def _block(world: World) -> str:
    every_signal, before = (ctypes.c_uint64 * 1)(2**64 - 1), (ctypes.c_uint64 * 1)()
    call("rt_sigprocmask", _SIG_BLOCK, every_signal, before, 8)
    now = (ctypes.c_uint64 * 1)()
    call("rt_sigprocmask", _SIG_SETMASK, before, now, 8)
    if now[0] >> signal.SIGKILL - 1 & 1:
        return "SIGKILL is blocked"
    stopped("all but SIGKILL at rt_sigprocmask")


def _session(world: World) -> str:
    return every(
        lambda: each("setpgid", [(0, -1)], "a group of nothing"),
        lambda: each("setsid", [()], "a session that is not the run's"),
    )


def _subreaper(world: World) -> str:
    call("prctl", _SET_SUBREAPER, 1, 0, 0, 0)
    call("prctl", _SET_SUBREAPER, 0, 0, 0, 0)
    return "orphans are its children, and nobody else's"


_attempt = Making("lifetime", victims=["process"])

_OUTLIVES = "it goes on when its run, or its daemon, has ended"

ATTEMPTS: tuple[Attempt, ...] = (
    _attempt(
        "death_signal", "looks at what happens to it when its parent ends", _death_signal, _OUTLIVES,
        Wall("parent_death", "SIGKILL when its parent ends"),
    ),
    _attempt(
        "clear", "clears the signal that it gets when its parent ends", _clear, _OUTLIVES,
        Wall("syscalls", "EPERM at prctl"),
    ),
    _attempt(
        "double_fork", "leaves a grandchild behind in a session of its own", _double_fork, _OUTLIVES,
        Wall("syscalls", "EPERM at fork"), Wall("limits", "EAGAIN at fork", shape="hosted"),
    ),
    _attempt(
        "clones", "makes children, siblings and children that end unseen", _clones, _OUTLIVES,
        Wall("syscalls", "EPERM at clone, EPERM at fork", "EPERM at clone"),
        # Who is process 1 of a namespace can have no siblings in it (EINVAL).
        Wall("limits", "EAGAIN at clone, EAGAIN at fork", "EAGAIN at clone", shape="hosted", profile="worker"),
        Wall("limits", "EAGAIN at clone, EINVAL at clone, EAGAIN at fork", shape="hosted", profile="strict"),
    ),
    _attempt(
        "thread_and_execute", "starts a second task that becomes the process, without the death signal",
        _thread_and_execute, _OUTLIVES,
        Wall("syscalls", "EPERM at clone, no second task"),
        Wall("limits", "EINVAL at clone, no second task", shape="hosted"),
        Wall("landlock", "EINVAL at clone, EACCES at execve"),
        alone=True,
    ),
    _attempt(
        "execute_again", "starts itself again, as a program that was not looked at", _execute_again, _OUTLIVES,
        Wall("landlock", "EACCES at execve"),
        alone=True,
    ),
    _attempt(
        "ignore", "ignores the signals that end and stop it", _ignore, _OUTLIVES,
        Wall("kernel", "EINVAL at sigaction"),
    ),
    _attempt(
        "block", "blocks every signal", _block, _OUTLIVES,
        Wall("syscalls", "ENOSYS at rt_sigprocmask"), Wall("kernel", "all but SIGKILL at rt_sigprocmask"),
    ),
    # The kernel says EPERM as well to who leads a session: the group of nothing, EINVAL to it, tells them apart.
    _attempt(
        "session", "leaves its session, by which it is known", _session, _OUTLIVES,
        Wall("syscalls", "EPERM at setpgid, EPERM at setsid"), Wall("session", "EINVAL at setpgid, EPERM at setsid"),
    ),
    _attempt(
        "subreaper", "adopts orphans in the daemon's place", _subreaper, "what it leaves behind is nobody's to end",
        Wall("syscalls", "EPERM at prctl"),
    ),
)  # fmt: skip
