"""Out by what was forgotten: every value of an argument, every call, every number that no call has."""

from __future__ import annotations

import ctypes
import os
import socket

from escape.attempt import Attempt, Wall
from escape.attempts._refusing import NOWHERE, answer, same, steps
from escape.inside import (
    Stopped,
    World,
    calls_work,
    descriptors_work,
    do,
    every,
    memory_works,
    numbered,
    sockets_work,
    stopped,
)
from escape.numbers import NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TEXT = ctypes.create_string_buffer(4096)
_WORD = (ctypes.c_uint32 * 2)()
_HIGH_HALVES = (1 << 32, 1 << 63, -1 << 32)


# --- every value of an argument ---

_SOME_PRCTL = (0x53564D41, 0x59616D61, 0x41555856, 1000, 0x7FFFFFFF)
_ALLOWED_PRCTL = (2, 23, 39)
_KEPT = {29: 0, 36: 0, 0x59616D61: 0}
"""Options that take any argument, with one that changes nothing: the default slack, no subreaper, no tracer."""


def _prctl(world: World) -> str:
    options = [option for option in (*range(81), *_SOME_PRCTL) if option not in _ALLOWED_PRCTL]
    return steps(("prctl", (option, _KEPT.get(option, -1), -1, -1, -1)) for option in options)


# The operations there are and some that are not, shared and private, by either clock.
_SOME_FUTEX = tuple(operation | bits for operation in range(16) for bits in range(0, 1024, 128))
_ALLOWED_FUTEX = (128, 129, 137)


def _futex(world: World) -> str:
    # On no word: unfiltered, the kernel says EINVAL, ENOSYS or EFAULT to each, and nobody waits.
    return steps(
        ("futex", (NOWHERE, each, 0, None, None, 0)) for each in _SOME_FUTEX if each not in _ALLOWED_FUTEX
    )


_ALLOWED_CLOCKS = (0, 1, 7)


def _clocks(world: World) -> str:
    # Those with a name, and those that a pid (0 is its own) or a descriptor is part of.
    numbered_so = (~held << 3 | kind for held in (*range(8), world.victim_pid) for kind in range(8))
    clocks = (*range(32), *numbered_so)
    return steps(("clock_gettime", (clock, None)) for clock in clocks if clock not in _ALLOWED_CLOCKS)


def _flags(world: World) -> str:
    # On no descriptor: unfiltered, the kernel says EBADF to each.
    flags = [1 << bit for bit in range(32)]
    sent = (("sendto", (-1, None, 0, each, None, 0)) for each in flags)
    received = (("recvfrom", (-1, None, 0, each, None, None)) for each in flags)
    return every(lambda: steps(sent), lambda: steps(received))


_SOME_IOCTL = (
    *range(0x5400, 0x5500),  # terminals and sockets
    *range(0x8900, 0x8A00),  # networks
    *range(0x4B00, 0x4B80),  # consoles
    *range(0x5600, 0x5620),  # virtual terminals
    *range(0x4C00, 0x4C10),  # loop devices
    *range(0x1260, 0x1290),  # disks
    *(0xB701, 0xB702, 0xB703, 0xB704),  # namespaces
    *(0xAE00, 0xAE01, 0xAE41, 0xAE80),  # virtual machines
    *(0x400454CA, 0x800454D2),  # tunnels
    *(
        0x40086602,
        0x80086601,
        0x40049409,
        0xC020660B,
        0xC0045877,
        0x401C5820,
    ),  # files: flags, clones, extents
    *(0xC018AA3F, 0x8010AA00),  # userfaultfd
    *(0x40042406, 0x2400),  # counters
    *(0x80045430, 0x5441, 0x40045431),  # the other end of a terminal
)


def _ioctl(world: World) -> str:
    return steps(
        ("ioctl", (NOWHERE, request, None)) for request in _SOME_IOCTL if request not in (0x5401, 0x5451)
    )


def _terminal_ioctl(world: World) -> str:
    byte = ctypes.create_string_buffer(b"\x07", 64)
    # TIOCSTI, TIOCLINUX, TIOCSCTTY, TIOCCONS, TIOCSETD, TIOCSPGRP, TIOCNOTTY, TIOCGWINSZ, TIOCGPGRP, TIOCGSID
    requests = (0x5412, 0x541C, 0x540E, 0x541D, 0x5423, 0x5410, 0x5422, 0x5413, 0x540F, 0x5429)
    return steps(
        ("ioctl", (at, request, byte)) for at in range(world.limits["RLIMIT_NOFILE"]) for request in requests
    )


