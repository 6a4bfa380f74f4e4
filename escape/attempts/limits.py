"""Out by taking everything: each limit of the process's, read, raised and reached."""

from __future__ import annotations

import _thread
import ctypes
import mmap
import os
import resource
import socket
import time
from contextlib import suppress

from escape.attempt import Attempt, Wall
from escape.attempts._making import behind
from escape.inside import (
    World,
    call,
    calls_work,
    descriptors_work,
    do,
    each,
    every,
    files_work,
    memory_works,
    reap,
    sockets_work,
    stopped,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from escape.attempt import Chain

_PAGE = 4096
_MIB = 1 << 20
_UNSEEN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE: mapped, never touched
_TOO_MANY = 16
"""How far past a limit an attempt goes on, before it is called unlimited."""
_LONGEST = 8.0
"""Seconds for which it takes the processor, if nothing ends it."""


# --- as the profile says, and no higher ---


def _limit(world: World, name: str) -> tuple[int, int]:
    pair = (ctypes.c_uint64 * 2)()
    call("prlimit64", 0, getattr(resource, name), None, pair)
    return pair[0], pair[1]


def _raised(name: str) -> Chain:
    def chain(world: World) -> str:
        soft, hard = _limit(world, name)
        if max(soft, hard) > world.limits[name]:
            return f"{name} is {soft} and {hard}, more than {world.limits[name]}"
        call("prlimit64", 0, getattr(resource, name), (ctypes.c_uint64 * 2)(hard + 1, hard + 1), None)
        return f"{name} was raised"

    return chain


def _by_setrlimit(world: World) -> str:
    said = world.limits["RLIMIT_NOFILE"]
    call("setrlimit", resource.RLIMIT_NOFILE, (ctypes.c_uint64 * 2)(said + 1, said + 1))
    return "RLIMIT_NOFILE was raised"


def _of_another(world: World) -> str:
    def one(pid: int) -> Callable[[], str]:
        def route() -> str:
            pair = (ctypes.c_uint64 * 2)()
            call("prlimit64", pid, resource.RLIMIT_NOFILE, None, pair)
            if pid == world.victim_pid:
                pair[0] -= 1  # the victim does without
                call("prlimit64", pid, resource.RLIMIT_NOFILE, pair, None)
            return "another process's limit was read, or set"

        return route

    # New limits at an address that cannot be read come before any right is asked for.
    unread = [(world.victim_pid, resource.RLIMIT_NOFILE, 8, None)]
    return every(
        lambda: each("prlimit64", unread, "limits of nothing"), one(world.victim_pid), one(world.daemon_pid)
    )


# --- addresses ---


def _mapped(world: World) -> str:
    limit = world.limits["RLIMIT_AS"]
    places: list[int] = []
    try:
        while len(places) * _MIB <= limit:
            places.append(call("mmap", 0, _MIB, mmap.PROT_READ | mmap.PROT_WRITE, _UNSEEN, -1, 0))
    finally:
        for at in places:
            call("munmap", at, _MIB)
    return f"{len(places)} MiB were mapped"


def _mapped_at_once(world: World) -> str:
    size = world.limits["RLIMIT_AS"]
    shared = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x4000

    def route(protection: int, flags: int) -> Callable[[], str]:
        def at_once() -> str:
            call("munmap", call("mmap", 0, size, protection, flags, -1, 0), size)
            return f"{size >> 20} MiB were mapped"

        return at_once

    # Unreadable, shared, and growing downwards as a stack does (MAP_GROWSDOWN | MAP_STACK)
    both = mmap.PROT_READ | mmap.PROT_WRITE
    return every(route(0, _UNSEEN), route(both, shared), route(both, _UNSEEN | 0x20100))


def _mapped_file(world: World) -> str:
    """Map a file far past its end: it takes addresses, and memory for their tables."""
    size = world.limits["RLIMIT_AS"]
    descriptor = do("open", os.open, world.python, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call("munmap", call("mmap", 0, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0), size)
    finally:
        os.close(descriptor)
    return f"{size >> 20} MiB of a file were mapped"


def _grown(world: World) -> str:
    size = world.limits["RLIMIT_AS"]
    old = call("mmap", 0, _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, _UNSEEN, -1, 0)
    now = _PAGE
    try:
        old = call("mremap", old, _PAGE, size, 1, 0)
        now = size
    finally:
        call("munmap", old, now)
    return f"a page grew to {size >> 20} MiB"


def _broken(world: World) -> str:
    now = call("brk", 0)
    wanted = now + world.limits["RLIMIT_AS"]
    if call("brk", wanted) < wanted:
        stopped("the break stays")
    call("brk", now)
    return "the heap grew past the limit"


# --- descriptors, and what the kernel keeps for each ---


def _until_refused(world: World, one: Callable[[], int]) -> str:
    limit = world.limits["RLIMIT_NOFILE"]
    opened: list[int] = []
    try:
        while len(opened) <= limit:
            opened.append(one())
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return f"{len(opened)} descriptors were open at once"


def _files(world: World) -> str:
    return _until_refused(world, lambda: do("open", os.open, world.python, os.O_RDONLY | os.O_CLOEXEC))


def _sockets(world: World) -> str:
    return _until_refused(
        world, lambda: call("socket", socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, 0)
    )


def _rulesets(world: World) -> str:
    attributes = (ctypes.c_uint64 * 1)(1)
    return _until_refused(world, lambda: call("landlock_create_ruleset", attributes, 8, 0))


# --- tasks ---


def _forked(world: World) -> str:
    """Fork until it is refused, by the old call and by libc; children end at once, and count until waited for."""
    limit = world.limits["RLIMIT_NPROC"] + _TOO_MANY

    def until_refused(one: Callable[[], int]) -> str:
        children: list[int] = []
        try:
            while len(children) < limit:
                child = one()
                if child == 0:
                    os._exit(0)
                children.append(child)
        finally:
            for child in children:
                reap(child)
        return f"{len(children)} processes beside it"

    return every(
        lambda: until_refused(lambda: call("fork")),
        lambda: until_refused(lambda: do("clone", os.fork)),
    )


def _threads(world: World) -> str:
    def flags() -> str:
        # Threads without shared memory, which there are not: unfiltered, the kernel says EINVAL and makes none.
        return f"{call('clone', 0x10000, 0, None, None, 0)}"

    def threads() -> str:
        gate = _thread.allocate_lock()
        gate.acquire()
        try:
            for _ in range(world.limits["RLIMIT_NPROC"] + 1):
                _thread.start_new_thread(gate.acquire, (True, 0.2))
        except RuntimeError:
            stopped("no thread")
        return "tasks beside its own"

    return every(flags, threads)


# --- what is written ---


def _file_size(world: World) -> str:
    limit = world.limits["RLIMIT_FSIZE"]
    descriptor = do("open", os.open, f"{world.host_folder}/notes", os.O_RDWR | os.O_CLOEXEC)
    try:
        was = os.lseek(descriptor, 0, os.SEEK_END)
        os.lseek(descriptor, limit, os.SEEK_SET)  # what lies between is a hole, which takes no place
        do("write", os.write, descriptor, b"1")
        with suppress(OSError):
            os.ftruncate(descriptor, was)
    finally:
        os.close(descriptor)
    return f"a file of the host's has more than {limit} bytes"


# --- how it ends ---


def _cpu_time_spent(world: World) -> str:
    """Lower its limit to one second, and take that: it ends as by the profile's own, which nobody would wait for."""
    # What it has spent so far, far less than that, cannot be asked for: no clock that is allowed counts it.
    call("prlimit64", 0, resource.RLIMIT_CPU, (ctypes.c_uint64 * 2)(1, 1), None)
    end = time.monotonic() + _LONGEST
    while time.monotonic() < end:
        pass
    return "the processor is its own for as long as it likes"


def _crash(world: World) -> str:
    ctypes.memset(0, 0, 1)
    return "memory at address 0 was written"


_RAISED = (
    ("RLIMIT_AS", "address_space", "the host's memory is its own"),
    ("RLIMIT_FSIZE", "file_size", "a file may grow until the disk is full"),
    ("RLIMIT_NPROC", "processes", "as many processes as the host has numbers for"),
    ("RLIMIT_NOFILE", "open_files", "as many descriptors, and what the kernel keeps for each"),
    ("RLIMIT_CPU", "cpu_time", "the processor is its own for ever"),
    ("RLIMIT_CORE", "core", "its memory, its credential in it, is written to the host's disk"),
)

ATTEMPTS = (
    *(
        Attempt(
            f"limits.raise_{name}",
            f"raises its limit {limit}, having looked that it has one",
            _raised(limit),
            control=calls_work,
            walls=[Wall("limits", "EPERM at prlimit64")],
            escape=escape,
        )
        for limit, name, escape in _RAISED
    ),
    Attempt(
        "limits.setrlimit",
        "raises a limit by the call that came before prlimit64",
        _by_setrlimit,
        control=calls_work,
        walls=[Wall("syscalls", "ENOSYS at setrlimit"), Wall("limits", "EPERM at setrlimit")],
        escape="no limit holds",
    ),
    Attempt(
        "limits.of_another",
        "reads and sets a limit of another process's, and reads the daemon's",
        _of_another,
        control=calls_work,
        walls=behind(
            "EPERM at prlimit64",
            "EFAULT at prlimit64, ESRCH at prlimit64",
            "EFAULT at prlimit64, EPERM at prlimit64",
            "separate_user",
        ),
        escape="other processes of its user can be stopped from opening anything",
        victims=["process"],
    ),
    Attempt(
        "limits.address_space",
        "maps memory, piece by piece, until there is no more",
        _mapped,
        control=memory_works,
        walls=[Wall("limits", "ENOMEM at mmap")],
        escape="the host's memory is its own",
    ),
    Attempt(
        "limits.address_space_at_once",
        "maps memory of every kind, as much at once as the limit allows in all",
        _mapped_at_once,
        control=memory_works,
        walls=[Wall("limits", "ENOMEM at mmap")],
        escape="memory of one kind is not counted",
    ),
    Attempt(
        "limits.mapped_file",
        "maps a file far past its end",
        _mapped_file,
        control=files_work,
        walls=[Wall("limits", "ENOMEM at mmap")],
        escape="the tables of its addresses fill the host's memory",
    ),
    Attempt(
        "limits.grown_mapping",
        "has a page that it has grow past the limit",
        _grown,
        control=memory_works,
        walls=[Wall("limits", "ENOMEM at mremap")],
        escape="the host's memory is its own",
    ),
    Attempt(
        "limits.heap",
        "moves the end of its heap past the limit",
        _broken,
        control=memory_works,
        walls=[Wall("limits", "the break stays")],
        escape="the host's memory is its own",
    ),
    Attempt(
        "limits.open_files",
        "opens a file until it may not",
        _files,
        control=descriptors_work,
        walls=[Wall("limits", "EMFILE at open")],
        escape="the host's table of files is full",
    ),
    Attempt(
        "limits.sockets",
        "makes sockets until it may not: what each holds in the kernel is bounded by how many there are",
        _sockets,
        control=sockets_work,
        walls=[Wall("limits", "EMFILE at socket")],
        escape="the kernel's memory is full of buffers",
    ),
    Attempt(
        "limits.rulesets",
        "makes Landlock's rulesets until it may not",
        _rulesets,
        control=descriptors_work,
        walls=[Wall("limits", "EMFILE at landlock_create_ruleset")],
        escape="the kernel's memory is full of rules",
        lacking={
            "ENOSYS at landlock_create_ruleset": "this kernel has no Landlock",
            "EOPNOTSUPP at landlock_create_ruleset": "Landlock is switched off here",
        },
    ),
    Attempt(
        "limits.processes",
        "forks until it may not",
        _forked,
        control=calls_work,
        # In the same-user shape the limit counts the processes of its user namespace: there is but this one.
        # Only x86_64 has fork itself.
        walls=[
            Wall("syscalls", "EPERM at fork, EPERM at clone", "no number at fork, EPERM at clone"),
            Wall("limits", "EAGAIN at fork, EAGAIN at clone", "no number at fork, EAGAIN at clone"),
        ],
        escape="what it leaves outlives it, and the host has no number left",
    ),
    Attempt(
        "limits.threads",
        "starts threads until it may not",
        _threads,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at clone, no thread"), Wall("limits", "EINVAL at clone, no thread")],
        escape="a second task can become the process, without the death-of-parent signal",
    ),
    Attempt(
        "limits.file_size",
        "writes a file of the host's that is larger than its limit",
        _file_size,
        control=files_work,
        walls=[
            Wall("mounts", "ENOENT at open"),
            Wall("landlock", "EACCES at open"),
            Wall("limits", "EFBIG at write"),
        ],
        escape="the host's disk is full",
        victims=["files"],
    ),
    Attempt(
        "limits.cpu_time_spent",
        "takes the processor until it may not",
        _cpu_time_spent,
        control=calls_work,
        alone=True,
        walls=[Wall("limits", "killed by SIGKILL")],
        escape="the processor is its own for ever",
    ),
    Attempt(
        "limits.crash",
        "crashes, so that its memory would be written to a file",
        _crash,
        control=memory_works,
        alone=True,
        walls=[Wall("limits", "killed by SIGSEGV")],
        escape="its memory, its credential in it, is on the host's disk",
        victims=["files"],
    ),
)
