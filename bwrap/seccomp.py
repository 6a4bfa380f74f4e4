"""From a profile's rules to the bytes of a seccomp filter: a strict front end over libseccomp.

libseccomp 2.5.4 drops a conditional rule beside an unconditional one of the same call, compares all 64 bits of a
32-bit argument (a high bit slips past a plain comparison) and mis-compiles two-sided ranges. So: each name is
resolved first, a call stands in one place only, conditions are masked comparisons and nothing else, and what was
compiled is run through the simulator and held against `meaning` before anyone uses it. See seccomp(2).
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bwrap import bpf
from bwrap.errors import ConfinementError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

# Of linux/seccomp.h and linux/audit.h.
ALLOW = 0x7FFF0000
KILL = 0x80000000
_RET_ERRNO = 0x00050000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_AUDIT_I386 = 0x40000003
_X32_BIT = 0x40000000
_WORD = 0xFFFFFFFF

# Calls newer than libseccomp 2.5.4, by their number in the unified table (include/uapi/asm-generic/unistd.h), which
# both architectures share from 424 on.
_NUMBERS = {
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
}


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
    """A compiled filter: its bytes, their SHA-256 and the rules they were compiled from."""

    program: bytes
    digest: str
    rules: Rules = field(repr=False)


def architecture() -> str:
    """Give this machine's architecture by the name the profiles use; raises `FilterError` for another."""
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        raise FilterError(f"no filter can be compiled for {machine}: only x86_64 and aarch64 are known")
    return machine


def number(call: str, arch: str) -> int:
    """Give a call's number on an architecture; raises `FilterError` when it has none there."""
    try:
        found = int(_libseccomp().resolve_syscall(_AUDIT_ARCH[arch], call))
    except (OSError, ValueError):
        found = -1
    if found < 0:
        found = _NUMBERS.get(call, -1)
    if found < 0:
        raise FilterError(
            f"system call {call!r} is not known on {arch}: correct its name or say where it exists"
        )
    return found


def compile_filter(rules: Rules) -> Filter:
    """Compile rules to a program for this machine's architecture and check what came out.

    Other architectures of the same machine (i386, x32) are killed. Raises `FilterError`.
    """
    arch = architecture()
    _refuse_overlap(rules)
    numbers = {call: number(call, arch) for call in (*rules.allow, *rules.refuse, *rules.when)}
    library = _libseccomp()
    compiler = library.SyscallFilter(_errno(rules.default_errno))
    compiler.set_attr(library.Attr.ACT_BADARCH, KILL)
    compiler.set_attr(library.Attr.CTL_OPTIMIZE, 2)
    for call in sorted(rules.allow):
        compiler.add_rule_exactly(ALLOW, numbers[call])
    for call, code in sorted(rules.refuse.items()):
        compiler.add_rule_exactly(_errno(code), numbers[call])
    for call, condition in sorted(rules.when.items()):
        for mask, value in condition.alternatives:
            argument = library.Arg(condition.argument, library.MASKED_EQ, mask, value)
            compiler.add_rule_exactly(ALLOW, numbers[call], argument)
        for mask, value in complement(condition):
            argument = library.Arg(condition.argument, library.MASKED_EQ, mask, value)
            compiler.add_rule_exactly(_errno(condition.errno), numbers[call], argument)
    program = _export(compiler)
    check(program, rules, arch)
    return Filter(program, hashlib.sha256(program).hexdigest(), rules)


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
    audit = _AUDIT_ARCH[arch]
    for call in (*rules.allow, *rules.refuse):
        _expect(bpf.run(loaded, number(call, arch), audit), meaning(rules, call), call)
    for call, condition in rules.when.items():
        for value in _telling_values(condition):
            arguments = tuple(value if i == condition.argument else 0 for i in range(6))
            _expect(
                bpf.run(loaded, number(call, arch), audit, arguments), meaning(rules, call, arguments), call
            )
    _expect(bpf.run(loaded, 4095, audit), meaning(rules, None), "call number 4095")
    _expect(bpf.run(loaded, 0, _AUDIT_I386), KILL, "the i386 architecture")
    if arch == "x86_64":
        _expect(bpf.run(loaded, number("read", arch) | _X32_BIT, audit), KILL, "the x32 architecture")


def complement(condition: Condition) -> Iterator[tuple[int, int]]:
    """Give disjoint (mask, value) pairs that hold exactly where the condition does not.

    libseccomp cannot say "otherwise" for one call, and its NE compares 64 bits; a walk over the bits that matter
    says it with masked comparisons alone.
    """
    relevant = 0
    for mask, _ in condition.alternatives:
        relevant |= mask
    bits = [1 << at for at in range(31, -1, -1) if relevant >> at & 1]
    pending = [(0, 0, list(condition.alternatives), bits)]
    while pending:
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


def _refuse_overlap(rules: Rules) -> None:
    for one, other, words in (
        (set(rules.allow), set(rules.refuse), "allowed and refused"),
        (set(rules.allow), set(rules.when), "allowed with and without a condition"),
        (set(rules.refuse), set(rules.when), "refused and allowed on a condition"),
    ):
        if both := sorted(one & other):
            raise FilterError(f"system call {both[0]!r} is {words}: name it in one place only")
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
