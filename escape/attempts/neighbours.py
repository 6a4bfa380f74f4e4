"""From one worker to another: its process, its credential, its files."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket

from escape.attempt import Attempt, Wall
from escape.attempts._making import Making, behind
from escape.inside import (
    World,
    call,
    do,
    each,
    every,
    files_work,
    read,
    sockets_work,
    stopped,
    the_door_opens,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SEIZE = 0x4206
_UNNOTICED = (0, signal.SIGURG, signal.SIGWINCH)
_NO_SIGNAL = 65  # the kernel sees that before it asks for any right
_UNMAPPED = 8
_SHM_STAT, _SHM_STAT_ANY = 13, 15
_MEETING = 0x53504C
_NOWAIT = 8
_FUTEX_WAKE = 1
_IN_ACCESS_OPEN = 0x21


def _neighbour(world: World) -> int:
    # Where layers are taken away there is no daemon, and no other worker: another process of its user stands for it.
    return world.neighbour_pid or world.victim_pid


def _kill(world: World) -> str:
    return each(
        "kill",
        [(_neighbour(world), number) for number in (_NO_SIGNAL, *_UNNOTICED)],
        "another worker was signalled",
    )


def _trace(world: World) -> str:
    return each(
        "ptrace", [(_SEIZE, pid, 0, 0) for pid in (-1, _neighbour(world))], "another worker is traced"
    )


def _memory(world: World) -> str:
    here = ctypes.create_string_buffer(8)
    local, remote = (ctypes.c_ulong * 2)(ctypes.addressof(here), 8), (ctypes.c_ulong * 2)(_UNMAPPED, 8)
    # Flags that there are none of are EINVAL, whoever is meant; EFAULT would say that the memory was within reach.
    lists = [(_neighbour(world), local, 1, remote, 1, flags) for flags in (1, 0)]
    return each("process_vm_readv", lists, "another worker's memory, its credential in it")


def _pidfd(world: World) -> str:
    descriptor = call("pidfd_open", _neighbour(world), 0)
    try:
        return each(
            "pidfd_getfd", [(descriptor, number, 0) for number in range(8)], "another worker's descriptor"
        )
    finally:
        os.close(descriptor)


def _limits(world: World) -> str:
    none = (ctypes.c_ulong * 2)()
    lists = [(_neighbour(world), 7, new, none) for new in (_UNMAPPED, None)]
    return each("prlimit64", lists, "another worker's limits")


def _affinity(world: World) -> str:
    where = (ctypes.c_ulong * 16)()
    call("sched_getaffinity", _neighbour(world), ctypes.sizeof(where), where)
    call("sched_setaffinity", _neighbour(world), ctypes.sizeof(where), where)
    return "it says where another worker runs"


def _proc(world: World) -> str:
    def look(name: str) -> Callable[[], str]:
        return lambda: repr(read(f"/proc/{_neighbour(world)}/{name}")[:60])

    return every(*map(look, ("status", "cmdline", "environ", "fd/0", "root/run", "net/unix")))


def _answers(world: World, bearer: str, requests: list[tuple[str, bytes]]) -> str:
    def ask(line: str, body: bytes) -> Callable[[], str]:
        def route() -> str:
            doors = type(world.doors)(world.socket, bearer)
            head = f"{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            try:
                doors._send(head.encode() + body)  # noqa: SLF001 - what a worker that means harm would do
                status, said = doors._answer()  # noqa: SLF001 - the same
            finally:
                doors.close()
            if 200 <= status < 300:
                return f"{line} was answered, {len(said)} bytes"
            stopped(f"{status} {json.loads(said).get('code')}")

        return route

    return every(*(ask(line, body) for line, body in requests))


def _own(world: World) -> str:
    return str(world.doors._credential)  # noqa: SLF001 - what a worker that means harm would do


def _other_run(world: World) -> str:
    thread = world.neighbour_thread
    paths = (f"/v1/worker/run/{thread}", f"/v1/runs/{thread}", f"/v1/records?thread={thread}")
    return _answers(world, _own(world), [(f"GET {path}", b"") for path in paths])


def _sockets(world: World) -> str:
    # By the names that the kernel gives to sockets which did not ask for one, and by those others may have agreed on.
    def meet(name: str) -> Callable[[], str]:
        def route() -> str:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as mine:
                do("connect", mine.connect, "\0" + name)
            return f"somebody answers to {name}"

        return route

    return every(
        *map(
            meet, (*(f"{number:05x}" for number in range(64)), "spl", world.neighbour_thread, world.abstract)
        )
    )


def _meeting(world: World) -> str:
    with socket.socket(socket.AF_UNIX) as mine:
        do("bind", mine.bind, f"\0{world.neighbour_thread}")
        do("listen", mine.listen, 1)
    return "a socket that others may know by its name"


def _segments(world: World) -> str:
    room = ctypes.create_string_buffer(256)
    lists = [(number, kind, room) for number in range(64) for kind in (_SHM_STAT, _SHM_STAT_ANY)]
    return every(
        lambda: each("shmctl", lists, "a segment that is not its own"),
        lambda: each("shmget", [(_MEETING, 4096, 0)], "a segment that others made"),
    )


def _page_cache(world: World) -> str:
    descriptor = os.open(world.python, os.O_RDONLY | os.O_CLOEXEC)
    seen = ctypes.create_string_buffer(4096)
    vector, span = (ctypes.c_ulong * 2)(ctypes.addressof(seen), 1), (ctypes.c_ulong * 2)(0, 4096)
    page = 0
    try:
        page = call("mmap", 0, 4096, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        return every(
            lambda: each("mincore", [(page, 4096, seen)], "what is cached"),
            lambda: each("preadv2", [(descriptor, vector, 1, 0, 0, _NOWAIT)], "what is cached"),
            lambda: each("cachestat", [(descriptor, span, seen, 0)], "what is cached"),
            lambda: each("fadvise64", [(descriptor, 0, 4096, 4)], "a page was dropped"),
            lambda: each("readahead", [(descriptor, 0, 4096)], "a page was read"),
        )
    finally:
        if page:
            call("munmap", page, 4096)
        os.close(descriptor)


def _shared_futex(world: World) -> str:
    descriptor = os.open(world.python, os.O_RDONLY | os.O_CLOEXEC)
    page = 0
    try:
        page = call("mmap", 0, 4096, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        call("futex", page, _FUTEX_WAKE, 1, None, None, 0)
        return "whoever waits on a page of a file that both are shown is woken"
    finally:
        if page:
            call("munmap", page, 4096)
        os.close(descriptor)


def _robust(world: World) -> str:
    descriptor = os.open(world.python, os.O_RDONLY | os.O_CLOEXEC)
    page = 0
    try:
        page = call("mmap", 0, 4096, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        # An empty list, and a lock that was being taken: at the task's end, or its execve, the kernel wakes who waits.
        head = (ctypes.c_ulong * 3)()
        head[0], head[2] = ctypes.addressof(head), page
        call("set_robust_list", head, ctypes.sizeof(head))
        call("set_robust_list", None, ctypes.sizeof(head))
        return "whoever waits on a page of a file that both are shown is woken at its end"
    finally:
        if page:
            call("munmap", page, 4096)
        os.close(descriptor)


def _watch(world: World) -> str:
    def watched() -> str:
        descriptor = call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            call("inotify_add_watch", descriptor, world.python, _IN_ACCESS_OPEN)
        finally:
            os.close(descriptor)
        return "it is told when somebody starts the interpreter"

    return every(lambda: each("inotify_add_watch", [(-1, "/", 1)], "a watch of nobody's"), watched)


def _take(world: World) -> str:
    with socket.socket(socket.AF_UNIX) as mine:
        do("connect", mine.connect, world.socket)
        do("recvmsg", mine.recvmsg, 16, 256, socket.MSG_DONTWAIT)
    return "a descriptor can come from another process"


_attempt = Making("neighbours", victims=["process"])
_on_process = Making("neighbours", victims=["process", "neighbour"])

_STEERED = "one member's work is steered, or ended, by another's"
_READ = "one member's work is read by another"
_CHANNEL = "two workers that may not know each other can talk past every record"

ATTEMPTS: tuple[Attempt, ...] = (
    _on_process(
        "kill", "signals another member's worker", _kill, _STEERED,
        *behind("EPERM at kill", "ESRCH at kill", "EINVAL at kill, EPERM at kill", "separate_user", "landlock"),
    ),
    _on_process(
        "trace", "traces another member's worker", _trace, _STEERED,
        *behind("EPERM at ptrace", "ESRCH at ptrace", "ESRCH at ptrace, EPERM at ptrace", "user_namespace"),
    ),
    _on_process(
        "memory", "reads another worker's memory", _memory, _READ,
        *behind(
            "EPERM at process_vm_readv", "EINVAL at process_vm_readv, ESRCH at process_vm_readv",
            "EINVAL at process_vm_readv, EPERM at process_vm_readv", "user_namespace",
        ),
    ),
    _on_process(
        "descriptors", "takes the descriptors of another worker, its connection among them", _pidfd, _READ,
        *behind("EPERM at pidfd_open", "ESRCH at pidfd_open", "EPERM at pidfd_getfd", "user_namespace"),
    ),
    _on_process(
        "limits", "reads the limits of another worker", _limits, _READ,
        *behind(
            "EPERM at prlimit64", "EFAULT at prlimit64, ESRCH at prlimit64", "EFAULT at prlimit64, EPERM at prlimit64",
            "separate_user",
        ),
    ),
    _on_process(
        "affinity", "says on which processors another worker runs", _affinity, _STEERED,
        *behind(
            "EPERM at sched_getaffinity", "ESRCH at sched_getaffinity", "EPERM at sched_setaffinity",
            "separate_user", hosted=["capabilities"],
        ),
    ),
    _on_process(
        "proc", "reads what /proc says of another worker", _proc, _READ, Wall("mounts", "ENOENT at open"),
    ),
    _attempt(
        "other_run", "asks the worker socket for another run and its records", _other_run, _READ,
        Wall("doors", "404 NOT_FOUND"), control=the_door_opens, doors=True,
    ),
    _attempt(
        "sockets", "looks for another worker at the names of sockets without a path", _sockets, _CHANNEL,
        Wall("network", "ECONNREFUSED at connect"),
        Wall("landlock", "ECONNREFUSED at connect, EPERM at connect"), control=sockets_work,
        cve="CVE-2022-42919",
    ),
    _attempt(
        "meeting", "gives a socket a name that another worker may know", _meeting, _CHANNEL,
        Wall("syscalls", "ENOSYS at bind"), control=sockets_work,
    ),
    _attempt(
        "segments", "looks for segments of memory that others made", _segments, _CHANNEL,
        Wall("syscalls", "EPERM at shmctl, EPERM at shmget"), Wall("ipc", "EINVAL at shmctl, ENOENT at shmget"),
    ),
    _attempt(
        "page_cache", "reads and writes in what is cached of a file that both are shown", _page_cache, _CHANNEL,
        Wall(
            "syscalls",
            "ENOSYS at mincore, ENOSYS at preadv2, ENOSYS at cachestat, ENOSYS at fadvise64, ENOSYS at readahead",
        ),
        control=files_work, cve="CVE-2019-5489",
    ),
    # The page is the same for everyone who is shown the file, whatever the uid and the namespaces: only a filter that
    # looks at the operation (FUTEX_PRIVATE_FLAG) stands in the way.
    _attempt(
        "futex", "wakes whoever waits on a page of a file that both are shown", _shared_futex, _CHANNEL,
        Wall("syscalls", "EPERM at futex"), control=files_work,
    ),
    _attempt(
        "robust", "has the kernel wake, at its end, whoever waits on a page of a file that both are shown", _robust,
        _CHANNEL, Wall("syscalls", "ENOSYS at set_robust_list"), control=files_work,
    ),
    _attempt(
        "watch", "watches a file that both are shown", _watch, _CHANNEL,
        Wall("syscalls", "ENOSYS at inotify_add_watch, ENOSYS at inotify_init1"), control=files_work,
    ),
    _attempt(
        "take", "takes descriptors that come over the worker socket", _take, _CHANNEL,
        Wall("syscalls", "ENOSYS at recvmsg"), control=the_door_opens, doors=True,
    ),
)  # fmt: skip
