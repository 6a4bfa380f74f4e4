"""From a profile's rules to the bytes of a seccomp filter: a strict front end over libseccomp.

libseccomp 2.5.4 drops a conditional rule beside an unconditional one of the same call, compares all 64 bits of a
32-bit argument (a high bit slips past a plain comparison) and mis-compiles two-sided ranges. So: each name is
resolved first, a call stands in one place only, conditions are masked comparisons and nothing else, and what was
compiled is run through the simulator and held against `meaning` before anyone uses it. See seccomp(2).

Calls that libseccomp has no name for are answered by a few instructions of our own before its program.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import platform
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bwrap import bpf
from bwrap.bpf import Instruction
from bwrap.errors import ConfinementError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from types import ModuleType

# Of linux/seccomp.h and linux/audit.h.
ALLOW = 0x7FFF0000
KILL = 0x80000000
_RET_ERRNO = 0x00050000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_AUDIT_32_BIT = {"i386": 0x40000003, "arm": 0x40000028}
_HIGHEST_ERRNO = 4094  # libseccomp takes no higher one
_X32_BIT = 0x40000000
_WORD = 0xFFFFFFFF

# Calls that a libseccomp may be too old to know, by number. From 424 on the architectures share one table
# (include/uapi/asm-generic/unistd.h); what has an older number is x86_64's own (syscall_64.tbl). Those two,
# by which the kernel traces programs, recent kernels let past every filter (seen on 6.18): a rule changes nothing.
_NEWER = {
    "cachestat": 451,
    "fchmodat2": 452,
    "map_shadow_stack": 453,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
    "statmount": 457,
    "listmount": 458,
    "lsm_get_self_attr": 459,
    "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
    "mseal": 462,
    "setxattrat": 463,
    "getxattrat": 464,
    "listxattrat": 465,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_getattr": 468,
    "file_setattr": 469,
    "listns": 470,
    "rseq_slice_yield": 471,
}
_NUMBERS = {"x86_64": {**_NEWER, "uretprobe": 335, "uprobe": 336}, "aarch64": _NEWER}
_CALL = re.compile(r"[a-z0-9_]+")
_HIGHEST = 600
_UNNAMED = 4095
_LONGEST = 4096  # BPF_MAXINSNS (linux/bpf_common.h): the kernel takes no longer program


class FilterError(ConfinementError):
    """Rules that cannot be compiled, or a compiled program that does not mean what the rules say."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One argument of a call and the (mask, value) pairs that allow it; all else answers `errno`.

    A pair holds when `argument & mask == value`; masks are at most 32 bits wide, so that high bits of an `int`
    argument, which the kernel drops, change nothing.
    """

    argument: int
    alternatives: tuple[tuple[int, int], ...]
    errno: int = errno.EPERM

    def holds(self, value: int) -> bool:
        """Say whether a call with this argument value is allowed."""
        return any(value & mask == wanted for mask, wanted in self.alternatives)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a profile says of system calls, with every group expanded; names are those of syscalls(2)."""

    default_errno: int
    allow: frozenset[str]
    refuse: Mapping[str, int]
    when: Mapping[str, Condition]


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled filter: its bytes, their SHA-256, and the rules and the architecture they were compiled for."""

    program: bytes
    digest: str
    rules: Rules = field(repr=False)
    arch: str


def architecture() -> str:
    """Give this machine's architecture by the name the profiles use; raises `FilterError` for another."""
    return _supported(platform.machine())


def number(call: str, arch: str) -> int:
    """Give a call's number on an architecture; raises `FilterError` when it has none there."""
    found = _known(call, arch)
    if found is None:
        found = _NUMBERS[_supported(arch)].get(call)
    if found is None:
        raise FilterError(
            f"system call {call!r} is not known on {arch}: correct its name or say where it exists"
        )
    return found


@functools.cache
def names(arch: str) -> frozenset[str]:
    """Give the name of every call that `number` knows on an architecture; raises `FilterError`."""
    return frozenset(_NUMBERS[_supported(arch)]) | frozenset(
        filter(None, (_name(at, arch) for at in range(_HIGHEST + 1)))
    )


def compile_filter(rules: Rules, arch: str | None = None) -> Filter:
    """Compile rules to a program for an architecture (this machine's by default) and check what came out.

    Calls of any other architecture, of those the same machine runs too (i386, x32, 32-bit ARM), are killed.
    Raises `FilterError`.
    """
    arch = _supported(arch or architecture())
    _refuse_bent(rules)
    numbers = {call: number(call, arch) for call in (*rules.allow, *rules.refuse, *rules.when)}
    ours = {call: at for call, at in numbers.items() if _known(call, arch) is None}
    program = _answers(arch, {at: _answer(rules, call) for call, at in ours.items()})
    program += _compiled(rules, arch, except_for=ours)
    check(program, rules, arch)
    return Filter(program, hashlib.sha256(program).hexdigest(), rules, arch)


