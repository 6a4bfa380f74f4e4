"""From a profile's words on calls to rules: which word counts for which call, and what is said of what is no word."""

from __future__ import annotations

import errno
import tomllib
from typing import TYPE_CHECKING

import pytest

from bwrap import groups, render, seccomp
from bwrap.errors import ProfileError
from bwrap.groups import ARCHITECTURES
from bwrap.library import SHIPPED, Library
from bwrap.lint import lint
from tests.bwrap.authored import marked, refused, written

if TYPE_CHECKING:
    from pathlib import Path

    from bwrap.profile import Profile
    from bwrap.seccomp import Rules

PROFILES = Library().shipped()
REFUSED = tomllib.loads((SHIPPED / "syscalls" / "refused.toml").read_text())
WORD = 0xFFFFFFFF

both = pytest.mark.parametrize("arch", ARCHITECTURES)


def meant(
    folder: Path, text: str, *, extends: str = "worker", name: str = "own", arch: str = "x86_64"
) -> Rules:
    return groups.rules(written(folder, text, extends=extends, name=name), arch)


def word_for(rules: Rules, call: str) -> str:
    """Give what rules say of a call, in a word."""
    if call in rules.allow:
        return "allowed"
    if call in rules.refuse:
        return errno.errorcode[rules.refuse[call]]
    return "on a condition" if call in rules.when else "unknown"


# --- the shipped groups ---


@pytest.mark.parametrize("name", sorted(groups.groups()))
def test_a_group_says_why_names_no_call_twice_and_each_resolves(name: str) -> None:
    assert groups.groups()[name].reason.endswith(".")
    for arch in ARCHITECTURES:
        calls = groups.calls_of(name, arch)
        assert len(calls) == len(set(calls))
        for call in calls:
            assert seccomp.number(call, arch) >= 0


def test_no_call_is_in_a_group_to_allow_and_in_one_to_refuse() -> None:
    for arch in ARCHITECTURES:
        refused_calls = {call for name in REFUSED for call in groups.calls_of(name, arch)}
        allowed = {
            call for name in groups.groups() if name not in REFUSED for call in groups.calls_of(name, arch)
        }
        assert allowed.isdisjoint(refused_calls)


@pytest.mark.claim("I4")
@both
@pytest.mark.parametrize("name", PROFILES)
def test_no_shipped_profile_has_two_words_on_one_call(name: str, arch: str) -> None:
    rules = groups.rules(Library().load(name), arch)

    assert rules.allow.isdisjoint(rules.refuse)
    assert rules.allow.isdisjoint(rules.when)
    assert set(rules.refuse).isdisjoint(rules.when)


@pytest.mark.claim("I4", "I10")
@both
@pytest.mark.parametrize("group", sorted(REFUSED))
def test_every_shipped_profile_refuses_every_call_of_every_refused_group(group: str, arch: str) -> None:
    for name in PROFILES:
        assert set(groups.calls_of(group, arch)) <= set(groups.rules(Library().load(name), arch).refuse)


def test_a_call_that_can_name_another_process_is_allowed_on_its_own_condition_only() -> None:
    rules = groups.rules(Library().load("worker"), "x86_64")

    assert rules.when["prlimit64"].alternatives == ((WORD, 0),)
    assert not rules.when["fcntl"].holds(8)  # F_SETOWN
    assert not rules.when["ioctl"].holds(0x5412)  # TIOCSTI
    assert "getsockopt" not in rules.allow  # SO_PEERPIDFD
    assert rules.when["clock_gettime"].alternatives == ((WORD, 0), (WORD, 1), (WORD, 7))  # (~pid << 3) | 2


