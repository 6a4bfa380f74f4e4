"""Out by a foreign ABI: the same kernel, called by other numbers."""

from __future__ import annotations

import ctypes
import mmap
import os

from escape.attempt import Attempt, Wall
from escape.inside import World, call, calls_work, memory_works, numbered, stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from escape.attempt import Chain, Control

_NONE = "no such calls"
_LACKING = {_NONE: "only x86_64 runs calls of other numbers"}
_FAULTS = {**_LACKING, "killed by SIGSEGV": "this kernel runs no 32-bit calls"}
_KILLED = "killed by SIGSYS"

# Of i386 (syscall_32.tbl).
_GETPID, _SOCKET, _UNSHARE = 20, 359, 310
_CLONE_NEWUSER = 0x10000000
_X32 = 0x40000000

# f(number, a, b, c): mov eax, edi; mov ebx, esi; xchg ecx, edx; int 0x80, with rbx kept.
_INT80 = bytes.fromhex("53 89f8 89f3 87ca cd80 5b c3")

# f(): remember rsp at 0x200, return far to 32-bit code at 0x100, which makes a call and jumps far to 0x180, in 64 bits.
_TO_32 = "48892425{saved:08x} 6a23 68{there:08x} 48cb"
_IN_32 = "b8{number:08x} {enter} ea{back:08x} 3300"
_BACK = "488b2425{saved:08x} c3"
_ENTER_INT80, _ENTER_SYSENTER = "cd80", "0f34"

# mov eax, number; syscall; ret
_SYSCALL = "48b8{number:016x} 0f05 c3"

_VSYSCALL_TIME = -(1 << 64) + 0xFFFF_FFFF_FF60_0400


