from __future__ import annotations

import errno
import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bwrap import bpf, groups, seccomp
from bwrap.library import Library
from bwrap.seccomp import ALLOW, KILL, Condition, FilterError, Rules

if TYPE_CHECKING:
    from collections.abc import Callable

ARCH = seccomp.architecture()
AUDIT = seccomp._AUDIT_ARCH[ARCH]
WORKER = groups.rules(Library().load("worker"), ARCH)
EMPTY = Rules(errno.ENOSYS, frozenset(), {}, {})
ONE = Condition(0, ((0xFFFFFFFF, 1),))
AUDIT_OF = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

both = pytest.mark.parametrize("arch", AUDIT_OF)


def answer(code: int) -> int:
    return 0x00050000 | code


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (replace(EMPTY, allow=frozenset({"read"}), refuse={"read": 1}), "'read' is allowed and refused"),
        (
            replace(EMPTY, allow=frozenset({"socket"}), when={"socket": ONE}),
            "'socket' is allowed with and without a condition",
        ),
        (
            replace(EMPTY, refuse={"socket": 1}, when={"socket": ONE}),
            "'socket' is refused and allowed on a condition",
        ),
        (replace(EMPTY, allow=frozenset({"raed"})), "'raed' is not known on"),
        (replace(EMPTY, refuse={"": 1}), "'' is not known on"),
        (replace(EMPTY, when={"socket": Condition(0, ())}), "'socket' compares nothing"),
        (replace(EMPTY, when={"socket": Condition(6, ((1, 1),))}), "an argument other than 0 to 5"),
        (replace(EMPTY, when={"socket": Condition(-1, ((1, 1),))}), "an argument other than 0 to 5"),
        (replace(EMPTY, when={"socket": Condition(0, ((1 << 32, 1 << 32),))}), "more than 32 bits"),
        (replace(EMPTY, when={"socket": Condition(0, ((0, 0),))}), "more than 32 bits"),
        (replace(EMPTY, when={"socket": Condition(0, ((1, 3),))}), "bits outside its mask"),
    ],
)
def test_rules_that_libseccomp_would_bend_are_refused(rules: Rules, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        seccomp.compile_filter(rules)


@pytest.mark.claim("I4")
@pytest.mark.parametrize(
    ("call", "arguments", "wanted"),
    [
        ("read", (), ALLOW),
        ("socket", (1,), ALLOW),
        ("socket", (1 | 1 << 32,), ALLOW),
        ("socket", (2,), answer(errno.EPERM)),
        ("ioctl", (0, 0x5412), answer(errno.EPERM)),
        ("ioctl", (0, 0x5412 | 1 << 32), answer(errno.EPERM)),
        # A thread's exec would lose the death-of-parent signal.
        ("clone", (0x10000,), answer(errno.EPERM)),
        ("clone", (0x3D0F00,), answer(errno.EPERM)),
        ("setsockopt", (), answer(errno.EPERM)),
        ("getsockopt", (3, 1, 77), answer(errno.ENOSYS)),
        ("clone3", (), answer(errno.ENOSYS)),
        ("unshare", (), answer(errno.EPERM)),
        ("mount", (), answer(errno.EPERM)),
        ("ptrace", (), answer(errno.EPERM)),
        ("init_module", (), answer(errno.EPERM)),
        ("kill", (), answer(errno.EPERM)),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (1,), answer(errno.EPERM)),
        ("statmount", (), answer(errno.EPERM)),
        ("inotify_init1", (), answer(errno.ENOSYS)),
        # Descriptors come and go through these.
        ("sendmsg", (), answer(errno.ENOSYS)),
        ("recvmsg", (), answer(errno.ENOSYS)),
        ("listen", (), answer(errno.ENOSYS)),
    ],
)
def test_the_worker_filter_answers(call: str, arguments: tuple[int, ...], wanted: int) -> None:
    loaded = bpf.load(seccomp.compile_filter(WORKER).program)

    assert bpf.run(loaded, seccomp.number(call, ARCH), AUDIT, arguments) == wanted


def test_a_filter_is_the_same_bytes_each_time_and_within_what_the_kernel_takes() -> None:
    one, other = seccomp.compile_filter(WORKER), seccomp.compile_filter(WORKER)

    assert (one.program, one.digest) == (other.program, other.digest)
    assert len(one.program) // 8 <= 4096


