from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

from bwrap import groups, profile, seccomp
from bwrap.errors import ProfileError
from bwrap.profile import SHIPPED

if TYPE_CHECKING:
    from pathlib import Path

PROFILES = sorted(path.stem for path in SHIPPED.glob("*.toml"))
REFUSED = tomllib.loads((SHIPPED / "syscalls" / "refused.toml").read_text())
ARCHITECTURES = ("x86_64", "aarch64")


def every_call(name: str, arch: str) -> list[str]:
    return groups._calls("test", f"@{name}", arch)


@pytest.mark.parametrize("name", sorted(groups.groups()))
def test_a_group_says_why_names_no_call_twice_and_each_resolves(name: str) -> None:
    assert groups.groups()[name].reason.endswith(".")
    for arch in ARCHITECTURES:
        calls = every_call(name, arch)
        assert len(calls) == len(set(calls))
        for call in calls:
            assert seccomp.number(call, arch) >= 0


@pytest.mark.claim("I4")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", PROFILES)
def test_no_shipped_profile_allows_what_it_refuses(name: str, arch: str) -> None:
    rules = groups.rules(profile.load(name), arch)

    assert rules.allow.isdisjoint(rules.refuse)
    assert rules.allow.isdisjoint(rules.when)
    assert set(rules.refuse).isdisjoint(rules.when)


@pytest.mark.claim("I4", "I10")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("group", sorted(REFUSED))
def test_every_shipped_profile_refuses_every_call_of_every_refused_group(group: str, arch: str) -> None:
    for name in PROFILES:
        rules = groups.rules(profile.load(name), arch)
        assert set(every_call(group, arch)) <= set(rules.refuse)


def test_a_call_that_can_name_another_process_is_allowed_on_its_own_condition_only() -> None:
    rules = groups.rules(profile.load("worker"), "x86_64")

    assert rules.when["prlimit64"].alternatives == ((0xFFFFFFFF, 0),)
    assert not rules.when["fcntl"].holds(8)  # F_SETOWN
    assert not rules.when["ioctl"].holds(0x5412)  # TIOCSTI
    assert not rules.when["getsockopt"].holds(77)  # SO_PEERPIDFD


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('allow = ["@nobody"]', "there is no group '@nobody'"),
        ('[[syscalls.when]]\ncall = "read"\nargument = 0', "say either 'equals' or 'has'"),
        (
            '[[syscalls.when]]\ncall = "read"\nargument = 0\nequals = [1]\nhas = 1',
            "say either 'equals' or 'has'",
        ),
        (
            '[[syscalls.when]]\ncall = "read"\nargument = 0\nequals = ["O_MAYBE"]',
            "the constant 'O_MAYBE' is not in",
        ),
        ('[[syscalls.when]]\ncall = "socket"\nargument = 1\nequals = [1]', "two conditions on one call"),
    ],
)
def test_what_a_profile_says_of_calls_is_refused_with_its_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "own.toml").write_text(f'extends = "worker"\n[syscalls]\n{text}\n')

    with pytest.raises(ProfileError, match=reason):
        groups.rules(profile.load("own", (tmp_path, SHIPPED)), "x86_64")


def test_a_profile_that_allows_what_base_refuses_compiles_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "worker"\n[syscalls]\nallow = ["kill"]\n')

    with pytest.raises(seccomp.FilterError, match="'kill' is allowed and refused: name it in one place only"):
        seccomp.compile_filter(groups.rules(profile.load("own", (tmp_path, SHIPPED)), seccomp.architecture()))


def test_constants_are_words() -> None:
    assert groups.constants()["AF_UNIX"] == 1
    assert all(0 <= value <= 0xFFFFFFFF for value in groups.constants().values())