def _high_bits(world: World) -> str:
    """Try values whose low half is allowed, or refused, with something in the half that the kernel drops."""
    here = do("open", os.open, world.python, os.O_RDONLY | os.O_CLOEXEC)
    now = (ctypes.c_uint64 * 2)()
    # The call, the argument, its value that is allowed, those that are not, and the others.
    conditions = (
        ("prctl", 0, 39, (38, 22, 4, 15, 36), (0, 0, 0, 0, 0)),
        ("futex", 1, 129, (1, 8, 12, 136, 256), (_WORD, 0, 0, None, None, 0)),
        ("clock_gettime", 0, 1, (2, 3, 8, ~os.getpid() << 3 & 0xFFFFFFFF | 2), (0, now)),
        ("fcntl", 1, 1, (0, 3, 8, 1030), (here, 0, 0)),
        ("ioctl", 1, 0x5401, (0x5412, 0x541C, 0x541B), (here, 0, _TEXT)),
        ("socket", 0, 1, (2, 10, 16), (0, 1, 0)),
        ("prlimit64", 0, 0, (world.victim_pid, os.getppid() or 1 << 22), (0, 7, None, now)),
        ("landlock_add_rule", 1, 1, (2, 0, 3), (-1, 0, None, 0)),
        ("sendto", 3, 0, (1, 0x40, 0x4000000), (-1, None, 0, 0, None, 0)),
        ("recvfrom", 3, 0, (1, 2, 0x2000), (-1, None, 0, 0, None, None)),
    )
    try:
        for name, at, allowed, others, arguments in conditions:
            plain = _said(name, at, allowed, arguments)
            for half in _HIGH_HALVES:
                if (said := _said(name, at, allowed | half, arguments)) != plain:
                    stopped(
                        f"{name} answers {said} to {allowed | half:#x}, and {plain} without its high half"
                    )
                for other in others:
                    if (said := _said(name, at, other | half, arguments)) != "EPERM":
                        return f"{name} answers {said} to {other | half:#x}"
    finally:
        os.close(here)
    raise Stopped("the high half changes nothing")


def _said(name: str, at: int, value: int, arguments: tuple[Any, ...]) -> str:
    words = list(arguments)
    words[at] = value
    return answer(NUMBERS[name], words, name)


# --- every call ---

ALIKE = {
    "CAP_SYS_MODULE is asked for first": ("init_module", "finit_module", "delete_module"),
    "CAP_SYS_ADMIN, or another capability, is asked for first": (
        *("pivot_root", "move_mount", "fsopen", "fsmount", "fspick", "sethostname", "setdomainname"),
        *("reboot", "swapoff", "acct", "vhangup", "setgroups", "kexec_load", "kexec_file_load"),
    ),
    "it leads a session already": ("setsid",),
    "the kernel's log may be for the privileged": ("syslog",),
    "no kernel has it any more, or none that is built without it": (
        *("_sysctl", "create_module", "get_kernel_syms", "query_module", "getpmsg", "putpmsg", "afs_syscall"),
        *("tuxcall", "security", "epoll_ctl_old", "epoll_wait_old", "vserver", "set_thread_area"),
        *("get_thread_area", "map_shadow_stack", "rseq_slice_yield", "listns"),
    ),
}
"""Calls that an unfiltered kernel may answer as the filter does, whatever they are given, with why."""

NOT_SWEPT = {
    "exit": "ends the process",
    "sync": "has every disk of the host write",
    "pause": "never returns",
    "fork": "makes a second process, as `limits.processes` does",
    "vfork": "makes a second process on the same stack",
    "uprobe": "is let past every filter, see uretprobe",
    "uretprobe": "is let past every filter, and kills whoever calls it from elsewhere than a trampoline",
}
"""Calls that the sweep leaves out: without a filter they would do something whatever they are given, with what."""

_TELLING: dict[str, tuple[Any, ...]] = {
    "alarm": (0,),
    "eventfd": (0,),
    "kill": (0, -1),  # no such signal, and to none but its own group
    "msgget": (0x5B1E5B1E, 0),  # of a key that nobody has; -1 would make one
    "syslog": (10, None, 0),
    "umask": (0o77,),  # put back
}
"""What is given to calls to which six times -1 would do something, or nothing that tells the kernel from the filter."""


def _sweep(world: World) -> str:
    wrong: dict[str, list[str]] = {}
    names = {number: name for name, number in NUMBERS.items()}
    for number in range(601):
        name = names.get(number, "")
        if name in NOT_SWEPT or (name and name not in world.refused):
            continue  # what is allowed, or allowed on a condition, has attempts of its own
        said, must = answer(number, _TELLING.get(name, (-1,) * 6), name), world.refused.get(name, "ENOSYS")
        if said != must:
            wrong.setdefault(f"{said}, not {must}", []).append(name or str(number))
    if wrong:
        stopped("; ".join(f"{how}: {' '.join(calls)}" for how, calls in wrong.items()))
    stopped("as the profile says, call by call")