def test_a_call_that_reaches_a_page_of_a_file_that_others_are_shown_is_allowed_for_own_memory_only() -> None:
    rules = groups.rules(Library().load("worker"), "x86_64")

    assert rules.when["futex"].alternatives == ((WORD, 128), (WORD, 129), (WORD, 137))
    assert "set_robust_list" not in {*rules.allow, *rules.when}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '[a]\nreason = "Why it is so."\ncalls = ["@b"]\n[b]\nreason = "Why it is so."\ncalls = ["@a"]',
            "are a cycle",
        ),
        ('[a]\nreason = "Why it is so."\ncalls = ["@b"]', "there is no group '@b'"),
        ('[a]\nreason = "Why."\ncalls = []', "at least 10 characters"),
        ('[a]\nreason = "Why it is so."\ncalls = []\nriscv64 = []', "Extra inputs are not permitted"),
        ('[allowed]\nreason = "Why it is so."\ncalls = []', "the group is defined twice"),
    ],
)
def test_a_shipped_group_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (tmp_path / "allowed.toml").write_text('[allowed]\nreason = "Why it is so."\ncalls = []\n')
    (tmp_path / "refused.toml").write_text(text)
    monkeypatch.setattr(groups, "FOLDER", tmp_path)
    groups.groups.cache_clear()
    try:
        with pytest.raises(ProfileError, match=reason):
            groups.calls_of("a", "x86_64")
    finally:
        groups.groups.cache_clear()


def test_constants_are_words_that_are_the_same_wherever_they_can_be_asked() -> None:
    import fcntl
    import socket
    import termios

    constants = groups.constants()

    assert all(0 <= value <= WORD for value in constants.values())
    here = {
        name: getattr(module, name)
        for module in (fcntl, socket, termios)
        for name in constants
        if hasattr(module, name)
    }
    assert len(here) > 20
    assert {name: constants[name] for name in here} == here


# --- which word counts ---

PRECEDENCE = {
    "a call by its name": ('allow = ["listen"]', "listen", "allowed"),
    "a call nobody names": ("", "listen", "unknown"),
    "a name before a group that is refused": ('allow = ["kill"]', "kill", "allowed"),
    "a later word before an inherited one": ('allow = ["@mount"]', "mount", "allowed"),
    "a later group before an inherited name": (
        'refuse = [{ group = "@output", errno = "EPERM" }]', "writev", "EPERM",
    ),
    "a later group before an inherited condition": ('allow = ["@bpf"]', "setsockopt", "allowed"),
    "a later condition before an inherited refusal": (
        'when = [{ call = "kill", argument = 0, equals = [0] }]', "kill", "on a condition"
    ),
    "a later condition before what is allowed": (
        'when = [{ call = "connect", argument = 0, equals = [3] }]', "connect", "on a condition"
    ),
    "an allowed name before an inherited condition": ('allow = ["socket"]', "socket", "allowed"),
    "a name before a group of the same profile": (
        'allow = ["writev"]\nrefuse = [{ group = "@output", errno = "EACCES" }]', "writev", "allowed"
    ),
    "a condition before a group of the same profile": (
        'refuse = [{ group = "@output", errno = "EACCES" }]\nwhen = [{ call = "writev", argument = 0, equals = [0] }]',
        "writev", "on a condition",
    ),
    "a call out of a group": ('allow = ["!connect"]', "connect", "unknown"),
    "a call out of a group that is in a group": ('allow = ["!mmap"]', "mmap", "unknown"),
    "a call out of a group, and out of the calls": ('allow = ["connect", "!connect"]', "connect", "unknown"),
    "a call out of a group and given back": ('allow = ["!connect", "connect"]', "connect", "allowed"),
    "a call out of a group that is named again": ('allow = ["!connect", "@unix-client"]', "connect", "allowed"),
    "a group": ('allow = ["!@unix-client"]', "connect", "unknown"),
    "a group, but not what another group gives": ('allow = ["@output", "!@output"]', "write", "allowed"),
    "a group out of a group": ('allow = ["!@output"]', "write", "unknown"),
    "a group that is refused no more": ('refuse = ["!@mount"]', "mount", "unknown"),
    "a condition that holds no more": ('when = ["!socket"]', "socket", "unknown"),
    "what is refused with another errno": ('refuse = [{ group = "@mount", errno = "EACCES" }]', "mount", "EACCES"),
}  # fmt: skip


