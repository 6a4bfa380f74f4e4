"""The classic BPF that seccomp accepts: read and write a filter, list it, run it on a call without a kernel.

Only the instructions that `seccomp_check_filter` in the kernel's `kernel/seccomp.c` lets through are known here;
anything else is an error, as it is there. Every jump is forward, so a program ends after as many steps as it
has instructions.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# struct seccomp_data (seccomp(2)): nr, arch, instruction_pointer, args[6].
_DATA = struct.Struct("<iIQ6Q")
_INSTRUCTION = struct.Struct("<HBBI")
_WORD = 0xFFFFFFFF

LD_ABS, LD_IMM, LD_MEM, LDX_IMM, LDX_MEM, ST, STX = 0x20, 0x00, 0x60, 0x01, 0x61, 0x02, 0x03
TAX, TXA, RET_K, RET_A, JA, JEQ, AND = 0x07, 0x87, 0x06, 0x16, 0x05, 0x15, 0x54
NUMBER, ARCH, ARGUMENTS = 0, 4, 16
"""Where LD_ABS finds a call's number, its architecture, and its arguments of 8 bytes, the low half first."""
_JUMPS = {0x10: "eq", 0x20: "gt", 0x30: "ge", 0x40: "set"}
_ARITHMETIC = {
    0x00: "add", 0x10: "sub", 0x20: "mul", 0x40: "or", 0x50: "and", 0x60: "lsh", 0x70: "rsh", 0xA0: "xor",
}  # fmt: skip
_PLAIN = {
    LD_ABS: "ld [{k}]", LD_IMM: "ld #{k:#x}", LD_MEM: "ld M[{k}]", LDX_IMM: "ldx #{k:#x}", LDX_MEM: "ldx M[{k}]",
    ST: "st M[{k}]", STX: "stx M[{k}]", TAX: "tax", TXA: "txa", RET_K: "ret #{k:#x}", RET_A: "ret a",
}  # fmt: skip


class Instruction(NamedTuple):
    """One `struct sock_filter` (linux/filter.h)."""

    code: int
    jump_true: int
    jump_false: int
    k: int


class InvalidProgram(ValueError):
    """The bytes are not a program the kernel would accept."""


def load(program: bytes) -> list[Instruction]:
    """Read a program as `seccomp_export_bpf(3)` writes it; raises `InvalidProgram`."""
    if not program or len(program) % _INSTRUCTION.size:
        raise InvalidProgram(f"{len(program)} bytes are not a whole number of instructions")
    return [Instruction(*fields) for fields in _INSTRUCTION.iter_unpack(program)]


def dump(program: Iterable[Instruction]) -> bytes:
    """Write a program as the kernel reads it."""
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)


def listing(program: Sequence[Instruction]) -> list[str]:
    """Give a program a line an instruction, jumps by the number of the line they go to, from 0.

    The language is bpf_asm's (the kernel's Documentation/networking/filter.rst). Raises `InvalidProgram`.
    """
    return [_line(at, *instruction) for at, instruction in enumerate(program)]


def run(
    program: Sequence[Instruction], number: int, arch: int, arguments: Sequence[int] = (), *, pointer: int = 0
) -> int:
    """Give the action (a SECCOMP_RET_ value with its data) the program takes on one call.

    `number` may have x32's bit 30; `arguments` are up to six unsigned 64-bit values. Raises `InvalidProgram`.
    """
    padded = [*arguments, *([0] * (6 - len(arguments)))]
    data = _DATA.pack(struct.unpack("<i", struct.pack("<I", number & _WORD))[0], arch, pointer, *padded)
    a = x = 0
    memory = [0] * 16
    at = 0
    while at < len(program):
        code, jump_true, jump_false, k = program[at]
        at += 1
        if code == LD_ABS:
            if k % 4 or k >= _DATA.size:
                raise InvalidProgram(f"load at {k}: outside struct seccomp_data")
            a = struct.unpack_from("<I", data, k)[0]
        elif code == RET_K:
            return k
        elif code == RET_A:
            return a
        elif code == JA:
            at += k
        elif code & 0x07 == 0x05:
            at += jump_true if _holds(code, a, x if code & 0x08 else k) else jump_false
        elif code & 0x07 == 0x04:
            a = _arithmetic(code, a, x if code & 0x08 else k)
        else:
            a, x = _move(code, k, a, x, memory)
    raise InvalidProgram("the program runs past its end")


def _line(at: int, code: int, jump_true: int, jump_false: int, k: int) -> str:
    after = at + 1
    if code in _PLAIN:
        return f"{at}: {_PLAIN[code].format(k=k)}"
    operand = "x" if code & 0x08 else f"#{k:#x}"
    if code == JA:
        return f"{at}: jmp {after + k}"
    if code & 0x07 == 0x05 and code & 0xF0 in _JUMPS:
        return f"{at}: j{_JUMPS[code & 0xF0]} {operand}, {after + jump_true}, {after + jump_false}"
    if code & 0x07 == 0x04 and code & 0xF0 in _ARITHMETIC:
        return f"{at}: {_ARITHMETIC[code & 0xF0]} {operand}"
    raise InvalidProgram(f"unknown instruction {code:#x}")


def _holds(code: int, a: int, operand: int) -> bool:
    match _JUMPS.get(code & 0xF0):
        case "eq":
            return a == operand
        case "gt":
            return a > operand
        case "ge":
            return a >= operand
        case "set":
            return bool(a & operand)
    raise InvalidProgram(f"unknown jump {code:#x}")


def _arithmetic(code: int, a: int, operand: int) -> int:
    match _ARITHMETIC.get(code & 0xF0):
        case "add":
            value = a + operand
        case "sub":
            value = a - operand
        case "mul":
            value = a * operand
        case "or":
            value = a | operand
        case "and":
            value = a & operand
        case "lsh":
            value = a << (operand & 31)
        case "rsh":
            value = a >> (operand & 31)
        case "xor":
            value = a ^ operand
        case _:
            raise InvalidProgram(f"unknown arithmetic {code:#x}")
    return value & _WORD


def _move(code: int, k: int, a: int, x: int, memory: list[int]) -> tuple[int, int]:
    if code in (LD_MEM, LDX_MEM, ST, STX) and k >= len(memory):
        raise InvalidProgram(f"scratch cell {k} does not exist")
    match code:
        case 0x00:
            a = k
        case 0x60:
            a = memory[k]
        case 0x01:
            x = k
        case 0x61:
            x = memory[k]
        case 0x02:
            memory[k] = a
        case 0x03:
            memory[k] = x
        case 0x07:
            x = a
        case 0x87:
            a = x
        case _:
            raise InvalidProgram(f"unknown instruction {code:#x}")
    return a, x
