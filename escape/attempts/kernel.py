"""Out by the kernel: the parts of it that few need and published escapes went through."""

from __future__ import annotations

import ctypes
import os
import struct

from escape.attempt import Attempt, Wall
from escape.attempts._refusing import NOWHERE, refused, same
from escape.inside import World, call, calls_work, do, each, memory_works

_PAGE = 4096
_KERNEL_ADDRESS = 0xFFFF_8000_0000_0000 - (1 << 64)
_KERNEL_TEXT = 0xFFFF_FFFF_8100_0000 - (1 << 64)
_TEXT = ctypes.create_string_buffer(_PAGE)
_WORD = (ctypes.c_uint32 * 2)()

_MAP = (ctypes.c_uint32 * 18)(2, 4, 4, 1)  # BPF_MAP_TYPE_ARRAY of one word
_RING = (ctypes.c_uint32 * 30)()
_SEGMENT = ctypes.create_string_buffer(64)
_CLOCK = ctypes.create_string_buffer(256)  # struct timex whose modes are 0: it is read, nothing is set
_BAD_TIME = (ctypes.c_long * 2)(0, 2_000_000_000)  # more than a second of microseconds, and of nanoseconds

_PARTS = (
    refused(
        "kernel.bpf",
        "makes a map and loads a program for the kernel's virtual machine",
        ("bpf", (0, _MAP, 72)),
        # An unprivileged process is told EPERM by the kernel too, but not before it was told of a wrong size.
        ("bpf", (0, NOWHERE, 1 << 20)),
        ("bpf", (5, _MAP, 72)),
        escape="faults of the verifier are within reach: reading and writing the kernel's memory",
        cve="CVE-2017-16995, CVE-2020-8835, CVE-2021-3490, CVE-2022-23222",
    ),
    refused(
        "kernel.io_uring",
        "makes a ring by which most calls can be asked for past the filter",
        ("io_uring_setup", (1, _RING)),
        ("io_uring_enter", (NOWHERE, 0, 0, 0, None, 0)),
        ("io_uring_register", (NOWHERE, 0, None, 0)),
        escape="every call that a ring knows can be made, and faults of the ring itself are within reach",
        cve="CVE-2020-29373, CVE-2021-41073, CVE-2022-29582, CVE-2023-2598",
    ),
    refused(
        "kernel.modules",
        "loads and unloads code of the kernel",
        # The kernel asks for the right first: EPERM is its word as well as the filter's, whatever it is given.
        ("init_module", (None, 0, "")),
        ("finit_module", (NOWHERE, "", 0)),
        ("delete_module", ("spl-none", os.O_NONBLOCK)),
        escape="code of its own runs in the kernel",
        # ENOSYS is what a kernel without modules answers.
        walls=[
            Wall(
                "user_namespace",
                "EPERM at init_module, EPERM at finit_module, EPERM at delete_module",
                "ENOSYS at init_module, ENOSYS at finit_module, ENOSYS at delete_module",
            )
        ],
    ),
    refused(
        "kernel.kexec",
        "loads another kernel to start",
        # The kernel asks for the right first: EPERM is its word as well as the filter's, whatever it is given.
        ("kexec_load", (0, 0, None, 0)),
        ("kexec_file_load", (NOWHERE, NOWHERE, 0, "", NOWHERE)),
        escape="the host starts a kernel of its own",
        walls=[
            Wall(
                "user_namespace",
                "EPERM at kexec_load, EPERM at kexec_file_load",
                "ENOSYS at kexec_load, ENOSYS at kexec_file_load",
                "EPERM at kexec_load, ENOSYS at kexec_file_load",
            )
        ],
    ),
    refused(
        "kernel.segments",
        "reads and writes its table of segments",
        ("modify_ldt", (0, _SEGMENT, 64)),
        ("modify_ldt", (1, _SEGMENT, 64)),
        ("modify_ldt", (17, _SEGMENT, 1)),
        escape="faults of the kernel's ways in and out are within reach",
        cve="CVE-2017-17053",
        lacking="segments are x86's",
    ),
    refused(
        "kernel.ports",
        "asks for the machine's input and output ports",
        ("iopl", (3,)),
        ("iopl", (4,)),
        ("ioperm", (0x80, 1, 1)),
        ("ioperm", (NOWHERE, 1, 1)),
        escape="the machine's devices are driven directly",
        lacking="ports are x86's",
    ),
    refused(
        "kernel.uselib",
        "has the kernel map a library for it",
        ("uselib", (None,)),
        escape="an old loader of the kernel is within reach",
        cve="CVE-2004-1235",
        lacking="the call is x86's",
    ),
    refused(
        "kernel.accounting",
        "switches the accounting of all processes off",
        # The kernel asks for the right first: EPERM is its word as well as the filter's, whatever it is given.
        ("acct", ("/spl-none",)),
        escape="the kernel writes a file of the host for it",
        walls=[same("user_namespace", "acct")],
    ),
    refused(
        "kernel.swap",
        "has the kernel swap to a file of its choice, and not to another",
        ("swapon", (None, NOWHERE)),
        ("swapon", ("/spl-none", 0)),
        ("swapoff", ("/spl-none",)),
        escape="the host's memory is written to a file of its choice",
    ),
    refused(
        "kernel.reboot",
        "asks for the host to be started anew, by wrong numbers",
        # With the right numbers it would be no attempt.
        # The kernel asks for the right first: EPERM is its word as well as the filter's, whatever it is given.
        ("reboot", (NOWHERE, NOWHERE, NOWHERE, None)),
        escape="the host can be switched off",
        walls=[same("user_namespace", "reboot")],
    ),
    refused(
        "kernel.log",
        "reads the kernel's log, its size, and what is unread of it",
        # The kernel asks for the right first: EPERM is its word as well as the filter's, whatever it is given.
        # Where kernel.dmesg_restrict is 0 it does not ask, and these work.
        ("syslog", (3, _TEXT, _PAGE)),
        ("syslog", (10, None, 0)),
        ("syslog", (9, None, 0)),
        escape="addresses in the kernel and what the host's devices say are read",
        walls=[Wall("user_namespace", "EPERM at syslog")],
    ),
    refused(
        "kernel.forgotten",
        "makes calls that hardly any program ever made: of profilers and of old NFS servers",
        ("lookup_dcookie", (0, _TEXT, _PAGE)),
        ("nfsservctl", (0, None, None)),
        escape="code of the kernel that nobody looks after is within reach",
        walls=[same("kernel", "lookup_dcookie", "nfsservctl", errno="ENOSYS")],
    ),
    refused(
        "kernel.file_systems",
        "asks for the kernel's file systems by their numbers",
        ("ustat", (NOWHERE, _TEXT)),
        ("sysfs", (3,)),
        escape="what the host has mounted is seen",
        lacking="the calls are x86's",
    ),
    refused(
        "kernel.clock",
        "sets the host's clocks, to times that there are not",
        ("settimeofday", (_BAD_TIME, None)),
        ("clock_settime", (0, _BAD_TIME)),
        ("adjtimex", (_CLOCK,)),
        ("clock_adjtime", (1, _CLOCK)),
        escape="the host's time can be set: certificates and tokens hold longer than they should",
    ),
    refused(
        "kernel.membarrier",
        "interrupts every processor",
        ("membarrier", (0, 0, 0)),
        ("membarrier", (1, 0, 0)),  # MEMBARRIER_CMD_GLOBAL
        ("membarrier", (2, 0, 0)),
        escape="every program of the host is slowed down",
        errno="ENOSYS",
    ),
    refused(
        "kernel.new_futexes",
        "waits and wakes by the calls that came after futex",
        ("futex_waitv", (None, 0, 0, None, 0)),
        ("futex_wake", (_WORD, 1, 1, 2)),
        ("futex_wait", (_WORD, 1, 1, NOWHERE, None, 0)),
        ("futex_requeue", (None, 0, 1, 1)),
        escape="new code of the kernel is within reach",
        errno="ENOSYS",
    ),
    refused(
        "kernel.security_modules",
        "asks which security modules there are, and to be labelled by them",
        ("lsm_list_modules", (_TEXT, _WORD, 0)),
        ("lsm_get_self_attr", (100, None, _WORD, 0)),
        ("lsm_set_self_attr", (100, None, 0, 0)),
        escape="its label can be changed for one that may do more",
        errno="ENOSYS",
    ),
    refused(
        "kernel.asynchronous_io",
        "makes a context for input and output beside it",
        ("io_setup", (1, (ctypes.c_long * 1)(NOWHERE))),
        ("io_submit", (0, 0, None)),
        ("io_pgetevents", (0, 0, 0, None, None, None)),
        escape="memory that is counted for the whole host is taken",
        errno="ENOSYS",
    ),
)


