from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bwrap import bpf, groups, profile, seccomp
from bwrap.seccomp import ALLOW, KILL, Condition, FilterError, Rules

ARCH = seccomp.architecture()
AUDIT = seccomp._AUDIT_ARCH[ARCH]
WORKER = groups.rules(profile.load("worker"), ARCH)
EMPTY = Rules(errno.ENOSYS, frozenset(), {}, {})
ONE = Condition(0, ((0xFFFFFFFF, 1),))


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
def test_the_worker_filter_means_the_worker_profile_for_every_call_and_telling_arguments() -> None:
    loaded = bpf.load(seccomp.compile_filter(WORKER).program)
    names = {seccomp.number(call, ARCH): call for call in (*WORKER.allow, *WORKER.refuse, *WORKER.when)}
    values = [
        value | high
        for value in (0, 1, 2, 16, 0x10000, 0x5412, 0x5413, 0x53564D41, 0xFFFFFFFF)
        for high in (0, 1 << 32, 1 << 63)
    ]

    wrong = [
        (number, at, value)
        for number in range(601)
        for at in range(6)
        for value in values
        if bpf.run(loaded, number, AUDIT, arguments := tuple(value if i == at else 0 for i in range(6)))
        != seccomp.meaning(WORKER, names.get(number), arguments)
    ]

    assert wrong == []
    assert len(names) > 150


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
        ("getsockopt", (3, 1, 4), ALLOW),
        ("getsockopt", (3, 1, 77), answer(errno.EPERM)),
        ("clone3", (), answer(errno.EPERM)),
        ("unshare", (), answer(errno.EPERM)),
        ("mount", (), answer(errno.EPERM)),
        ("ptrace", (), answer(errno.EPERM)),
        ("init_module", (), answer(errno.EPERM)),
        ("kill", (), answer(errno.EPERM)),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (1,), answer(errno.EPERM)),
        ("statmount", (), answer(errno.EPERM)),
        ("inotify_init1", (), answer(errno.ENOSYS)),
        ("listen", (), answer(errno.ENOSYS)),
    ],
)
def test_the_worker_filter_answers(call: str, arguments: tuple[int, ...], wanted: int) -> None:
    loaded = bpf.load(seccomp.compile_filter(WORKER).program)

    assert bpf.run(loaded, seccomp.number(call, ARCH), AUDIT, arguments) == wanted


@pytest.mark.claim("I4")
def test_calls_of_other_architectures_kill() -> None:
    loaded = bpf.load(seccomp.compile_filter(WORKER).program)

    for number in (0, 1, 20, 102):
        assert bpf.run(loaded, number, 0x40000003) == KILL
        assert bpf.run(loaded, number, 0xC00000B7 if ARCH == "x86_64" else 0xC000003E) == KILL
        if ARCH == "x86_64":
            assert bpf.run(loaded, number | 0x40000000, AUDIT) == KILL


def test_a_filter_is_the_same_bytes_each_time_and_within_what_the_kernel_takes() -> None:
    one, other = seccomp.compile_filter(WORKER), seccomp.compile_filter(WORKER)

    assert (one.program, one.digest) == (other.program, other.digest)
    assert len(one.program) // 8 <= 4096


def test_a_call_newer_than_libseccomp_goes_by_its_number() -> None:
    for arch in ("x86_64", "aarch64"):
        assert seccomp.number("listmount", arch) == 458


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
