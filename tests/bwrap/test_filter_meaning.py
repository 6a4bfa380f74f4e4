"""What a compiled filter answers is what its rules mean: for rules of any kind, and for every shipped profile."""

from __future__ import annotations

import errno
from functools import cache
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bwrap import bpf, groups, seccomp
from bwrap.library import Library
from bwrap.seccomp import ALLOW, KILL, Condition, Rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FOREIGN = (
    *AUDIT.values(),
    0x40000003,
    0x40000028,
    0xC00000F3,
    0x80000016,
    0,
    0xFFFFFFFF,
)  # i386, arm, riscv64, s390x
X32 = 0x40000000
WORD = 0xFFFFFFFF
HIGH = (0, 1 << 32, 1 << 63, WORD << 32)
EVERY_NUMBER = range(601)
LIBRARY = Library()

both = pytest.mark.parametrize("arch", AUDIT)
shipped = pytest.mark.parametrize("name", LIBRARY.shipped())


@cache
def rules_of(name: str, arch: str) -> Rules:
    return groups.rules(LIBRARY.load(name), arch)


@cache
def compiled(name: str, arch: str) -> list[bpf.Instruction]:
    return bpf.load(seccomp.compile_filter(rules_of(name, arch), arch).program)


@cache
def named(arch: str) -> Mapping[int, str]:
    return {seccomp.number(call, arch): call for call in seccomp.names(arch)}


def cases(
    rules: Rules, arch: str, values: Iterable[int], everywhere: Iterable[int]
) -> Iterator[tuple[int, int, int]]:
    """Give every call number with an argument and its value: many where there is a condition, few elsewhere."""
    values, everywhere = list(values), list(everywhere)
    for number in EVERY_NUMBER:
        conditional = named(arch).get(number) in rules.when
        for at in range(6) if conditional else (0, 5):
            for value in values if conditional else everywhere:
                yield number, at, value


