from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bwrap import floor, groups, lines
from bwrap.library import Library

ALL = [
    lines.share("net"),
    lines.show("/etc/hosts"),
    lines.show("/etc/host name"),
    lines.folder_in_memory("@scratch"),
    lines.limit("open_files", 128),
    lines.limit("address_space", 1 << 30),
    lines.limit("cpu_time", 120),
    lines.allow("uname"),
    lines.allow("getcwd"),
    lines.when("ioctl", 1, "TIOCGWINSZ"),
    lines.when("ioctl", 1, "FIONREAD"),
    lines.when("futex", 1, 393),
]


@pytest.mark.parametrize(
    ("line", "written"),
    [
        (lines.allow("uname"), '[syscalls]\nallow = ["uname"]'),
        (lines.show("/etc/hosts"), '[filesystem]\nread_only = ["/etc/hosts"]'),
        (lines.limit("open_files", 128), "[limits]\nopen_files = 128"),
        (lines.limit("address_space", 96 << 20), '[limits]\naddress_space = "96M"'),
        (lines.limit("cpu_time", 90), '[limits]\ncpu_time = "90s"'),
        (lines.share("net"), "[namespaces]\nnet = false"),
        (
            lines.when("ioctl", 1, "TIOCGWINSZ"),
            '[[syscalls.when]]\ncall = "ioctl"\nargument = 1\nequals = ["TIOCGWINSZ"]',
        ),
        (
            lines.folder_in_memory("@scratch"),
            '[filesystem]\ntmpfs = [{ path = "@scratch", size = "16M" }]',
        ),
    ],
    ids=str,
)
def test_a_line_is_written_as_it_stands_in_a_profile(line: lines.Line, written: str) -> None:
    assert str(line) == written
    assert tomllib.loads(f'extends = "worker"\n{line}\n')
    assert Library().draft("draft", f'extends = "worker"\n\n{line}\n').chain[-1] == "draft"


def test_a_line_is_told_with_the_header_it_stands_under_since_a_table_stands_in_a_file_once() -> None:
    assert lines.allow("uname").told == 'in [syscalls]: allow = ["uname"]'
    assert lines.when("ioctl", 1, 2).told == (
        'in [[syscalls.when]]: call = "ioctl", argument = 1, equals = [2]'
    )


def test_lines_together_are_the_tables_of_a_profile_that_means_each_of_them() -> None:
    profile = Library().draft("draft", f'extends = "worker"\n{lines.document(ALL)}')
    assert not profile.namespaces.net
    assert profile.filesystem.read_only == ["@python", "/etc/hosts", "/etc/host name"]
    assert [(each.path, each.size) for each in profile.filesystem.tmpfs] == [("@scratch", 16 << 20)]
    assert (profile.limits.open_files, profile.limits.address_space, profile.limits.cpu_time) == (
        128,
        1 << 30,
        120,
    )
    rules = groups.rules(profile, "x86_64")
    assert {"uname", "getcwd"} <= rules.allow
    assert all(
        rules.when["ioctl"].holds(groups.number(name)) for name in ("TCGETS", "TIOCGWINSZ", "FIONREAD")
    )
    assert rules.when["futex"].holds(393)


def test_no_line_is_no_text() -> None:
    assert lines.document([]) == ""


def test_many_entries_stand_one_a_line() -> None:
    text = lines.document([lines.show(f"/opt/some/folder/{number}") for number in range(9)])
    assert text.count("\n") == 12
    assert len(tomllib.loads(text)["filesystem"]["read_only"]) == 9


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_quoted_so_that_toml_gives_it_back(text: str) -> None:
    quoted = lines.quoted(text)
    assert tomllib.loads(f"x = {quoted}") == {"x": text}
    assert "\n" not in quoted
    assert quoted.isprintable()


def test_bytes_that_are_no_utf_8_cannot_stand_in_a_profile() -> None:
    with pytest.raises(ValueError, match="UTF-8"):
        lines.show("/etc/\udcff")


@pytest.mark.parametrize(
    ("now", "raised"),
    [(64, 128), (600, 1024), (1024, 2048)],
    ids=["twice", "the most there may be", "past it"],
)
def test_a_limit_is_raised_to_twice_what_it_is_or_to_the_most_the_floor_allows(now: int, raised: int) -> None:
    limits = Library().load("worker").limits.model_copy(update={"open_files": now})
    assert lines.raised(limits, "open_files") == lines.limit("open_files", raised)
    assert floor.MOST["open_files"][0] == 1024


def test_a_value_is_named_as_constants_name_it() -> None:
    assert lines.constant("ioctl", "TIOCGWINSZ", 0x5413) == "TIOCGWINSZ"
    # The name that strace has is another's there: F_GETFD and AF_UNIX are both 1.
    assert lines.constant("ioctl", "TCGETS", 0x5413) == "TIOCGWINSZ"
    assert lines.constant("ioctl", "SOME_NEW_NAME", 0x9999) == 0x9999