# --- published faults, as far as they go ---


def _requeue(world: World) -> str:
    word = (ctypes.c_uint32 * 2)()
    soon = (ctypes.c_long * 2)(0, 1)
    # FUTEX_CMP_REQUEUE_PI and FUTEX_WAIT_REQUEUE_PI, on shared memory and on its own.
    lists = [
        (word, operation | private, *rest, word, 0)
        for operation, rest in ((12, (1, 1)), (12, (1, 0)), (11, (0, soon)))
        for private in (0, 128)
    ]
    return each("futex", lists, "a waiter was moved to the very futex that it waits for")


def _waitid(world: World) -> str:
    # P_ALL and P_PID; WNOHANG | WEXITED.
    lists = [
        (*who, address, 1 | 4, None)
        for who in ((0, 0), (1, os.getpid()))
        for address in (_KERNEL_ADDRESS, _KERNEL_TEXT)
    ]
    return each("waitid", lists, "the kernel wrote where it was told to, into itself")


# --- what is allowed, used for more than it is allowed for ---


def _landlock_ports(world: World) -> str:
    attributes = (ctypes.c_uint64 * 2)(1, 3)
    rule = (ctypes.c_uint64 * 2)(1, 80)
    ruleset = call("landlock_create_ruleset", attributes, 16, 0)
    try:
        for port in range(8):
            rule[1] = port
            call("landlock_add_rule", ruleset, 2, rule, 0)
    finally:
        os.close(ruleset)
    return "rules for ports, which nothing counts, were taken"


