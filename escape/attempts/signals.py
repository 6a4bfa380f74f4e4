"""Out by touching another process: signals in all their forms, waiting, locks that name an owner."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct

from escape.attempt import Attempt, Wall
from escape.attempts._making import Making, behind
from escape.inside import (
    Stopped,
    World,
    call,
    descriptors_work,
    do,
    each,
    every,
    memory_works,
    stopped,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# What a process that does not ask for them never notices; 65 is a signal to nobody, which the kernel sees first.
_UNNOTICED = (0, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
_NO_SIGNAL = 65
_SI_QUEUE, _SI_TKILL = -1, -6
_FUTEX_WAKE, _FUTEX_TRYLOCK_PI, _FUTEX_PRIVATE = 1, 8, 128
_P_PID, _WEXITED = 1, 4


def _both(world: World) -> tuple[int, int]:
    return world.victim_pid, world.daemon_pid


def _kill(world: World) -> str:
    lists = [*((world.victim_pid, number) for number in (_NO_SIGNAL, *_UNNOTICED)), (world.daemon_pid, 0)]
    return each("kill", lists, "another process was signalled")


def _group(world: World) -> str:
    return each(
        "kill",
        [(-world.daemon_pid, number) for number in (_NO_SIGNAL, 0)],
        "every process of the daemon's group can be signalled",
    )


def _everyone(world: World) -> str:
    # Signal 0 reaches nobody; were it another, every process of the user would have it.
    return each("kill", [(-1, 0)], "every process that may be signalled would be")


def _monitor(world: World) -> str:
    parent = os.getppid()
    if parent == 0:
        stopped("no parent to name")
    return each("kill", [(parent, _NO_SIGNAL), (parent, 0)], "its monitor can be signalled")


def _thread(world: World) -> str:
    def lists(name: str) -> str:
        before = (world.victim_pid,) if name == "tgkill" else ()
        aimed = [(*before, world.victim_pid, number) for number in (_NO_SIGNAL, *_UNNOTICED)]
        return each(name, aimed, "a thread of another process was signalled")

    return every(lambda: lists("tkill"), lambda: lists("tgkill"))


def _information(code: int, number: int) -> bytes:
    return struct.pack("iiiiii", number, 0, code, 0, os.getpid(), os.getuid()).ljust(128, b"\0")


def _sent(world: World, code: int) -> str:
    pid, number = world.victim_pid, signal.SIGWINCH
    said = _information(code, number)
    return every(
        lambda: each("rt_sigqueueinfo", [(pid, number, None), (pid, number, said)], "a signal was queued"),
        lambda: each(
            "rt_tgsigqueueinfo", [(pid, pid, number, None), (pid, pid, number, said)], "a signal was queued"
        ),
    )


def _queue(world: World) -> str:
    return _sent(world, _SI_QUEUE)


def _forged(world: World) -> str:
    return _sent(world, _SI_TKILL)


def _pidfd(world: World) -> str:
    def send(descriptor: int, number: int) -> str:
        call("pidfd_send_signal", descriptor, number, None, 0)
        return "another process was signalled"

    def aimed(pid: int, number: int) -> Callable[[], str]:
        def route() -> str:
            descriptor = call("pidfd_open", pid, 0)
            try:
                return send(descriptor, number)
            finally:
                os.close(descriptor)

        return route

    return every(lambda: send(-1, 0), aimed(world.victim_pid, signal.SIGWINCH), aimed(world.daemon_pid, 0))


def _watch(world: World) -> str:
    descriptor = call("pidfd_open", world.daemon_pid, 0)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll(0)
    os.close(descriptor)
    return "it learns when the daemon ends"


def _event(pid: int) -> bytes:
    # struct sigevent: SIGEV_THREAD_ID, which names the thread that is to be signalled.
    return struct.pack("qiii", 0, signal.SIGWINCH, 4, pid).ljust(64, b"\0")


def _timer(world: World) -> str:
    made = (ctypes.c_int * 1)()
    lists = [(0, _event(pid), made) for pid in _both(world)]
    return each("timer_create", lists, "a timer that signals another process")


def _queue_notice(world: World) -> str:
    def real() -> str:
        queue = call("mq_open", world.mqueue, os.O_RDONLY | os.O_NONBLOCK, 0, None)
        try:
            call("mq_notify", queue, struct.pack("qii", 0, signal.SIGWINCH, 0).ljust(64, b"\0"))
        finally:
            os.close(queue)
        return "whoever writes to the host's queue has a signal sent"

    return every(lambda: each("mq_notify", [(-1, None)], "a notice of nothing"), real)


def _join_group(world: World) -> str:
    lists = [(0, -1), (0, world.daemon_pid), (world.victim_pid, world.victim_pid)]
    return each("setpgid", lists, "it is in another process group")


def _wait(world: World) -> str:
    status = ctypes.create_string_buffer(128)
    return every(
        lambda: each("wait4", [(pid, None, os.WNOHANG, None) for pid in _both(world)], "a child"),
        lambda: each(
            "waitid", [(_P_PID, pid, status, _WEXITED | os.WNOHANG, None) for pid in _both(world)], "a child"
        ),
    )


def _wake(world: World) -> str:
    word = (ctypes.c_uint32 * 1)()
    if call("futex", word, _FUTEX_WAKE | _FUTEX_PRIVATE, 1, None, None, 0):
        return "somebody was woken"
    stopped("works: nobody else waits on its memory")


def _lock_owner(world: World) -> str:
    def lock(pid: int, private: int) -> str:
        # A lock that says whose it is: the kernel looks for that thread, to give it the waiter's priority.
        word = (ctypes.c_uint32 * 1)(pid)
        try:
            call("futex", word, _FUTEX_TRYLOCK_PI | private, 0, None, None, 0)
        except Stopped as end:
            return end.answer
        return "a lock"

    nobody = ""
    for private in (0, _FUTEX_PRIVATE):
        nobody = lock(0x3FFFFFFE, private)
        for pid in _both(world):
            if (found := lock(pid, private)) != nobody:
                return f"{pid} is somebody ({found}, not {nobody})"
    stopped(nobody)


def _oom(world: World) -> str:
    def aim(path: str) -> Callable[[], str]:
        def route() -> str:
            descriptor = do("open", os.open, path, os.O_RDWR | os.O_CLOEXEC)
            try:
                do("write", os.write, descriptor, os.read(descriptor, 16))
            finally:
                os.close(descriptor)
            return f"wrote {path}"

        return route

    return every(*(aim(f"/proc/{who}/oom_score_adj") for who in _both(world)))


_attempt = Making("signals", victims=["process"])

_ENDED = "any process of the user, the daemon among them, can be ended"
_QUEUE_REFUSED = ", ".join(
    f"{why} at {name}" for name in ("rt_sigqueueinfo", "rt_tgsigqueueinfo") for why in ("EFAULT", "EPERM")
)
_KNOWN = "other processes have names, and say something about themselves"


def _behind(refused: str, unseen: str, foreign: str) -> tuple[Wall, ...]:
    return behind(refused, unseen, foreign, "separate_user", "landlock")


ATTEMPTS: tuple[Attempt, ...] = (
    _attempt(
        "kill", "signals a process of the host's, and the daemon", _kill, _ENDED,
        *_behind("EPERM at kill", "ESRCH at kill", "EINVAL at kill, EPERM at kill"),
    ),
    _attempt(
        "group", "signals the daemon's whole process group", _group, _ENDED,
        *_behind("EPERM at kill", "ESRCH at kill", "EINVAL at kill, EPERM at kill"),
    ),
    # Without a namespace the kernel says that it went well even where it reached nobody: the filter must answer.
    _attempt(
        "everyone", "signals every process there is", _everyone, _ENDED,
        Wall("syscalls", "EPERM at kill"), Wall("pid_namespace", "ESRCH at kill"),
    ),
    _attempt(
        "monitor", "signals the monitor that is to end with it, which has its own uid", _monitor,
        "nobody sees its end any more",
        Wall("pid_namespace", "no parent to name"), Wall("syscalls", "EPERM at kill"),
        Wall("landlock", "EINVAL at kill, EPERM at kill"),
    ),
    _attempt(
        "thread", "signals a single thread of another process by tkill and tgkill", _thread, _ENDED,
        *_behind(
            "EPERM at tkill, EPERM at tgkill", "ESRCH at tkill, ESRCH at tgkill",
            "EINVAL at tkill, EPERM at tkill, EINVAL at tgkill, EPERM at tgkill",
        ),
    ),
    _attempt(
        "queue", "queues a signal that carries a value to another process", _queue, _ENDED,
        *_behind(
            "EPERM at rt_sigqueueinfo, EPERM at rt_tgsigqueueinfo",
            "EFAULT at rt_sigqueueinfo, ESRCH at rt_sigqueueinfo, EFAULT at rt_tgsigqueueinfo, "
            "ESRCH at rt_tgsigqueueinfo",
            _QUEUE_REFUSED,
        ),
    ),
    _attempt(
        "forged", "queues a signal that says the kernel sent it", _forged, "a forged signal is believed",
        Wall("syscalls", "EPERM at rt_sigqueueinfo, EPERM at rt_tgsigqueueinfo"),
        Wall("kernel", _QUEUE_REFUSED),
        cve="CVE-2011-1182",
    ),
    _attempt(
        "pidfd", "signals another process through a descriptor of it", _pidfd, _ENDED,
        *_behind(
            "EPERM at pidfd_send_signal, EPERM at pidfd_open", "EBADF at pidfd_send_signal, ESRCH at pidfd_open",
            "EBADF at pidfd_send_signal, EPERM at pidfd_send_signal",
        ),
    ),
    _attempt(
        "watch", "holds a descriptor of the daemon to learn of its end", _watch, _KNOWN,
        Wall("syscalls", "EPERM at pidfd_open"), Wall("pid_namespace", "ESRCH at pidfd_open"),
    ),
    _attempt(
        "timer", "makes a timer that signals a thread of another process", _timer, _ENDED,
        Wall("syscalls", "ENOSYS at timer_create"), Wall("kernel", "EINVAL at timer_create"),
    ),
    _attempt(
        "queue_notice", "has a signal sent when somebody writes to the host's message queue", _queue_notice,
        "it learns of the host's messages",
        Wall("syscalls", "ENOSYS at mq_notify, EPERM at mq_open"), Wall("ipc", "EBADF at mq_notify, ENOENT at mq_open"),
    ),
    _attempt(
        "join_group", "joins the daemon's process group, and moves the victim into another", _join_group, _ENDED,
        Wall("syscalls", "EPERM at setpgid"),
        # Who leads a session of its own stays in it.
        Wall("session", "EINVAL at setpgid, EPERM at setpgid, ESRCH at setpgid"),
    ),
    _attempt(
        "wait", "waits for processes that are not its children", _wait, _KNOWN,
        Wall("syscalls", "EPERM at wait4, EPERM at waitid"), Wall("kernel", "ECHILD at wait4, ECHILD at waitid"),
    ),
    _attempt(
        "wake", "wakes who waits on its own memory", _wake, "others can be woken",
        Wall("syscalls", "works: nobody else waits on its memory"),
        control=memory_works, allowed="libc aborts without futex, and nobody shares the memory",
    ),
    _attempt(
        "lock_owner", "says of a lock that another process holds it", _lock_owner, _KNOWN,
        Wall("syscalls", "EPERM at futex"), Wall("pid_namespace", "ESRCH at futex"),
        control=memory_works,
    ),
    _attempt(
        "oom", "has another process ended first when memory is short", _oom, _ENDED,
        Wall("mounts", "ENOENT at open"), Wall("separate_user", "EACCES at open"), Wall("landlock", "EACCES at open"),
        control=descriptors_work,
    ),
)  # fmt: skip