@pytest.mark.parametrize(
    ("call", "arch", "number"),
    [
        ("read", "x86_64", 0), ("read", "aarch64", 63), ("fork", "x86_64", 57), ("listmount", "x86_64", 458),
        ("listmount", "aarch64", 458), ("uretprobe", "x86_64", 335), ("uprobe", "x86_64", 336),
    ],
)  # fmt: skip
def test_a_call_has_a_number_on_each_architecture(call: str, arch: str, number: int) -> None:
    assert seccomp.number(call, arch) == number
    assert call in seccomp.names(arch)


@pytest.mark.parametrize(
    ("call", "arch"),
    [
        ("fork", "aarch64"), ("uprobe", "aarch64"), ("socketcall", "x86_64"), ("recv", "x86_64"), ("raed", "x86_64"),
        ("read\0", "x86_64"), ("READ", "x86_64"), ("", "aarch64"), ("r\udc80ad", "x86_64"),
    ],
)  # fmt: skip
def test_a_call_that_an_architecture_does_not_have_is_named_with_it(call: str, arch: str) -> None:
    assert call not in seccomp.names(arch)
    with pytest.raises(
        FilterError, match=f"^system call {re.escape(repr(call))} is not known on {arch}: correct its name"
    ):
        seccomp.number(call, arch)
    with pytest.raises(FilterError, match=f"is not known on {arch}"):
        seccomp.compile_filter(replace(EMPTY, allow=frozenset({call})), arch)


@both
def test_no_two_names_are_one_call(arch: str) -> None:
    numbers = [seccomp.number(call, arch) for call in seccomp.names(arch)]

    assert len(numbers) == len(set(numbers)) > 300


@both
def test_what_libseccomp_knows_of_the_calls_numbered_here_is_the_same_number(arch: str) -> None:
    for call, number in seccomp._NUMBERS[arch].items():
        assert seccomp._known(call, arch) in (None, number)
        assert seccomp._name(number, arch) in (None, call)


@pytest.mark.parametrize(
    "ask",
    [
        seccomp.names,
        lambda arch: seccomp.number("read", arch),
        lambda arch: seccomp.compile_filter(EMPTY, arch),
    ],
    ids=["names", "number", "compile_filter"],
)
def test_an_architecture_that_is_not_known_is_refused(ask: Callable[[str], object]) -> None:
    with pytest.raises(FilterError, match=r"^no filter can be compiled for riscv64: only x86_64 and aarch64"):
        ask("riscv64")


def test_a_filter_keeps_what_it_was_compiled_from() -> None:
    for arch in AUDIT_OF:
        made = seccomp.compile_filter(EMPTY, arch)
        assert (made.rules, made.arch) == (EMPTY, arch)
        assert made.digest == hashlib.sha256(made.program).hexdigest()
    assert seccomp.compile_filter(EMPTY).arch == ARCH


NEWER = replace(
    EMPTY, allow=frozenset({"mseal", "read"}), refuse={"statmount": errno.EPERM, "listmount": 1000}
)


@pytest.mark.claim("I4")
@both
def test_a_call_that_libseccomp_does_not_know_is_answered_by_its_number_and_nothing_else_is(
    arch: str,
) -> None:
    loaded = bpf.load(seccomp.compile_filter(NEWER, arch).program)
    wanted = {457: answer(errno.EPERM), 458: answer(1000), 462: ALLOW, seccomp.number("read", arch): ALLOW}

    for number in range(601):
        assert bpf.run(loaded, number, AUDIT_OF[arch], [7] * 6) == wanted.get(number, answer(errno.ENOSYS))
        assert bpf.run(loaded, number, 0x40000003) == KILL
        assert bpf.run(loaded, number | 1 << 31, AUDIT_OF[arch]) != ALLOW
        if arch == "x86_64":
            assert bpf.run(loaded, number | 1 << 30, AUDIT_OF[arch]) == KILL


def test_as_many_calls_as_there_ever_will_be_are_answered_by_number() -> None:
    audit = AUDIT_OF["x86_64"]
    answers = {number: [bpf.Instruction(bpf.RET_K, 0, 0, answer(number))] for number in range(1, 1000)}
    program = seccomp._answers("x86_64", answers)
    loaded = [*bpf.load(program), bpf.Instruction(bpf.RET_K, 0, 0, 1)]

    assert [bpf.run(loaded, number, audit) for number in (0, 1, 500, 999, 1000)] == [
        1, answer(1), answer(500), answer(999), 1,
    ]  # fmt: skip
    assert bpf.run(loaded, 500, AUDIT_OF["aarch64"]) == 1


