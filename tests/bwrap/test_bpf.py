from __future__ import annotations

import struct

import pytest

from bwrap import bpf, seccomp
from bwrap.bpf import Instruction, InvalidProgram
from bwrap.seccomp import Rules

ALLOW = 0x7FFF0000
X86_64 = 0xC000003E


def ret(value: int) -> Instruction:
    return Instruction(bpf.RET_K, 0, 0, value)


def ld(offset: int) -> Instruction:
    return Instruction(bpf.LD_ABS, 0, 0, offset)


RETURN_A = Instruction(bpf.RET_A, 0, 0, 0)


def test_a_program_is_read_eight_bytes_an_instruction() -> None:
    assert bpf.load(struct.pack("<HBBI", 0x15, 1, 2, 3) * 2) == [Instruction(0x15, 1, 2, 3)] * 2


def test_a_program_is_written_as_it_is_read() -> None:
    program = seccomp.compile_filter(Rules(1, frozenset({"read"}), {}, {})).program

    assert bpf.dump(bpf.load(program)) == program


LISTED = [
    (ld(bpf.ARCH), "ld [4]"),
    (Instruction(bpf.JEQ, 1, 0, X86_64), "jeq #0xc000003e, 3, 2"),
    (Instruction(bpf.JA, 0, 0, 300), "jmp 303"),
    (Instruction(0x25, 0, 5, 0x80), "jgt #0x80, 4, 9"),
    (Instruction(0x3D, 1, 0, 9), "jge x, 6, 5"),
    (Instruction(0x45, 0, 0, 0x10), "jset #0x10, 6, 6"),
    (Instruction(0x54, 0, 0, 0xFF), "and #0xff"),
    (Instruction(0x0C, 0, 0, 9), "add x"),
    (Instruction(0x64, 0, 0, 2), "lsh #0x2"),
    (Instruction(bpf.LD_IMM, 0, 0, 16), "ld #0x10"),
    (Instruction(bpf.LDX_IMM, 0, 0, 16), "ldx #0x10"),
    (Instruction(bpf.LD_MEM, 0, 0, 15), "ld M[15]"),
    (Instruction(bpf.LDX_MEM, 0, 0, 1), "ldx M[1]"),
    (Instruction(bpf.ST, 0, 0, 1), "st M[1]"),
    (Instruction(bpf.STX, 0, 0, 1), "stx M[1]"),
    (Instruction(bpf.TAX, 0, 0, 0), "tax"),
    (Instruction(bpf.TXA, 0, 0, 0), "txa"),
    (RETURN_A, "ret a"),
    (ret(ALLOW), "ret #0x7fff0000"),
]


def test_a_listing_has_a_line_an_instruction_and_jumps_name_lines() -> None:
    assert bpf.listing([instruction for instruction, _ in LISTED]) == [
        f"{at}: {line}" for at, (_, line) in enumerate(LISTED)
    ]


@pytest.mark.parametrize("code", [0x8000, 0x55, 0x34, 0x84, 0x28])
def test_what_is_no_instruction_is_not_listed(code: int) -> None:
    with pytest.raises(InvalidProgram, match=f"^unknown instruction {code:#x}$"):
        bpf.listing([Instruction(code, 0, 0, 0)])


@pytest.mark.parametrize("program", [b"", b"1234567", b"123456789"])
def test_bytes_that_are_no_whole_instructions_are_refused(program: bytes) -> None:
    with pytest.raises(
        InvalidProgram, match=f"^{len(program)} bytes are not a whole number of instructions$"
    ):
        bpf.load(program)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (0, 0x40000007),
        (4, X86_64),
        (8, 0x55667788),
        (12, 0x11223344),
        (16, 0xDDDDDDDD),
        (20, 0xCCCCCCCC),
        (60, 6),
    ],
)
def test_a_load_gives_a_word_of_the_call(offset: int, value: int) -> None:
    got = bpf.run(
        [ld(offset), RETURN_A],
        0x40000007,
        X86_64,
        [0xCCCCCCCCDDDDDDDD, 2, 3, 4, 5, 6 << 32],
        pointer=0x1122334455667788,
    )

    assert got == value


@pytest.mark.parametrize("offset", [1, 2, 64, 1 << 20])
def test_a_load_from_elsewhere_is_invalid(offset: int) -> None:
    with pytest.raises(InvalidProgram, match="outside struct seccomp_data"):
        bpf.run([ld(offset), RETURN_A], 0, X86_64)


@pytest.mark.parametrize(
    ("code", "operand", "holds"),
    [
        (0x15, 5, True), (0x15, 6, False), (0x25, 4, True), (0x25, 5, False), (0x35, 5, True), (0x35, 6, False),
        (0x45, 4, True), (0x45, 2, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_register", [False, True])
def test_a_jump_compares_the_accumulator(code: int, operand: int, holds: bool, by_register: bool) -> None:
    jump = Instruction(code | 0x08, 1, 0, 0) if by_register else Instruction(code, 1, 0, operand)
    program = [Instruction(bpf.LDX_IMM, 0, 0, operand), ld(0), jump, ret(0), ret(1)]

    assert bpf.run(program, 5, X86_64) == holds


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (0x04, 14), (0x14, 0xFFFFFFFA), (0x24, 40), (0x44, 14), (0x54, 0), (0x64, 4 << 10), (0x74, 0), (0xA4, 14),
    ],
)  # fmt: skip
def test_arithmetic_wraps_at_32_bits(code: int, result: int) -> None:
    assert bpf.run([ld(0), Instruction(code, 0, 0, 10), RETURN_A], 4, X86_64) == result


def test_values_move_between_registers_and_scratch_cells() -> None:
    program = [
        Instruction(bpf.LD_IMM, 0, 0, 7),
        Instruction(bpf.TAX, 0, 0, 0),
        Instruction(bpf.STX, 0, 0, 15),
        Instruction(bpf.LD_IMM, 0, 0, 1),
        Instruction(bpf.ST, 0, 0, 0),
        Instruction(bpf.LDX_MEM, 0, 0, 15),
        Instruction(bpf.TXA, 0, 0, 0),
        Instruction(bpf.ST, 0, 0, 1),
        Instruction(bpf.LD_MEM, 0, 0, 1),
        Instruction(bpf.JA, 0, 0, 1),
        ret(0),
        RETURN_A,
    ]

    assert bpf.run(program, 0, X86_64) == 7


@pytest.mark.parametrize(
    "instruction",
    [
        Instruction(0x8000, 0, 0, 0), Instruction(0x55, 0, 0, 0), Instruction(0x34, 0, 0, 1),
        Instruction(0x84, 0, 0, 0), Instruction(0x28, 0, 0, 0), Instruction(bpf.ST, 0, 0, 16),
        Instruction(bpf.LD_MEM, 0, 0, 16),
    ],
)  # fmt: skip
def test_what_the_kernel_would_not_accept_is_invalid(instruction: Instruction) -> None:
    with pytest.raises(InvalidProgram):
        bpf.run([instruction, ret(ALLOW)], 0, X86_64)


@pytest.mark.parametrize("program", [[], [ld(0)], [Instruction(bpf.JA, 0, 0, 5), ret(ALLOW)]])
def test_a_program_without_an_end_is_invalid(program: list[Instruction]) -> None:
    with pytest.raises(InvalidProgram, match="runs past its end"):
        bpf.run(program, 0, X86_64)