def meaning(rules: Rules, call: str | None, arguments: tuple[int, ...] = ()) -> int:
    """Give the action the rules ask for on a call of the native architecture; None stands for an unnamed call."""
    if call in rules.allow:
        return ALLOW
    if call is not None and call in rules.refuse:
        return _errno(rules.refuse[call])
    if call is not None and call in rules.when:
        condition = rules.when[call]
        given = arguments[condition.argument] if condition.argument < len(arguments) else 0
        return ALLOW if condition.holds(given) else _errno(condition.errno)
    return _errno(rules.default_errno)


def check(program: bytes, rules: Rules, arch: str) -> None:
    """Run a compiled program on every call the rules name and on foreign ones; raises `FilterError` on a difference.

    This is what stands between a fault of the compiler and a worker: it runs each time a filter is made.
    """
    loaded = bpf.load(program)
    if len(loaded) > _LONGEST:
        raise FilterError(
            f"the compiled filter has {len(loaded)} instructions and the kernel takes {_LONGEST}: "
            "name fewer calls or fewer values in conditions"
        )
    audit = _AUDIT_ARCH[arch]
    numbers = {call: number(call, arch) for call in (*rules.allow, *rules.refuse, *rules.when)}
    for call in (*rules.allow, *rules.refuse):
        _expect(bpf.run(loaded, numbers[call], audit), meaning(rules, call), call)
    for call, condition in rules.when.items():
        for value in _telling_values(condition):
            arguments = tuple(value if i == condition.argument else 0 for i in range(6))
            _expect(bpf.run(loaded, numbers[call], audit, arguments), meaning(rules, call, arguments), call)
    _expect(bpf.run(loaded, _UNNAMED, audit), meaning(rules, None), f"call number {_UNNAMED}")
    foreign = {name: value for name, value in (_AUDIT_ARCH | _AUDIT_32_BIT).items() if name != arch}
    for at in {0, *numbers.values()}:
        for name, value in foreign.items():
            _expect(bpf.run(loaded, at, value), KILL, f"call number {at} of {name}")
        if arch == "x86_64":
            _expect(bpf.run(loaded, at | _X32_BIT, audit), KILL, f"call number {at} of x32")


def complement(condition: Condition) -> Iterator[tuple[int, int]]:
    """Give disjoint (mask, value) pairs that hold exactly where the condition does not.

    libseccomp cannot say "otherwise" for one call, and its NE compares 64 bits; a walk over the bits that matter
    says it with masked comparisons alone. Raises `FilterError` when that is more than a filter can hold.
    """
    relevant = 0
    for mask, _ in condition.alternatives:
        relevant |= mask
    bits = [1 << at for at in range(31, -1, -1) if relevant >> at & 1]
    pending = [(0, 0, list(condition.alternatives), bits)]
    steps = 0
    while pending:
        steps += 1
        if steps > _LONGEST:
            raise FilterError("a condition has too many combinations of bits for one filter: compare fewer")
        mask, value, alternatives, left = pending.pop()
        if not alternatives:
            yield mask, value
            continue
        if any(wanted_mask & ~mask == 0 for wanted_mask, _ in alternatives):
            continue
        bit, rest = left[0], left[1:]
        for chosen in (0, bit):
            alive = [pair for pair in alternatives if not pair[0] & bit or pair[1] & bit == chosen]
            pending.append((mask | bit, value | chosen, alive, rest))


def _answer(rules: Rules, call: str) -> list[Instruction]:
    """Give instructions that answer one call, its condition compared as `Condition.holds` does."""
    if call not in rules.when:
        return [Instruction(bpf.RET_K, 0, 0, meaning(rules, call))]
    condition = rules.when[call]
    tests = [
        each
        for mask, value in condition.alternatives
        for each in (
            Instruction(bpf.LD_ABS, 0, 0, bpf.ARGUMENTS + 8 * condition.argument),
            Instruction(bpf.AND, 0, 0, mask),
            Instruction(bpf.JEQ, 0, 1, value),
            Instruction(bpf.RET_K, 0, 0, ALLOW),
        )
    ]
    return [*tests, Instruction(bpf.RET_K, 0, 0, _errno(condition.errno))]


def _answers(arch: str, answers: Mapping[int, Sequence[Instruction]]) -> bytes:
    """Give instructions that answer some calls by number, each with its own, and let all else go on to what follows.

    Jumps are relative, so that what follows need not know. The architecture comes first: a number means another
    call elsewhere. x32 needs no look, since its numbers have a bit that none here has.
    """
    if not answers:
        return b""
    numbered = [
        each
        for at, answer in sorted(answers.items())
        for each in (Instruction(bpf.JEQ, 1, 0, at), Instruction(bpf.JA, 0, 0, len(answer)), *answer)
    ]
    return bpf.dump(
        [
            Instruction(bpf.LD_ABS, 0, 0, bpf.ARCH),
            Instruction(bpf.JEQ, 1, 0, _AUDIT_ARCH[arch]),
            # A conditional jump reaches 255 instructions, this one any number.
            Instruction(bpf.JA, 0, 0, 1 + len(numbered)),
            Instruction(bpf.LD_ABS, 0, 0, bpf.NUMBER),
            *numbered,
        ]
    )