@both
def test_a_condition_holds_on_a_call_that_libseccomp_does_not_know(arch: str) -> None:
    condition = Condition(2, ((0xFFFFFFFF, 7), (0xF0, 0x30)), errno.EACCES)
    program = bpf.load(seccomp.compile_filter(replace(EMPTY, when={"mseal": condition}), arch).program)

    def answered(value: int) -> int:
        return bpf.run(program, seccomp.number("mseal", arch), AUDIT_OF[arch], (1, 1, value))

    assert [answered(value) for value in (7, 7 | 1 << 32, 0x30, 0x3F)] == [seccomp.ALLOW] * 4
    assert [answered(value) for value in (0, 6, 0x71, 0x20)] == [answer(errno.EACCES)] * 4


@pytest.mark.parametrize("code", [0, -1, 4095, 65537])
def test_an_answer_that_would_be_no_errno_is_refused(code: int) -> None:
    for rules in (
        replace(EMPTY, default_errno=code),
        replace(EMPTY, refuse={"read": code}),
        replace(EMPTY, when={"read": replace(ONE, errno=code)}),
    ):
        with pytest.raises(FilterError, match=f"^{code} is no errno: give one from 1 to 4094$"):
            seccomp.compile_filter(rules)


def test_a_filter_longer_than_the_kernel_takes_is_refused() -> None:
    values = tuple((0xFFFFFFFF, at * 0x9E3779B1 & 0xFFFFFFFF) for at in range(20))
    # One argument each: libseccomp writes what is the same for several calls once.
    many = {call: Condition(at, values) for at, call in enumerate(("ioctl", "prctl", "fcntl", "socket"))}

    with pytest.raises(
        FilterError, match=r"^the compiled filter has \d{4} instructions and the kernel takes 4096: "
    ):
        seccomp.compile_filter(replace(EMPTY, when=many))


def test_a_condition_of_endless_combinations_is_refused() -> None:
    condition = Condition(0, tuple((0xF << at, 0x1 << at) for at in range(0, 32, 4)))

    with pytest.raises(FilterError, match=r"^a condition has too many combinations of bits for one filter"):
        seccomp.compile_filter(replace(EMPTY, when={"ioctl": condition}))


@pytest.mark.claim("I4")
def test_a_compiled_program_that_was_tampered_with_anywhere_is_caught() -> None:
    rules = Rules(
        errno.ENOSYS,
        frozenset({"read"}),
        {"ptrace": errno.EPERM},
        {"ioctl": Condition(1, ((0xFFFFFFFF, 0x5401),))},
    )
    program = seccomp.compile_filter(rules).program
    seccomp.check(program, rules, ARCH)
    allow = bpf.RET_K.to_bytes(2, "little") + bytes(2) + ALLOW.to_bytes(4, "little")

    for at in range(0, len(program), 8):
        if program[at : at + 8] != allow:
            with pytest.raises((FilterError, bpf.InvalidProgram)):
                seccomp.check(program[:at] + allow + program[at + 8 :], rules, ARCH)


def test_a_filter_of_other_rules_is_caught() -> None:
    with pytest.raises(
        FilterError, match=r"^the compiled filter answers 0x\w+ to read where the profile means"
    ):
        seccomp.check(seccomp.compile_filter(EMPTY).program, replace(EMPTY, allow=frozenset({"read"})), ARCH)


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    bits = draw(st.lists(st.integers(0, 31), min_size=1, max_size=6, unique=True))
    whole = sum(1 << bit for bit in bits)
    masks = draw(st.lists(st.sampled_from([whole, *(1 << bit for bit in bits)]), min_size=1, max_size=4))
    return Condition(0, tuple((mask, draw(st.integers(0, 0xFFFFFFFF)) & mask) for mask in masks))


@settings(deadline=None, max_examples=150)
@given(conditions(), st.lists(st.integers(0, (1 << 64) - 1), max_size=20))
def test_the_complement_of_a_condition_holds_exactly_where_it_does_not(
    condition: Condition, values: list[int]
) -> None:
    pairs = list(seccomp.complement(condition))
    relevant = [bit for bit in range(32) if any(mask >> bit & 1 for mask, _ in condition.alternatives)]
    every = [
        sum((number >> at & 1) << bit for at, bit in enumerate(relevant))
        for number in range(1 << len(relevant))
    ]

    for value in (*every, *values):
        assert sum(value & mask == wanted for mask, wanted in pairs) == (not condition.holds(value))


@settings(deadline=None, max_examples=40)
@given(conditions())
def test_any_condition_compiles_to_what_it_means(condition: Condition) -> None:
    seccomp.compile_filter(replace(EMPTY, when={"ioctl": condition}))
