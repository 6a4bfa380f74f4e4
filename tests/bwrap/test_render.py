from __future__ import annotations

import errno
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bwrap import arguments, groups, render, seccomp
from bwrap import profile as profiles
from bwrap.library import Library
from bwrap.merge import dotted
from bwrap.profile import Filesystem, Limits, Profile, Tmpfs
from bwrap.seccomp import Condition, Rules
from tests.bwrap.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

SHIPPED = Library().shipped()
THREADS = """
[syscalls]
[[syscalls.when]]
call = "clone"
argument = 0
has = "CLONE_THREAD"
"""


def own(folder: Path, text: str, name: str = "own") -> Profile:
    (folder / f"{name}.toml").write_text(text)
    return Library(folder).load(name)


def compiled(profile: Profile, arch: str) -> seccomp.Filter:
    return seccomp.compile_filter(groups.rules(profile, arch), arch)


def understood(lines: list[str]) -> Rules:
    """Read the pseudo-code back; a call that is named twice fails."""
    allow: list[str] = []
    refuse: dict[str, int] = {}
    when: dict[str, Condition] = {}
    default = 0
    for line in lines:
        if line.startswith(("#", "unless")):
            continue
        if found := re.fullmatch(r"allow (.*)", line):
            allow += found[1].split(", ")
        elif found := re.fullmatch(r"refuse (.*): (E[A-Z]+)", line):
            for call in found[1].split(", "):
                assert call not in refuse
                refuse[call] = getattr(errno, found[2])
        elif found := re.fullmatch(
            r"if (\w+)\(argument (\d) (==|in|has) (.*)\): allow, else (E[A-Z]+)", line
        ):
            assert found[1] not in when
            numbers = [_number(word) for word in re.split(r", | or ", found[4].strip("()"))]
            pairs = tuple((number if found[3] == "has" else 0xFFFFFFFF, number) for number in numbers)
            when[found[1]] = Condition(int(found[2]), pairs, getattr(errno, found[5]))
        else:
            found = re.fullmatch(r"otherwise: (E[A-Z]+)", line)
            assert found is not None, line
            default = getattr(errno, found[1])
    assert len(allow) == len(set(allow))
    return Rules(default, frozenset(allow), refuse, when)


def _number(word: str) -> int:
    return int(word) if word.isdigit() else groups.constants()[word]


@pytest.mark.parametrize("arch", groups.ARCHITECTURES)
@pytest.mark.parametrize("name", SHIPPED)
def test_the_pseudo_code_of_a_filter_says_all_of_its_rules_once_and_nothing_else(
    name: str, arch: str
) -> None:
    profile = Library().load(name)
    filter_ = compiled(profile, arch)
    lines = render.filter_lines(profile, filter_)
    assert understood(lines) == filter_.rules
    assert f"unless {arch}: kill" in lines


def test_bits_that_must_be_set_are_said_by_name(tmp_path: Path) -> None:
    profile = own(tmp_path, f'extends = "worker"\n{THREADS}')
    filter_ = compiled(profile, "x86_64")
    lines = render.filter_lines(profile, filter_)
    assert "if clone(argument 0 has CLONE_THREAD): allow, else EPERM" in lines
    assert understood(lines) == filter_.rules


def test_a_call_is_shown_with_the_reason_of_its_group_and_one_of_no_group_as_the_profiles_own(
    tmp_path: Path,
) -> None:
    profile = own(tmp_path, 'extends = "worker"\n[syscalls]\nallow = ["io_setup"]\n')
    lines = render.filter_lines(profile, compiled(profile, "x86_64"))
    assert lines[lines.index("allow io_setup") - 1] == "# Named by the profile itself."
    at = next(i for i, line in enumerate(lines) if line.startswith("refuse") and "ptrace" in line)
    assert lines[at - 1] == f"# @trace: {groups.groups()['trace'].reason}"


@pytest.mark.parametrize("home", ["home", "with space and 'quote'", "line\nend", "\udcff\udcfe"])
def test_the_options_stand_one_a_line_as_a_shell_reads_them(home: str) -> None:
    with Stage(home) as stage:
        plan = stage.plan()
        options = list(arguments.arguments(plan))
        lines = render.option_lines(options)
    assert shlex.split("\n".join(lines)) == options
    assert len(lines) == sum(option.startswith("--") for option in options)


def test_a_plan_is_rendered_with_the_digests_that_a_receipt_states() -> None:
    with Stage() as stage:
        plan = stage.plan()
        document = render.described(Library().load("worker"), plan)
    assert document["argv_digest"] == arguments.digest(arguments.arguments(plan), plan.command)
    assert document["filter"]["digest"] == plan.filter.digest
    assert document["limits"]["RLIMIT_AS"] == plan.limits.address_space
    assert document["command"] == list(plan.command)


def test_optional_files_that_are_absent_are_said(tmp_path: Path) -> None:
    with Stage() as stage:
        plan = replace(stage.plan(), absent=("/opt/nothing",))
        assert render.rendered(Library().load("worker"), plan)["absent"] == ["/opt/nothing"]


