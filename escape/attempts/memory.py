"""Out by memory: the kernel's own, that of files which may only be read, and calls on mappings that few need."""

from __future__ import annotations

import ctypes
import mmap
import os

from escape.attempt import Attempt, Wall
from escape.attempts._refusing import NOWHERE, refused, same, steps
from escape.inside import (
    Stopped,
    World,
    call,
    calls_work,
    descriptors_work,
    do,
    every,
    files_work,
    memory_works,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from escape.attempts._refusing import Step

_PAGE = 4096
_KERNEL_ADDRESS = 0xFFFF_8000_0000_0000 - (1 << 64)

_PARTS = (
    refused(
        "memory.userfaultfd",
        "takes over its own page faults, which holds up the kernel at a place of its choice",
        ("userfaultfd", (1,)),  # UFFD_USER_MODE_ONLY, which needs no right
        ("userfaultfd", (os.O_CLOEXEC,)),
        ("userfaultfd", (NOWHERE,)),
        escape="races in the kernel are won at leisure",
    ),
    refused(
        "memory.files",
        "makes files in memory, one that runs and one that the kernel itself does not map",
        ("memfd_create", ("spl", 0)),
        ("memfd_secret", (0,)),
        ("memfd_secret", (NOWHERE,)),
        escape="memory that no limit counts, and a file to run that has no path",
    ),
    refused(
        "memory.mappings",
        "makes calls on mappings that few need: pages out of order, seals, shadow stacks, keys",
        ("remap_file_pages", (NOWHERE, _PAGE, 0, 0, 0)),
        ("mseal", (0, 0, 0)),
        ("map_shadow_stack", (0, _PAGE, 0)),
        ("pkey_alloc", (0, 0)),
        ("pkey_mprotect", (0, 0, 0, -1)),
        ("munlockall", ()),
        escape="rarely used code of the kernel's memory management is within reach",
        errno="ENOSYS",
    ),
)


# --- published faults, as far as they go ---


def _dirty_pipe(world: World) -> str:
    descriptor = do("open", os.open, world.image, os.O_RDONLY | os.O_CLOEXEC)
    ends = (ctypes.c_int * 2)()
    try:
        was = do("read", os.read, descriptor, 2)
        call("pipe2", ends, os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            for _ in range(16):  # every slot gets the flag by which a later write is merged into its page
                do("write", os.write, ends[1], bytes(_PAGE))
                do("read", os.read, ends[0], _PAGE)
            _merge(descriptor, ends, bytes([was[1] ^ 1]))
            os.lseek(descriptor, 0, os.SEEK_SET)
            if os.read(descriptor, 2) != was:
                _merge(descriptor, ends, was[1:])
                return "the sealed program was written to"
        finally:
            os.close(ends[0])
            os.close(ends[1])
    finally:
        os.close(descriptor)
    raise Stopped("nothing is changed")


def _merge(descriptor: int, ends: Any, byte: bytes) -> None:
    at = (ctypes.c_long * 1)(0)
    call("splice", descriptor, at, ends[1], None, 1, 0)
    do("write", os.write, ends[1], byte)
    do("read", os.read, ends[0], 2)


def _dirty_cow(world: World) -> str:
    descriptor = do("open", os.open, world.image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        was = do("read", os.read, descriptor, 2)
        at = call("mmap", 0, _PAGE, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
        try:
            call("madvise", at, _PAGE, 4)  # MADV_DONTNEED
            memory = do("open", os.open, "/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
            try:
                for _ in range(100):  # without a second task the race is only ever run, not won
                    os.lseek(memory, at, os.SEEK_SET)
                    do("write", os.write, memory, bytes([was[0] ^ 1]))
                    call("madvise", at, _PAGE, 4)
            finally:
                os.close(memory)
        finally:
            call("munmap", at, _PAGE)
        os.lseek(descriptor, 0, os.SEEK_SET)
        if os.read(descriptor, 2) != was:
            return "the sealed program was written to"
    finally:
        os.close(descriptor)
    raise Stopped("nothing is changed")


# --- what is allowed, used for more than it is allowed for ---


def _low_mapping(world: World) -> str:
    fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
    readable = mmap.PROT_READ | mmap.PROT_WRITE

    def mapped(at: int, size: int, flags: int) -> Callable[[], str]:
        def route() -> str:
            call("munmap", call("mmap", at, size, readable, flags, -1, 0), size)
            return f"memory at {at}"

        return route

    def moved() -> str:
        old = call("mmap", 0, _PAGE, readable, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        try:
            old = call("mremap", old, _PAGE, _PAGE, 3, 0)  # MREMAP_MAYMOVE | MREMAP_FIXED
        finally:
            call("munmap", old, _PAGE)
        return "memory moved to 0"

    # One that grows downwards (MAP_GROWSDOWN), and one whose end is high enough.
    return every(mapped(0, _PAGE, fixed), mapped(0, _PAGE, fixed | 0x100), mapped(0, 1 << 20, fixed), moved)


def _high_mapping(world: World) -> str:
    at = _KERNEL_ADDRESS
    call("mmap", at, _PAGE, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, 0)
    return "memory where the kernel's is"


def _foreign_memory(world: World) -> str:
    """Have calls that are allowed read and write the kernel's memory in the process's place."""
    here = do("open", os.open, world.python, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return steps(_into_kernel(here))
    finally:
        os.close(here)


def _into_kernel(here: int) -> Iterable[Step]:
    return (
        ("read", (here, _KERNEL_ADDRESS, 8)),
        ("pread64", (here, _KERNEL_ADDRESS, 8, 0)),
        ("write", (2, _KERNEL_ADDRESS, 8)),
        ("fstat", (here, _KERNEL_ADDRESS)),
        ("clock_gettime", (0, _KERNEL_ADDRESS)),
        ("getrandom", (_KERNEL_ADDRESS, 8, 0)),
        ("getresuid", (_KERNEL_ADDRESS, _KERNEL_ADDRESS, _KERNEL_ADDRESS)),
        ("futex", (_KERNEL_ADDRESS, 129, 1, None, None, 0)),
        ("prlimit64", (0, 7, None, _KERNEL_ADDRESS)),
        ("rt_sigaction", (10, None, _KERNEL_ADDRESS, 8)),
    )


def _bases(world: World) -> str:
    # ARCH_SET_GS and no ARCH_SET_FS: libc's thread hangs on that one, were it taken.
    call("arch_prctl", 0x1001, _KERNEL_ADDRESS)
    return "a segment begins in the kernel's memory"


def _rseq(world: World) -> str:
    call("rseq", _KERNEL_ADDRESS, 32, 0, 0x53053053)
    return "the kernel writes where it was told to at each switch, into itself"


def _own_code(world: World) -> str:
    descriptor = do("open", os.open, world.python, os.O_RDONLY | os.O_CLOEXEC)
    try:
        of_a_file = call("mmap", 0, _PAGE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, descriptor, 0)
        call("munmap", of_a_file, _PAGE)
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        own = call("mmap", 0, _PAGE, mmap.PROT_READ | mmap.PROT_WRITE, anonymous, -1, 0)
        call("mprotect", own, _PAGE, mmap.PROT_READ | mmap.PROT_EXEC)
        call("munmap", own, _PAGE)
    finally:
        os.close(descriptor)
    raise Stopped("works: memory can be executed")


ATTEMPTS = (
    *_PARTS,
    Attempt(
        "memory.dirty_pipe",
        "writes to a page of a file that it may only read, through a pipe into which the page was spliced",
        _dirty_pipe,
        control=files_work,
        walls=[Wall("syscalls", "ENOSYS at pipe2"), Wall("kernel", "nothing is changed")],
        escape="files that it may only read, the interpreter's and its own program, can be written",
        cve="CVE-2022-0847",
    ),
    Attempt(
        "memory.dirty_cow",
        "writes to its private copy of a page while it gives the copy back, so that the file's own is written",
        _dirty_cow,
        control=files_work,
        walls=[
            Wall("syscalls", "ENOSYS at madvise"),
            Wall("mounts", "ENOENT at open"),
            Wall("landlock", "EACCES at open"),
        ],
        escape="files that it may only read can be written",
        cve="CVE-2016-5195",
    ),
    Attempt(
        "memory.low",
        "maps memory where a null pointer of the kernel's points to",
        _low_mapping,
        control=memory_works,
        walls=[Wall("kernel", "EPERM at mmap, EPERM at mremap")],
        escape="each null pointer in the kernel is a way into it",
        cve="CVE-2009-2692",
    ),
    Attempt(
        "memory.high",
        "maps memory where the kernel's own is",
        _high_mapping,
        control=memory_works,
        walls=[Wall("kernel", "ENOMEM at mmap")],
        escape="the kernel's memory is its own",
    ),
    Attempt(
        "memory.foreign",
        "gives calls that are allowed the kernel's addresses to read from and to write to",
        _foreign_memory,
        control=descriptors_work,
        walls=[same("kernel", *(name for name, _ in _into_kernel(0)), errno="EFAULT")],
        escape="the kernel reads or writes its own memory for it",
        cve="CVE-2017-5123",
    ),
    Attempt(
        "memory.segment_base",
        "has a segment begin in the kernel's memory",
        _bases,
        control=calls_work,
        # arch_prctl is allowed as a whole, since libc starts by it: each of its functions concerns the caller alone.
        walls=[Wall("kernel", "EPERM at arch_prctl")],
        escape="the kernel's memory is read by an instruction of its own",
        lacking={"no number at arch_prctl": "the call is x86's"},
    ),
    Attempt(
        "memory.rseq",
        "registers an area in the kernel's memory, which the kernel writes to whenever it switches tasks",
        _rseq,
        control=calls_work,
        # Allowed, since libc registers one. It has: EINVAL says that there is one, EFAULT that there is none yet.
        walls=[Wall("kernel", "EINVAL at rseq", "EFAULT at rseq", "ENOSYS at rseq")],
        escape="the kernel's memory is written",
    ),
    Attempt(
        "memory.own_code",
        "makes memory executable, of a file that it is shown and of its own",
        _own_code,
        control=memory_works,
        walls=[Wall("kernel", "works: memory can be executed")],
        escape="it runs code that nobody gave it",
        allowed="libraries are loaded this way, and its code reaches no call that the filter would not see, see abi",
    ),
)