@both
@pytest.mark.parametrize("case", PRECEDENCE)
def test_of_several_words_on_a_call_the_later_counts_and_then_the_nearer(
    tmp_path: Path, case: str, arch: str
) -> None:
    text, call, word = PRECEDENCE[case]

    assert word_for(meant(tmp_path, f"[syscalls]\n{text}", arch=arch), call) == word


def test_a_word_said_again_counts_as_said_by_the_last(tmp_path: Path) -> None:
    written(tmp_path, '[syscalls]\nallow = ["acct"]', name="first")
    written(
        tmp_path,
        '[syscalls]\nrefuse = [{ group = "@host", errno = "EACCES" }]',
        extends="first",
        name="second",
    )
    third = meant(tmp_path, '[syscalls]\nallow = ["reboot"]', extends="second", name="third")
    again = meant(tmp_path, '[syscalls]\nallow = ["acct"]', extends="second", name="again")

    assert (word_for(third, "acct"), word_for(again, "acct")) == ("EACCES", "allowed")


def test_a_group_said_again_counts_as_said_by_the_last(tmp_path: Path) -> None:
    refusing = '[syscalls]\nrefuse = [{ group = "@output", errno = "EACCES" }]'
    written(tmp_path, refusing, name="second")
    third = meant(tmp_path, "", extends="second", name="third")
    again = meant(tmp_path, '[syscalls]\nallow = ["@output"]', extends="second", name="again")

    assert (word_for(third, "writev"), word_for(again, "writev")) == ("EACCES", "allowed")


def test_a_call_that_was_taken_away_stays_away_below_until_it_is_given_back(tmp_path: Path) -> None:
    written(tmp_path, '[syscalls]\nallow = ["!connect", "listen"]', name="parent")
    child = meant(tmp_path, '[syscalls]\nallow = ["!listen"]', extends="parent", name="child")
    back = meant(tmp_path, '[syscalls]\nallow = ["connect"]', extends="parent", name="back")

    assert [word_for(child, call) for call in ("connect", "listen")] == ["unknown", "unknown"]
    assert [word_for(back, call) for call in ("connect", "listen")] == ["allowed", "allowed"]


def test_a_call_of_one_architecture_is_allowed_and_taken_away_there_and_nothing_elsewhere(
    tmp_path: Path,
) -> None:
    for text, word in (('allow = ["pause"]', "allowed"), ('allow = ["!arch_prctl"]', "unknown")):
        call = "pause" if "pause" in text else "arch_prctl"
        assert word_for(meant(tmp_path, f"[syscalls]\n{text}"), call) == word
        assert word_for(meant(tmp_path, f"[syscalls]\n{text}", arch="aarch64"), call) == "unknown"


def test_the_word_that_counts_for_a_call_can_be_found(tmp_path: Path) -> None:
    own = written(tmp_path, '[syscalls]\nallow = ["kill", "pause"]')

    assert own.origin(groups.origin(own, "kill")).profile == "own"
    assert own.origin(groups.origin(own, "pause")).profile == "own"
    assert own.origin(groups.origin(own, "mount")).profile == "base"
    assert own.origin(groups.origin(own, "socket")).profile == "worker"
    with pytest.raises(KeyError):
        groups.origin(own, "listen")


@pytest.mark.parametrize(
    ("said", "alternatives"),
    [
        ('equals = ["AF_INET6", 1, "AF_UNIX"]', ((WORD, 1), (WORD, 10))),
        ('has = "CLONE_THREAD"', ((0x10000, 0x10000),)),
        ("equals = [0xffffffff]", ((WORD, WORD),)),
    ],
)
def test_a_condition_compares_the_values_or_the_bits_that_are_named(
    tmp_path: Path, said: str, alternatives: tuple[tuple[int, int], ...]
) -> None:
    rules = meant(tmp_path, f'[[syscalls.when]]\ncall = "listen"\nargument = 2\n{said}')

    assert (rules.when["listen"].argument, rules.when["listen"].alternatives) == (2, alternatives)