def _compiled(rules: Rules, arch: str, except_for: Collection[str]) -> bytes:
    """Have libseccomp compile all rules but those on some calls."""
    library = _libseccomp()
    native = library.system_arch()
    default = _errno(rules.default_errno)
    compiler = library.SyscallFilter(default)
    compiler.set_attr(library.Attr.ACT_BADARCH, KILL)
    compiler.set_attr(library.Attr.CTL_OPTIMIZE, 2)
    if _AUDIT_ARCH[arch] != native:
        compiler.add_arch(_AUDIT_ARCH[arch])
        compiler.remove_arch(native)

    def add(action: int, call: str, *arguments: Any) -> None:
        # libseccomp takes this machine's number, or one it made up where there is none, and translates it by
        # name. It refuses a rule that says what the default says.
        if call in except_for or action == default:
            return
        try:
            compiler.add_rule_exactly(action, library.resolve_syscall(native, call), *arguments)
        except OSError as error:
            raise FilterError(
                f"libseccomp refuses the rule on {call!r} for {arch}: {error.strerror}"
            ) from None

    for call in sorted(rules.allow):
        add(ALLOW, call)
    for call, code in sorted(rules.refuse.items()):
        add(_errno(code), call)
    for call, condition in sorted((call, row) for call, row in rules.when.items() if call not in except_for):
        for mask, value in condition.alternatives:
            add(ALLOW, call, library.Arg(condition.argument, library.MASKED_EQ, mask, value))
        for mask, value in complement(condition):
            add(
                _errno(condition.errno), call, library.Arg(condition.argument, library.MASKED_EQ, mask, value)
            )
    return _export(compiler)


def _refuse_bent(rules: Rules) -> None:
    for one, other, words in (
        (set(rules.allow), set(rules.refuse), "allowed and refused"),
        (set(rules.allow), set(rules.when), "allowed with and without a condition"),
        (set(rules.refuse), set(rules.when), "refused and allowed on a condition"),
    ):
        if both := sorted(one & other):
            raise FilterError(f"system call {both[0]!r} is {words}: name it in one place only")
    for code in (rules.default_errno, *rules.refuse.values(), *(row.errno for row in rules.when.values())):
        # The answer 0 would be a call that seems to have worked.
        if not 0 < code <= _HIGHEST_ERRNO:
            raise FilterError(f"{code} is no errno: give one from 1 to {_HIGHEST_ERRNO}")
    for call, condition in rules.when.items():
        if not condition.alternatives or not 0 <= condition.argument < 6:
            raise FilterError(f"the condition on {call!r} compares nothing, or an argument other than 0 to 5")
        for mask, value in condition.alternatives:
            if not 0 < mask <= _WORD or value & ~mask:
                raise FilterError(
                    f"the condition on {call!r} compares more than 32 bits, or bits outside its mask"
                )


def _telling_values(condition: Condition) -> Iterator[int]:
    bases = {0, _WORD, *(value for _, value in condition.alternatives)}
    for base in bases:
        for bit in range(33):
            value = base ^ (1 << bit if bit < 32 else 0)
            yield value
            yield value | 1 << 32
            yield value | 1 << 63


def _expect(got: int, wanted: int, what: str) -> None:
    if got != wanted:
        raise FilterError(
            f"the compiled filter answers {got:#x} to {what} where the profile means {wanted:#x}"
        )


def _errno(code: int) -> int:
    return _RET_ERRNO | code & 0xFFFF


def _supported(arch: str) -> str:
    if arch not in _AUDIT_ARCH:
        raise FilterError(f"no filter can be compiled for {arch}: only x86_64 and aarch64 are known")
    return arch


@functools.cache
def _known(call: str, arch: str) -> int | None:
    """Give the number libseccomp has for a call; a negative one means that it has none on this architecture."""
    if not _CALL.fullmatch(call):
        return None  # C reads a name to its first zero byte: "read\\0" would be a second name of read
    found = int(_libseccomp().resolve_syscall(_AUDIT_ARCH[_supported(arch)], call))
    return found if found >= 0 else None


def _name(number: int, arch: str) -> str | None:
    """Give the name libseccomp has for a number."""
    try:
        return str(_libseccomp().resolve_syscall(_AUDIT_ARCH[arch], number), "ascii")
    except ValueError:
        return None


@functools.cache
def _libseccomp() -> ModuleType:
    """Load libseccomp when it is first needed: a host without it has no filters, but the rest must still work."""
    try:
        import pyseccomp  # noqa: PLC0415
    except (ImportError, RuntimeError, OSError) as error:
        raise FilterError(
            f"libseccomp cannot be loaded ({error}): install the package 'libseccomp2'"
        ) from None
    library: ModuleType = pyseccomp
    return library


def _export(compiler: Any) -> bytes:
    with os.fdopen(os.memfd_create("spl-filter", os.MFD_CLOEXEC), "w+b") as file:
        compiler.export_bpf(file)
        file.seek(0)
        return file.read()