def _beyond(world: World) -> str:
    numbers = (*range(601, 1100), 4095, 4096, 65535, 1 << 20, (1 << 30) - 1)
    return every(
        *(lambda at=at: f"{numbered(at, *(-1,) * 6, step='a number that no call has')}" for at in numbers)
    )


def _number_high_half(world: World) -> str:
    """Put something into the half of a call's number that the kernel drops, and that a filter need not see."""
    steps = (
        ("kill", (0, -1)),
        ("ptrace", (-1, -1, 0, 0)),
        ("mount", (None, None, None, 0, None)),
        ("socket", (socket.AF_INET, socket.SOCK_STREAM, 0)),
        ("keyctl", (-1, 0, 0)),
        ("bpf", (0, NOWHERE, 1 << 20)),
        ("clone", (-1, 0, 0, 0, 0)),
    )
    for name, arguments in steps:
        for half in _HIGH_HALVES:
            # A negative number would be one of x32's: the sign is dropped with the half.
            if (said := answer(NUMBERS[name] | half, arguments, name)) != "EPERM":
                return f"{name} answers {said} by {NUMBERS[name] | half:#x}"
    raise Stopped("the high half changes nothing")


ATTEMPTS = (
    Attempt(
        "sweeps.prctl",
        "makes prctl with every option there is but the three that are allowed",
        _prctl,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at prctl")],
        escape="rights, filters, tracers or what is left of it after an execve can be set",
    ),
    Attempt(
        "sweeps.futex",
        "makes futex with every operation but the three that are allowed",
        _futex,
        control=memory_works,
        walls=[Wall("syscalls", "EPERM at futex")],
        escape="tasks can be named, and pages of files that others are shown waited at",
        cve="CVE-2014-3153, CVE-2021-3347",
    ),
    Attempt(
        "sweeps.clocks",
        "reads every clock but the three that are allowed",
        _clocks,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at clock_gettime")],
        escape="what other processes have run, and which there are, is known",
    ),
    Attempt(
        "sweeps.flags",
        "sends and receives with every flag",
        _flags,
        control=sockets_work,
        walls=[
            Wall("syscalls", "EPERM at sendto, EPERM at recvfrom"),
            Wall("kernel", "EBADF at sendto, EBADF at recvfrom"),
        ],
        escape="urgent bytes, errors of others and pages without a copy are the kernel's less trodden paths",
        cve="CVE-2025-38236",
    ),
    Attempt(
        "sweeps.ioctl",
        "makes ioctl with the requests of terminals, networks, consoles, disks, namespaces and virtual machines",
        _ioctl,
        control=descriptors_work,
        walls=[Wall("syscalls", "EPERM at ioctl")],
        escape="whatever a descriptor's driver does on request can be had",
        cve="CVE-2017-5226, CVE-2023-1523, CVE-2023-28100",
    ),
    Attempt(
        "sweeps.ioctl_terminals",
        "makes the requests of terminals of every descriptor that there could be",
        _terminal_ioctl,
        control=descriptors_work,
        walls=[Wall("syscalls", "EPERM at ioctl")],
        escape="commands are typed into a terminal",
        cve="CVE-2017-5226",
        victims=["terminal"],
    ),
    Attempt(
        "sweeps.high_bits",
        "hides a refused value behind bits of an argument that the kernel drops",
        _high_bits,
        control=calls_work,
        walls=[Wall("syscalls", "the high half changes nothing")],
        escape="each condition of the profile can be passed by",
        cve="CVE-2019-7303, CVE-2019-10063",
    ),
    Attempt(
        "sweeps.number_bits",
        "hides a refused call behind bits of its number that the kernel drops",
        _number_high_half,
        control=calls_work,
        walls=[Wall("syscalls", "the high half changes nothing")],
        escape="each refused call can be made",
    ),
    Attempt(
        "sweeps.calls",
        "makes every call that the profile does not let through, one after the other",
        _sweep,
        control=calls_work,
        walls=[Wall("syscalls", "as the profile says, call by call")],
        escape="a call can be made that the profile says cannot",
    ),
    Attempt(
        "sweeps.beyond",
        "makes calls whose numbers no kernel has given to any",
        _beyond,
        control=calls_work,
        # What a kernel answers to a number that it does not have is the same: to one that it has, it would be another.
        walls=[same(layer, "a number that no call has", errno="ENOSYS") for layer in ("syscalls", "kernel")],
        escape="a call that came after the profile can be made",
    ),
)