# --- what is no word ---

MISTAKES = {
    "an unknown group": (
        'allow = ["@reed-files"]', '"@reed-files"', "no group '@reed-files'; did you mean '@read-files'?",
    ),
    "an unknown group to refuse": (
        'refuse = [{ group = "@mont", errno = "EPERM" }]', '"@mont"', "no group '@mont'; did you mean '@mount'?"
    ),
    "a call to refuse": (
        'refuse = [{ group = "mount", errno = "EPERM" }]', '"mount"',
        "'mount' is no group: a group's name begins with '@'"
    ),
    "an unknown call": (
        'allow = ["opennat"]', '"opennat"', "there is no system call 'opennat'; did you mean 'openat'?",
    ),
    "a call like no other": ('allow = ["frobnicate"]', '"frobnicate"', "there is no system call 'frobnicate'"),
    "a call in capitals": ('allow = ["LISTEN"]', '"LISTEN"', "there is no system call 'LISTEN'"),
    "a call with a second name": ('allow = ["listen\\u0000x"]', '"listen\\u0000x"', "there is no system call"),
    "nothing": ('allow = [""]', '""', "there is no system call ''"),
    "an unknown call to take away": (
        'allow = ["!conect"]', '"!conect"', "no system call 'conect'; did you mean 'connect'?",
    ),
    "an unknown group to take away": (
        'allow = ["!@pyhton"]', '"!@pyhton"', "no group '@pyhton'; did you mean '@python'?",
    ),
    "a call that is not allowed": (
        'allow = ["!listen"]', '"!listen"', "'!listen' removes what is not allowed before it",
    ),
    "a call taken away twice": (
        'allow = ["!connect", "connect", "!@unix-client", "!connect"]', '"!connect"', "stands in this list already",
    ),
    "a group that is not allowed": ('allow = ["!@mount"]', '"!@mount"', "removes what is not allowed before it"),
    "a call taken away before it is allowed": (
        'allow = ["!listen", "listen"]', '"!listen"', "not allowed before it",
    ),
    "a removal of a removal": ('allow = ["!!connect"]', '"!!connect"', "there is no system call '!connect'"),
    "a condition on an unknown call": (
        'when = [{ call = "soket", argument = 0, equals = [1] }]', '"soket"', "did you mean 'socket'?"
    ),
    "a condition on a group": (
        'when = [{ call = "@output", argument = 0, equals = [1] }]', '"@output"',
        "a condition is on one call, not on a group"
    ),
    "no condition": (
        'when = [{ call = "listen", argument = 0 }]', '{ call = "listen", argument = 0 }',
        "say either 'equals' or 'has'"
    ),
    "two conditions": (
        'when = [{ call = "listen", argument = 0, equals = [1], has = 1 }]',
        '{ call = "listen", argument = 0, equals = [1], has = 1 }', "say either 'equals' or 'has'",
    ),
    "bits besides inherited values": (
        'when = [{ call = "socket", has = 1 }]', '{ call = "socket", has = 1 }', "say either 'equals' or 'has'"
    ),
    "no value": (
        'when = [{ call = "listen", argument = 0, equals = [] }]', "[]", "nothing is equal to one of no values",
    ),
    "no bit": ('when = [{ call = "listen", argument = 0, has = 0 }]', "0", "no bit at all is no condition"),
    "a value too large": (
        'when = [{ call = "listen", argument = 0, equals = [1, 0x100000000] }]', "0x100000000",
        "does not fit in the 32 bits"
    ),
    "a value below nothing": (
        'when = [{ call = "listen", argument = 0, equals = [-1] }]', "-1", "-1 does not fit in",
    ),
    "an unknown constant": (
        'when = [{ call = "listen", argument = 0, equals = ["AF_UNX"] }]', '"AF_UNX"',
        "'AF_UNX' is not in profiles/syscalls/constants.toml; did you mean 'AF_UNIX'?",
    ),
    "unknown bits": (
        'when = [{ call = "listen", argument = 0, has = "CLONE_TREAD" }]', '"CLONE_TREAD"',
        "did you mean 'CLONE_THREAD'?"
    ),
    "a call allowed and on a condition": (
        'allow = ["listen"]\nwhen = [{ call = "listen", argument = 0, equals = [1] }]',
        '{ call = "listen", argument = 0, equals = [1] }',
        "the call 'listen' is allowed by 'listen' and allowed on a condition by 'listen': take one of them away",
    ),
    "a call in two groups": (
        'allow = ["@mount"]\nrefuse = [{ group = "@mount", errno = "EPERM" }]', '"@mount"',
        "is allowed by '@mount' and refused with EPERM by '@mount': take one of them away",
    ),
    "a call refused in two ways": (
        'refuse = [{ group = "@python", errno = "EPERM" }, { group = "@output", errno = "EACCES" }]', '"@output"',
        "is refused with EPERM by '@python' and refused with EACCES by '@output': take one of them away",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_what_is_no_word_on_calls_is_named_by_its_place_and_reason(tmp_path: Path, case: str) -> None:
    text, word, reason = MISTAKES[case]
    error = refused(tmp_path, f"[syscalls]\n{text}")
    lines = ["", 'extends = "worker"', "[syscalls]", *text.split("\n")]

    assert reason in error.reason
    assert (error.file, marked(error)) == (f"{tmp_path}/own.toml", word)
    assert error.line is not None
    assert error.column is not None
    assert lines[error.line][error.column - 1 :].startswith(word)


def test_the_conditions_of_a_profile_compare_48_values_at_most_all_together(tmp_path: Path) -> None:
    inherited = [value for row in Library().load("worker").syscalls.when for value in row.equals or ()]
    rest = groups.MOST_VALUES - len(inherited)
    row = '[[syscalls.when]]\ncall = "{call}"\nargument = 5\nequals = {values}\n'
    most = row.format(call="read", values=list(range(rest)))
    assert "read" in meant(tmp_path, most).when

    for one_more in ("equals = [0]", "has = 1"):
        error = refused(tmp_path, f'{most}[[syscalls.when]]\ncall = "write"\nargument = 5\n{one_more}')

        assert (error.line, marked(error)) == (6, "[[syscalls.when]]")
        assert error.reason == "the conditions of a profile compare at most 48 values in all"


def test_what_a_profile_says_of_calls_is_read_once_on_each_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many words break the floor: each asks which word that was, and a daemon waits for the answers."""
    read: list[str] = []
    chosen = groups.chosen

    def counted(profile: Profile, arch: str) -> dict[str, groups.Word]:
        read.append(arch)
        return chosen(profile, arch)

    monkeypatch.setattr(groups, "chosen", counted)
    others = sorted(seccomp.names("x86_64") - groups.allowable())[:256]
    own = written(tmp_path, "[syscalls]\nallow = [\n" + ",\n".join(f'"{call}"' for call in others) + "]")
    remarks = lint(own)
    described = render.described(own)

    assert len(remarks) >= 256
    assert len(described["floor"]["breaches"]) >= 250
    assert own.digest
    assert sorted(read) == sorted(ARCHITECTURES)


def test_two_groups_that_refuse_a_call_alike_are_no_mistake(tmp_path: Path) -> None:
    text = 'refuse = [{ group = "@python", errno = "EACCES" }, { group = "@output", errno = "EACCES" }]'

    assert word_for(meant(tmp_path, f"[syscalls]\n{text}"), "write") == "EACCES"