def differing(
    program: list[bpf.Instruction], rules: Rules, arch: str, tried: Iterable[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Give the cases that a program answers otherwise than its rules mean."""
    return [
        (number, at, value)
        for number, at, value in tried
        if bpf.run(program, number, AUDIT[arch], arguments := alone(at, value))
        != seccomp.meaning(rules, named(arch).get(number), arguments)
    ]


def alone(at: int, value: int) -> tuple[int, ...]:
    return tuple(value if index == at else 0 for index in range(6))


def telling(conditions: Iterable[Condition]) -> set[int]:
    """Give each value a condition names, and its neighbours at a distance of one bit, with and without high bits."""
    near = {
        value ^ (1 << bit if bit >= 0 else 0)
        for condition in conditions
        for _, value in condition.alternatives
        for bit in range(-1, 32)
    }
    return {value | high for value in (*near, 0, WORD) for high in HIGH}


# --- rules of any kind ---

errnos = st.integers(1, 4094)


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    """Give a condition as profiles make them, on whole words or on some bits, and with masks that overlap."""
    bits = draw(st.lists(st.integers(0, 31), min_size=1, max_size=5, unique=True))
    choice = draw(st.sampled_from(([WORD], [sum(1 << bit for bit in bits), *(1 << bit for bit in bits)])))
    masks = draw(st.lists(st.sampled_from(choice), min_size=1, max_size=4))
    pairs = tuple((mask, draw(st.integers(0, WORD)) & mask) for mask in masks)
    return Condition(draw(st.integers(0, 5)), pairs, draw(errnos))


@st.composite
def any_rules(draw: st.DrawFn, arch: str) -> Rules:
    """Give rules on any calls; what is answered may be what the default answers."""
    calls = draw(st.lists(st.sampled_from(sorted(seccomp.names(arch))), max_size=40, unique=True))
    default = draw(errnos)
    allow, refuse, when = set(), {}, {}
    for call in calls:
        match draw(st.sampled_from(("allow", "refuse", "when"))):
            case "allow":
                allow.add(call)
            case "refuse":
                refuse[call] = draw(st.one_of(errnos, st.just(default)))
            case _:
                when[call] = draw(conditions())
    return Rules(default, frozenset(allow), refuse, when)


@pytest.mark.claim("I4")
@both
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_program_answers_what_any_rules_mean(arch: str, data: st.DataObject) -> None:
    rules = data.draw(any_rules(arch))
    values = data.draw(st.lists(st.integers(0, (1 << 64) - 1), max_size=10))
    # `check` is what the next test is about; here the program must be right without it.
    with patch.object(seccomp, "check"):
        program = bpf.load(seccomp.compile_filter(rules, arch).program)

    for call, condition in rules.when.items():
        number = seccomp.number(call, arch)
        tried = [(number, condition.argument, value) for value in (*telling([condition]), *values)]
        assert differing(program, rules, arch, tried) == []
    assert differing(program, rules, arch, cases(rules, arch, [0, *values], (0, (1 << 64) - 1))) == []


@pytest.mark.claim("I4")
@both
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_program_of_other_rules_is_caught_when_it_is_checked(arch: str, data: st.DataObject) -> None:
    rules = data.draw(any_rules(arch).filter(lambda rules: rules.allow))
    call = data.draw(st.sampled_from(sorted(rules.allow)))
    other = Rules(rules.default_errno, rules.allow - {call}, rules.refuse, rules.when)
    program = seccomp.compile_filter(other, arch).program

    with pytest.raises(
        seccomp.FilterError, match=rf"answers 0x5\w{{4}} to {call} where the profile means 0x7fff0000"
    ):
        seccomp.check(program, rules, arch)


@pytest.mark.claim("I4")
@both
def test_a_libseccomp_that_knows_fewer_calls_gives_another_program_of_the_same_meaning(arch: str) -> None:
    known = seccomp._known
    rules = rules_of("worker", arch)
    newer = {
        call: number for call in seccomp.names(arch) if 424 <= (number := seccomp.number(call, arch)) <= 456
    }

    with (
        patch.object(seccomp, "_known", lambda call, arch: None if call in newer else known(call, arch)),
        patch.dict(seccomp._NUMBERS[arch], newer),
    ):
        old = seccomp.compile_filter(rules, arch)

    new = seccomp.compile_filter(rules, arch)
    assert old.digest != new.digest
    assert len(old.program) // 8 > 50
    assert differing(bpf.load(old.program), rules, arch, cases(rules, arch, [0, 1], [0])) == []


# --- the shipped profiles ---


@pytest.mark.claim("I4")
@both
@shipped
def test_a_shipped_filter_means_its_profile_for_every_call_number_and_telling_arguments(
    name: str, arch: str
) -> None:
    rules = rules_of(name, arch)
    named_somewhere = {value for row in rules.when.values() for _, value in row.alternatives}
    values = [value | high for value in (*named_somewhere, 0, 1, 0x5412, WORD) for high in HIGH]

    tried = [*cases(rules, arch, values, values[-12:])]
    for call, condition in rules.when.items():
        number = seccomp.number(call, arch)
        tried += [(number, condition.argument, value) for value in telling([condition])]

    assert {number for number, _, _ in tried} == set(EVERY_NUMBER)
    assert differing(compiled(name, arch), rules, arch, tried) == []


@pytest.mark.claim("I4")
@both
@shipped
def test_a_shipped_filter_kills_every_call_of_a_foreign_architecture(name: str, arch: str) -> None:
    program = compiled(name, arch)

    for number in EVERY_NUMBER:
        for foreign in FOREIGN:
            if foreign != AUDIT[arch]:
                assert bpf.run(program, number, foreign) == KILL
        if arch == "x86_64":
            assert bpf.run(program, number | X32, AUDIT[arch]) == KILL


@both
@pytest.mark.parametrize("group", sorted(groups.groups()))
def test_every_call_of_a_group_exists_where_the_group_says_it_does(group: str, arch: str) -> None:
    calls = groups.calls_of(group, arch)

    assert calls
    assert set(calls) <= seccomp.names(arch)
    assert len(calls) == len(set(calls))


@pytest.mark.claim("I4")
@both
def test_high_bits_that_the_kernel_drops_change_no_answer(arch: str) -> None:
    rules = rules_of("worker", arch)

    for call, condition in rules.when.items():
        number, at = seccomp.number(call, arch), condition.argument
        for value in telling([condition]):
            answer = bpf.run(compiled("worker", arch), number, AUDIT[arch], alone(at, value))
            assert answer == bpf.run(compiled("worker", arch), number, AUDIT[arch], alone(at, value & WORD))
            assert (answer == ALLOW) == condition.holds(value & WORD)


@pytest.mark.claim("I4")
@both
@shipped
def test_nothing_is_allowed_that_no_profile_names(name: str, arch: str) -> None:
    rules = rules_of(name, arch)
    wanted = {*rules.allow, *rules.when}

    for number in EVERY_NUMBER:
        call = named(arch).get(number)
        if call not in wanted:
            answer = bpf.run(compiled(name, arch), number, AUDIT[arch])
            assert answer == 0x00050000 | rules.refuse.get(call or "", errno.ENOSYS)


@pytest.mark.claim("I4")
@both
def test_a_list_that_names_nothing_allows_nothing(arch: str) -> None:
    """An empty list was once taken for no list at all, by a sandbox that then let everything out (CVE-2025-66479)."""
    said = LIBRARY.load("base").syscalls
    assert (said.allow, said.when) == ([], [])

    for number in EVERY_NUMBER:
        for value in (0, 1, WORD):
            assert (
                bpf.run(compiled("base", arch), number, AUDIT[arch], (value,) * 6) & 0xFFFF0000 == 0x00050000
            )
