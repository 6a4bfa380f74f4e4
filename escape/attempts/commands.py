"""Out by fcntl: what a command makes of a descriptor, for others as well."""

from __future__ import annotations

import os
import socket
import struct

from escape.attempt import Attempt, Wall
from escape.inside import (
    World,
    call,
    do,
    each,
    every,
    files_work,
    sockets_work,
    streams_work,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_HIGH = (1 << 32, 1 << 63, 0xFFFFFFFF << 32)
_PIPE = 65536  # as large as it is

# linux/fcntl.h: some are newer than Python's fcntl.
_DUPFD, _GETFD, _SETFL, _GETLK, _SETLK, _SETOWN, _SETSIG, _SETOWN_EX = 0, 1, 4, 5, 6, 8, 10, 15
_OFD_SETLK, _SETLEASE, _NOTIFY, _DUPFD_CLOEXEC, _SETPIPE_SZ, _ADD_SEALS = 37, 1024, 1026, 1030, 1031, 1033
_RDLCK, _OWNER_PROCESS = 0, 1
_FIOASYNC, _FIOSETOWN, _SIOCSPGRP = 0x5452, 0x8901, 0x8902
_LOCK_SH, _LOCK_EX, _LOCK_NB, _SIGURG = 1, 2, 4, 23


def _commands(world: World) -> str:
    """Give every command but the one that is allowed, with an argument that does nothing where it works."""
    numbers = [at for at in (*range(64), *range(1024, 1048), 0x7FFFFFFF) if at != _GETFD]

    def route(command: int) -> Callable[[], str]:
        def ask() -> str:
            got = call("fcntl", 1, command, _PIPE if command == _SETPIPE_SZ else 0)
            if command & 0xFFFF in (_DUPFD, _DUPFD_CLOEXEC):
                os.close(got)
            return f"command {command:#x}"

        return ask

    return every(*map(route, [*numbers, *(_GETFD | 1 << bit for bit in range(1, 32))]))


def _commands_high(world: World) -> str:
    wanted = (_SETFL, _GETLK, _SETLK, _SETOWN, _SETSIG, _SETLEASE, _NOTIFY, _SETPIPE_SZ, _ADD_SEALS)
    return each(
        "fcntl",
        [(1, high | command, _PIPE if command == _SETPIPE_SZ else 0) for high in _HIGH for command in wanted],
        "a command",
    )


def _owner(world: World) -> str:
    """Have the kernel send signals of a descriptor's to another process; none is sent, as nothing is made to."""
    targets = (world.victim_pid, -world.victim_pid, world.daemon_pid)
    with do("socket", socket.socket, socket.AF_UNIX) as carrier:
        at = carrier.fileno()
        # It ends with the socket.
        commands: list[tuple[int, int, int | bytes]]
        commands = [(at, high | _SETOWN, pid) for high in (0, *_HIGH) for pid in targets]
        commands += [(at, _SETOWN_EX, struct.pack("ii", _OWNER_PROCESS, abs(pid))) for pid in targets]
        requests = [
            (at, high | request, struct.pack("i", pid))
            for high in (0, *_HIGH)
            for request in (_FIOSETOWN, _SIOCSPGRP)
            for pid in targets
        ]
        return every(
            lambda: each("fcntl", commands, "an owner"),
            lambda: each("ioctl", requests, "an owner"),
        )


def _signal(world: World) -> str:
    # Without an owner there is nobody to be signalled: what works here is put back by the end of the socket.
    with do("socket", socket.socket, socket.AF_UNIX) as carrier:
        at = carrier.fileno()
        commands = [(at, high | _SETSIG, _SIGURG) for high in (0, *_HIGH)]
        requests = [(at, high | _FIOASYNC, bytes(4)) for high in (0, *_HIGH)]
        return every(
            lambda: each("fcntl", commands, "a signal of one's choice"),
            lambda: each("ioctl", requests, "signals when it is ready"),
        )


def _lock(world: World) -> str:
    """Hold up whoever else uses a file that is shown: by locks of three kinds, a lease and a watch."""
    whole = struct.pack("hhqqi4x", _RDLCK, 0, 0, 1, 0)
    at = do("open", os.open, world.python, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return every(
            lambda: each("fcntl", [(at, _SETLK, whole), (at, _OFD_SETLK, whole)], "a lock"),
            lambda: each("fcntl", [(at, _SETLEASE, _RDLCK), (at, _NOTIFY, 0)], "a lease, or a watch"),
            lambda: each("flock", [(at, kind | _LOCK_NB) for kind in (_LOCK_SH, _LOCK_EX)], "a lock"),
        )
    finally:
        os.close(at)


_BY_FILTER = Wall("syscalls", "EPERM at fcntl")

ATTEMPTS = (
    Attempt(
        "commands.every",
        "gives every command of fcntl but the one that asks whether a descriptor is open",
        _commands,
        control=streams_work,
        walls=[_BY_FILTER],
        escape="commands that aim signals, hold up files and take quotas are within reach",
    ),
    Attempt(
        "commands.high_bits",
        "gives commands with bits set that the kernel drops",
        _commands_high,
        control=streams_work,
        walls=[_BY_FILTER],
        escape="the filter compares another number than the kernel uses",
        cve="CVE-2019-7303",
    ),
    Attempt(
        "commands.owner",
        "makes other processes the owners of a descriptor's signals",
        _owner,
        control=sockets_work,
        walls=[
            Wall("syscalls", "EPERM at fcntl, EPERM at ioctl"),
            Wall("pid_namespace", "ESRCH at fcntl, ESRCH at ioctl", profile="strict"),
        ],
        escape="signals reach other processes without kill",
        victims=["process"],
    ),
    Attempt(
        "commands.signal",
        "chooses the signal that a descriptor sends",
        _signal,
        control=sockets_work,
        walls=[Wall("syscalls", "EPERM at fcntl, EPERM at ioctl")],
        escape="with an owner, any signal reaches another process",
        victims=["process"],
    ),
    Attempt(
        "commands.lock",
        "locks, leases and watches a file that is shown and others use",
        _lock,
        control=files_work,
        walls=[Wall("syscalls", "EPERM at fcntl, ENOSYS at flock")],
        escape="whoever opens or locks the host's file waits for the worker",
    ),
)