def test_every_value_is_shown_with_the_profile_the_file_and_the_line_that_said_it(tmp_path: Path) -> None:
    profile = own(tmp_path, 'extends = "strict"\ndescription = "mine"\n\n[limits]\nopen_files = 32\n')
    document = render.described(profile)
    assert document["extends"] == ["strict", "worker", "base"]
    assert document["digest"] == profile.digest
    rows = {row["path"]: row for row in document["values"]}
    assert rows["limits.open_files"] == {
        "path": "limits.open_files",
        "value": 32,
        "profile": "own",
        "file": str(tmp_path / "own.toml"),
        "line": 5,
    }
    assert rows["limits.address_space"]["profile"] == "strict"
    assert rows["syscalls.default"]["profile"] == "base"
    assert {dotted(path) for path, _, _ in profile.values()} == set(rows)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_values_that_are_shown_are_the_whole_profile(name: str) -> None:
    profile = Library().load(name)
    rows = {row["path"]: row["value"] for row in render.described(profile)["values"]}
    said = profile.model_dump(exclude={"name"}, exclude_none=True)
    flat = dict(_flat(said, ()))
    assert rows == {dotted(path): value for path, value in flat.items()} | {
        path: [] for path, value in rows.items() if value == []
    }


def _flat(value: object, path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], object]]:
    if isinstance(value, dict | list) and value:
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        return [row for step, each in inner for row in _flat(each, (*path, step))]
    return [] if value == [] else [(path, value)]


def test_a_profile_below_the_floor_is_shown_with_each_breach_and_its_place(tmp_path: Path) -> None:
    profile = own(tmp_path, 'extends = "worker"\n[namespaces]\nnet = false\n')
    said = render.described(profile)["floor"]
    (breach,) = said["breaches"]
    assert not said["ok"]
    assert (breach["layer"], breach["line"], breach["column"]) == ("network", 3, 7)
    assert breach["file"] == str(tmp_path / "own.toml")
    assert render.described(Library().load("worker"))["floor"] == {"ok": True, "breaches": []}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [('"64M"', "64M"), ("67108864", "64M"), ("1073741824", "1G"), ("67108865", "67108865"), ("65536", "64K")],
)
def test_a_size_is_written_as_a_person_does(tmp_path: Path, said: str, wanted: str) -> None:
    profile = own(tmp_path, f'extends = "worker"\n[limits]\naddress_space = {said}\n')
    assert render.written(profile, ("limits", "address_space"), _said(profile, "address_space")) == wanted


def test_a_duration_is_written_in_seconds_or_as_it_was_said(tmp_path: Path) -> None:
    for said, wanted in (("90", "90s"), ('"2m"', "2m")):
        profile = own(tmp_path, f'extends = "worker"\n[limits]\ncpu_time = {said}\n')
        assert render.written(profile, ("limits", "cpu_time"), _said(profile, "cpu_time")) == wanted


def _said(profile: Profile, name: str) -> object:
    return next(said for path, said, _ in profile.values() if path == ("limits", name))


def test_no_size_and_no_duration_of_the_format_is_shown_as_a_bare_number() -> None:
    def read_by(validator: object) -> set[str]:
        return {
            name
            for model in (Limits, Tmpfs, Filesystem)
            for name, field in model.model_fields.items()
            if any(getattr(mark, "func", None) is validator for mark in field.metadata)
        }

    assert read_by(profiles._size) == render._SIZES
    assert read_by(profiles._seconds) == render._DURATIONS


def test_a_profile_that_cannot_be_used_is_listed_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text('extends = "worker"\n[limits]\nopen_files = "many"\n')
    (tmp_path / "Odd Name.toml").write_text("")
    own(tmp_path, 'extends = "worker"\ndescription = "good"\n', "good")
    rows = {row["name"]: row for row in render.listed(Library(tmp_path))}
    assert list(rows) == ["base", "strict", "worker", "Odd Name", "broken", "good"]
    assert {name: row["floor"] for name, row in rows.items()} == {
        "base": "below", "strict": "ok", "worker": "ok", "Odd Name": None, "broken": None, "good": "ok",
    }  # fmt: skip
    assert (rows["good"]["source"], rows["good"]["error"]) == ("own", None)
    assert rows["good"]["digest"] == Library(tmp_path).load("good").digest
    assert rows["broken"]["digest"] is None
    assert (rows["broken"]["error"]["line"], rows["broken"]["error"]["column"]) == (3, 14)
    assert "a name is" in rows["Odd Name"]["error"]["message"]


def test_a_file_that_bears_a_shipped_name_is_a_row_beside_the_shipped_profiles(tmp_path: Path) -> None:
    (tmp_path / "strict.toml").write_text('extends = "worker"\n')
    shipped, stray = (row for row in render.listed(Library(tmp_path)) if row["name"] == "strict")
    assert (shipped["source"], shipped["error"], shipped["floor"]) == ("shipped", None, "ok")
    assert (stray["source"], stray["digest"], stray["floor"]) == ("own", None, None)
    assert f"{tmp_path}/strict.toml" in stray["error"]["message"]


def test_what_lint_says_beside_the_breaches_stands_in_the_description(tmp_path: Path) -> None:
    profile = own(tmp_path, 'extends = "worker"\n[syscalls]\nallow = ["ptrace"]\ndefault = "EPERM"\n')
    document = render.described(profile)
    assert [(row["severity"], row["row"], row["line"]) for row in document["remarks"]] == [
        ("warning", "default", 4)
    ]
    assert not document["floor"]["ok"]