def _code(text: str, **numbers: int) -> bytes:
    """Give machine code, with numbers as they stand in it: lowest byte first."""
    for name, value in numbers.items():
        for size in (8, 16):
            swapped = value.to_bytes(size // 2, "little").hex() if value < 1 << 4 * size else ""
            text = text.replace(f"{{{name}:0{size}x}}", swapped)
    return bytes.fromhex(text)


def _here(world: World) -> None:
    if world.machine != "x86_64":
        stopped(_NONE)


def _place(*pieces: tuple[int, bytes], low: bool = False) -> int:
    """Map a page that can be executed and put code into it; gives where it is."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x40 if low else 0)  # MAP_32BIT
    writable = mmap.PROT_READ | mmap.PROT_WRITE
    at = call("mmap", 0, 4096, writable | mmap.PROT_EXEC, flags, -1, 0)
    for offset, code in pieces:
        ctypes.memmove(at + offset, code, len(code))
    return at


def _runs_code(world: World) -> None:
    """Code of its own can be run, or no stub below would be."""
    memory_works(world)
    if world.machine == "x86_64":
        at = _place((0, bytes.fromhex("b82a000000 c3")))  # mov eax, 42; ret
        if ctypes.CFUNCTYPE(ctypes.c_int)(at)() != 42:
            stopped("the code did not run")
        call("munmap", at, 4096)


def _int80(number: int, *arguments: int) -> int:
    at = _place((0, _INT80))
    function = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_int,) * 4)(at)
    return int(function(number, *(*arguments, 0, 0, 0)[:3]))


def _by_int80(number: int, *arguments: int) -> Chain:
    def chain(world: World) -> str:
        _here(world)
        return f"i386's call {number} answers {_int80(number, *arguments)}"

    return chain


def _in_32_bits(enter: str) -> Chain:
    def chain(world: World) -> str:
        _here(world)
        at = _place(low=True)
        pieces = (
            (0, _code(_TO_32, saved=at + 0x200, there=at + 0x100)),
            (0x100, _code(_IN_32.replace("{enter}", enter), number=_GETPID, back=at + 0x180)),
            (0x180, _code(_BACK, saved=at + 0x200)),
        )
        for offset, code in pieces:
            ctypes.memmove(at + offset, code, len(code))
        value = ctypes.CFUNCTYPE(ctypes.c_int)(at)()
        return f"a 32-bit call from 32-bit code answers {value}, and the process is {os.getpid()}"

    return chain


def _by_number(number: int, *arguments: int) -> Chain:
    def chain(world: World) -> str:
        _here(world)
        return f"x32's call {number & ~_X32} answers {numbered(number, *arguments)}"

    return chain


def _by_instruction(number: int) -> Chain:
    """Give a chain that makes a call by an instruction of its own, not by libc."""

    def chain(world: World) -> str:
        _here(world)
        at = _place((0, _code(_SYSCALL, number=number)))
        value = ctypes.CFUNCTYPE(ctypes.c_long)(at)()
        call("munmap", at, 4096)
        if value < 0:
            stopped(f"{_NAMES.get(-value, -value)} by an instruction of its own")
        return f"call {number:#x} answers {value}"

    return chain


_NAMES = {1: "EPERM", 14: "EFAULT", 22: "EINVAL", 38: "ENOSYS"}


def _vsyscall(world: World) -> str:
    _here(world)
    value = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(_VSYSCALL_TIME & (1 << 64) - 1)(None)
    if value < 0:
        stopped(f"{_NAMES.get(-value, -value)} at time")
    return f"it is {value}, past the filter"


def _trampoline(world: World) -> str:
    _here(world)
    return f"uretprobe answers {numbered(335, step='uretprobe')}"


def _killed(
    name: str,
    sentence: str,
    chain: Chain,
    escape: str,
    *,
    control: Control = _runs_code,
    lacking: Mapping[str, str] = _FAULTS,
    cve: str = "",
) -> Attempt:
    return Attempt(
        f"abi.{name}",
        sentence,
        chain,
        control=control,
        alone=True,
        walls=[Wall("syscalls", _KILLED)],
        escape=escape,
        lacking=lacking,
        cve=cve,
    )


_EVERY_CALL = "every call can be made past the filter, which knows 64-bit numbers"

ATTEMPTS = (
    _killed(
        "i386", "asks for its number by i386's way in", _by_int80(_GETPID), _EVERY_CALL, cve="CVE-2009-0835"
    ),
    _killed(
        "i386_socket",
        "makes a TCP socket by i386's way in",
        _by_int80(_SOCKET, 2, 1, 0),
        _EVERY_CALL,
        cve="CVE-2009-0835",
    ),
    _killed(
        "i386_unshare",
        "makes a user namespace by i386's way in",
        _by_int80(_UNSHARE, _CLONE_NEWUSER),
        "rights in a namespace of its own, and with them most of the kernel's faults, are within reach",
        cve="CVE-2009-0835",
    ),
    _killed(
        "i386_code",
        "goes over to 32-bit code, which then makes a call",
        _in_32_bits(_ENTER_INT80),
        _EVERY_CALL,
        cve="CVE-2009-0835",
    ),
    _killed(
        "i386_sysenter",
        "goes over to 32-bit code, which then makes a call by sysenter",
        _in_32_bits(_ENTER_SYSENTER),
        _EVERY_CALL,
        # Unfiltered it is made, but comes back to where a 32-bit program has the kernel's page: SIGSEGV in any case.
        lacking={**_LACKING, "killed by SIGILL": "this processor has no sysenter for 32-bit code"},
        cve="CVE-2009-0835",
    ),
    _killed(
        "x32",
        "asks for its number by x32's way in",
        _by_number(_X32 | 39),
        _EVERY_CALL,
        control=calls_work,
        lacking=_LACKING,
    ),
    _killed(
        "x32_only",
        "receives nothing by a number that is x32's alone, that of its recvmmsg",
        _by_number(_X32 | 537, -1, 0, 0, 0, 0),
        _EVERY_CALL,
        control=calls_work,
        lacking=_LACKING,
        cve="CVE-2014-0038",
    ),
    _killed(
        "negative",
        "makes a call by a number below zero",
        _by_number(-2),
        _EVERY_CALL,
        control=calls_work,
        lacking=_LACKING,
    ),
    Attempt(
        "abi.minus_one",
        "makes a call by the number that means to the kernel that there is no call",
        _by_number(-1),
        control=calls_work,
        alone=True,
        walls=[Wall("syscalls", "ENOSYS at -1", _KILLED), Wall("kernel", "ENOSYS at -1")],
        escape=_EVERY_CALL,
        lacking=_LACKING,
    ),
    Attempt(
        "abi.own_instruction",
        "makes a refused call by an instruction of its own, past libc",
        _by_instruction(111),  # getpgrp
        control=_runs_code,
        walls=[Wall("syscalls", "EPERM by an instruction of its own")],
        escape="whoever brings code of his own is not filtered",
        lacking=_LACKING,
    ),
    Attempt(
        "abi.vsyscall",
        "asks for the time by the page that old programs jump to",
        _vsyscall,
        control=calls_work,
        alone=True,
        walls=[Wall("syscalls", "ENOSYS at time")],
        escape="calls can be made past the filter",
        lacking={**_LACKING, "killed by SIGSEGV": "this kernel has no such page"},
    ),
    Attempt(
        "abi.uretprobe",
        "makes the call that recent kernels let past every filter, for the sake of those who trace programs",
        _trampoline,
        control=calls_work,
        alone=True,
        # It is for the kernel's own trampoline: from anywhere else the kernel kills whoever makes it.
        walls=[Wall("kernel", "killed by SIGILL", "ENOSYS at uretprobe")],
        escape="what the kernel keeps of a traced function is within reach",
        lacking=_LACKING,
    ),
)