def _landlock_again(world: World) -> str:
    """Restrict itself once more, by a ruleset that keeps everything, as if it could give back what was taken."""
    attributes = (ctypes.c_uint64 * 1)(1)
    ruleset = call("landlock_create_ruleset", attributes, 8, 0)
    root = do("open", os.open, "/", os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", 1, root)
        call("landlock_add_rule", ruleset, 1, rule, 0)
        call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(root)
        os.close(ruleset)
    call("execve", world.image, None, None)
    return "another program was executed"


ATTEMPTS = (
    *_PARTS,
    Attempt(
        "kernel.requeue",
        "moves waiters of a futex to the very futex they wait for",
        _requeue,
        control=memory_works,
        # The second task that the published escape needs would be refused as well.
        walls=[Wall("syscalls", "EPERM at futex"), Wall("kernel", "EINVAL at futex")],
        escape="the kernel's memory is reached through a waiter on its stack",
        cve="CVE-2014-3153",
    ),
    Attempt(
        "kernel.waitid",
        "has the kernel say how a child ended at an address of the kernel's",
        _waitid,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at waitid"), Wall("kernel", "ECHILD at waitid", "EFAULT at waitid")],
        escape="the kernel's memory is written",
        cve="CVE-2017-5123",
    ),
    Attempt(
        "kernel.landlock_ports",
        "fills a ruleset with rules for ports",
        _landlock_ports,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at landlock_add_rule")],
        escape="memory of the kernel's that nothing counts is taken, megabytes a descriptor",
        lacking={
            "ENOSYS at landlock_create_ruleset": "this kernel has no Landlock",
            "EOPNOTSUPP at landlock_create_ruleset": "Landlock is switched off here",
            "E2BIG at landlock_create_ruleset": "this kernel's Landlock knows no ports",
            "EINVAL at landlock_create_ruleset": "this kernel's Landlock knows no ports",
        },
    ),
    Attempt(
        "kernel.landlock_again",
        "restricts itself by a ruleset that lets it execute everything",
        _landlock_again,
        control=calls_work,
        alone=True,
        walls=[Wall("landlock", "EACCES at execve")],
        escape="what it has given up comes back",
    ),
)
