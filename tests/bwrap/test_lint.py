"""What a reviewer is told of a profile: each warning at its word, and that a warning keeps nobody from running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bwrap import floor, needs
from bwrap.library import Library
from bwrap.lint import Remark, Severity, lint
from tests.bwrap.authored import marked, written

if TYPE_CHECKING:
    from pathlib import Path

    from bwrap.profile import Profile

WARNINGS = {
    "default": (
        '[syscalls]\ndefault = "EPERM"',
        '"EPERM"',
        "libc looks for another way only when it is told ENOSYS",
    ),
    "address_space": ('[limits]\naddress_space = "47M"', '"47M"', "under 48M an interpreter may not start"),
    "cgroup": ("[namespaces]\ncgroup = false", "false", "it would see the host's control groups"),
    "tmpfs": ('[[filesystem.tmpfs]]\npath = "/a"\nsize = "1M"', "[[filesystem.tmpfs]]", "not their number"),
    "read_only": ('[filesystem]\nread_only = ["/srv"]', '"/srv"', "'/srv' and all beneath it can be read"),
    "architecture": ('[syscalls]\nallow = ["pause"]', '"pause"', "there is no 'pause' on aarch64"),
}


def warnings(profile: Profile) -> list[Remark]:
    return [each for each in lint(profile) if each.severity is Severity.WARNING]


@pytest.mark.parametrize("row", WARNINGS)
def test_what_may_surprise_is_a_warning_at_its_word_and_no_breach(tmp_path: Path, row: str) -> None:
    text, word, reason = WARNINGS[row]
    own = written(tmp_path, text)

    (warning,) = warnings(own)

    assert (warning.row, marked(warning.fault)) == (row, word)
    assert reason in warning.fault.reason
    assert (warning.fault.file, warning.fault.line) == (
        f"{tmp_path}/own.toml",
        text.count("\n") + 2 - (row == "tmpfs") * 2,
    )
    assert len(lint(own)) == 1
    floor.require(own)


@pytest.mark.parametrize(
    "text",
    [
        '[limits]\naddress_space = "48M"\nopen_files = 9',
        '[syscalls]\nallow = ["uname", "@wait"]',
        '[[syscalls.when]]\ncall = "uname"\nargument = 1\nequals = [1]',
    ],
)
def test_what_is_usual_is_no_warning(tmp_path: Path, text: str) -> None:
    assert lint(written(tmp_path, text)) == []


@pytest.mark.parametrize("name", ["worker", "strict"])
def test_a_shipped_profile_for_work_has_nothing_to_remark(name: str) -> None:
    assert lint(Library().load(name)) == []


def test_a_file_that_may_be_absent_can_be_read_where_it_is_there(tmp_path: Path) -> None:
    (warning,) = warnings(written(tmp_path, '[filesystem]\nread_only = ["?/srv"]'))

    assert "'/srv' and all beneath it can be read" in warning.fault.reason


def test_each_file_system_and_each_path_has_its_own_warning(tmp_path: Path) -> None:
    text = '[filesystem]\nread_only = ["/a", "/b"]\ntmpfs = [{ path = "/c", size = 1 }, { path = "/d", size = 1 }]'
    own = written(tmp_path, text)

    assert [marked(each.fault) for each in warnings(own)] == [
        '{ path = "/c", size = 1 }', '{ path = "/d", size = 1 }', '"/a"', '"/b"',
    ]  # fmt: skip


def test_a_condition_on_a_call_of_one_architecture_is_a_warning_at_the_call(tmp_path: Path) -> None:
    (warning,) = warnings(written(tmp_path, '[[syscalls.when]]\ncall = "pause"\nargument = 0\nequals = [1]'))

    assert (warning.row, marked(warning.fault)) == ("architecture", '"pause"')


def test_to_take_away_a_call_that_an_architecture_has_not_is_no_warning(tmp_path: Path) -> None:
    assert warnings(written(tmp_path, '[syscalls]\nallow = ["!lstat"]')) == []


def test_too_little_memory_to_start_at_all_is_an_error_and_not_a_warning_too(tmp_path: Path) -> None:
    (remark,) = lint(written(tmp_path, '[limits]\naddress_space = "19M"'))

    assert (remark.severity, remark.row) == (Severity.ERROR, "address_space")


def test_errors_come_first_then_breaches_then_warnings_each_in_its_tables_words(tmp_path: Path) -> None:
    own = written(
        tmp_path,
        '[syscalls]\ndefault = "EPERM"\nallow = ["ptrace", "pause", "!mmap"]\n[namespaces]\nnet = false',
    )

    said = lint(own)

    assert [(each.severity, each.row) for each in said] == [
        (Severity.ERROR, "memory"), (Severity.BREACH, "net namespace"), (Severity.BREACH, "@trace"),
        (Severity.WARNING, "default"), (Severity.WARNING, "architecture"),
    ]  # fmt: skip
    words = [*needs.missing(own), *floor.breaches(own)]
    assert [each.fault.reason for each in said[:3]] == [each.fault.reason for each in words]
