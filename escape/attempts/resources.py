"""Out by taking what no limit of the process's counts: pages, pipes and timers, the processor, the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import socket

from escape.attempt import Attempt, Wall
from escape.attempts._refusing import same, steps
from escape.inside import (
    Stopped,
    World,
    call,
    calls_work,
    descriptors_work,
    do,
    each,
    every,
    files_work,
    memory_works,
    stopped,
)

_PAGE = 4096
_MIB = 1 << 20


# --- memory, and what is counted for the whole user ---


def _locked(world: World) -> str:
    page = mmap.mmap(-1, _PAGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return every(
        lambda: each("mlock", [(at, _PAGE)], "a page is kept in memory"),
        lambda: each("mlock2", [(at, _PAGE, 1)], "a page is kept in memory"),
        lambda: each("mlockall", [(4,), (-1,)], "all its pages are kept in memory"),
    )


def _uncounted(world: World) -> str:
    def file() -> str:
        os.close(call("memfd_create", "spl", 0))
        return "a file in memory"

    def segment() -> str:
        call("shmctl", call("shmget", 0, _PAGE, 0o1600), 0, None)
        return "a segment"

    return every(file, segment)


_COUNTERS = (
    ("eventfd2", (0, os.O_CLOEXEC)),
    ("epoll_create1", (os.O_CLOEXEC,)),
    ("inotify_init1", (os.O_CLOEXEC,)),
    ("timerfd_create", (1, os.O_CLOEXEC)),
    ("signalfd4", (-1, bytes(8), 8, os.O_CLOEXEC)),
)


def _pipes(world: World) -> str:
    ends = (ctypes.c_int * 2)()
    try:
        for _ in range(4):
            call("pipe2", ends, os.O_CLOEXEC)
            os.close(ends[0])
            os.close(ends[1])
    except Stopped:
        pair = (ctypes.c_int * 2)()
        return every(
            lambda: f"{call('pipe2', pair, os.O_CLOEXEC)}",
            lambda: f"{call('socketpair', socket.AF_UNIX, socket.SOCK_STREAM, 0, pair)}",
        )
    return "pipes, whose pages count towards the user's quota"


def _timers(world: World) -> str:
    made = ctypes.c_int * 1
    timer = made(0)

    def kernel() -> str:
        call("timer_create", 1, None, timer)
        call("timer_delete", timer[0])
        return "a timer, which counts towards the user's signals"

    return every(
        kernel,
        lambda: f"{call('setitimer', 0, None, None)}: an alarm",
        lambda: f"{call('alarm', 0)}: an alarm",
    )


# --- the processor, the disk, the queue for both ---


def _kept_alive(world: World) -> str:
    path = "/proc/self/oom_score_adj"
    descriptor = do("open", os.open, path, os.O_RDWR | os.O_CLOEXEC)
    try:
        do("write", os.write, descriptor, b"-1000")
    finally:
        os.close(descriptor)
    return "it is the last to be ended where memory ends"


# --- what is written to the daemon ---


def _flood(world: World) -> str:
    """Say a mebibyte on standard error, as long as somebody reads it."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    said = 0
    while said < _MIB:
        ready = poll.poll(200)
        if not ready or not ready[0][1] & select.POLLOUT:
            stopped("works: nobody reads any more")
        said += do("write", os.write, 2, b"x" * (_PAGE - 1) + b"\n")
    raise Stopped("works: it is read")


ATTEMPTS = (
    Attempt(
        "resources.locked_memory",
        "has its pages kept in memory for good",
        _locked,
        control=memory_works,
        walls=[same("syscalls", "mlock", "mlock2", "mlockall", errno="ENOSYS")],
        escape="memory that the host cannot take back",
    ),
    Attempt(
        "resources.uncounted_memory",
        "takes memory that no limit of a process counts",
        _uncounted,
        control=memory_works,
        walls=[Wall("syscalls", "EPERM at memfd_create, EPERM at shmget")],
        escape="the host's memory is full before its own limit is met",
    ),
    Attempt(
        "resources.counters",
        "makes counters, timers and watchers that are descriptors",
        lambda _: steps(_COUNTERS),
        control=descriptors_work,
        walls=[same("syscalls", *(name for name, _ in _COUNTERS), errno="ENOSYS")],
        escape="a user's other programs find none left",
    ),
    Attempt(
        "resources.pipes",
        "makes pipes, and sockets that are connected to each other",
        _pipes,
        control=descriptors_work,
        walls=[same("syscalls", "pipe2", "socketpair", errno="ENOSYS")],
        escape="the pages that a user's pipes may have are taken",
    ),
    Attempt(
        "resources.timers",
        "makes timers that send signals",
        _timers,
        control=calls_work,
        walls=[same("syscalls", "timer_create", "setitimer", "alarm", errno="ENOSYS")],
        escape="the signals that may wait for a user are taken",
    ),
    Attempt(
        "resources.kept_alive",
        "has itself spared where the host runs out of memory",
        _kept_alive,
        control=files_work,
        walls=[Wall("mounts", "ENOENT at open"), Wall("landlock", "EACCES at open")],
        escape="the host's other programs are ended in its place",
    ),
    Attempt(
        "resources.standard_error",
        "says a mebibyte on standard error, of which the daemon keeps the last few kilobytes",
        _flood,
        control=calls_work,
        alone=True,
        walls=[Wall("kernel", "works: it is read")],
        escape="the daemon's memory is full",
        allowed="what a worker says when it fails is read; what is kept of it is bounded by the daemon",
    ),
)
