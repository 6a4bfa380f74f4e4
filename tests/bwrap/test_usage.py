from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bwrap import groups, lines
from bwrap.library import Library
from bwrap.usage import Usage, limit_lines, measured

if TYPE_CHECKING:
    from pathlib import Path

WORKER = Library().load("worker")
RULES = groups.rules(WORKER, "x86_64")


def used(*trace: str) -> Usage:
    usage = Usage(RULES)
    for line in trace:
        usage.take(f"77 {line}")
    return usage


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        ("uname({sysname=\"Linux\"}) = 0", lines.allow("uname")),
        ("getxattr(\"/x\", \"y\", NULL, 0) = -1 ENODATA (No data available)", lines.allow("getxattr")),
        ("ioctl(1, 0x5413 /* TIOCGWINSZ */, {ws_row=1}) = 0", lines.when("ioctl", 1, "TIOCGWINSZ")),
        ("socket(0x2 /* AF_INET */, 0x1 /* SOCK_STREAM */, 0) = 3", lines.when("socket", 0, "AF_INET")),
        (
            "clock_nanosleep(0 /* CLOCK_REALTIME */, 0, {tv_sec=1}, NULL) = 0",
            lines.when("clock_nanosleep", 0, "CLOCK_REALTIME"),
        ),
        ("futex(0x7f, 0x189 /* FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME */, 0) = 0", lines.when("futex", 1, 393)),
        ("clone(child_stack=NULL, flags=0x11 /* SIGCHLD */) = 78", lines.allow("clone")),
    ],
)  # fmt: skip
def test_a_call_that_the_rules_refuse_is_a_line(trace: str, line: lines.Line) -> None:
    assert used(trace, trace).refused == [line]


@pytest.mark.parametrize(
    "trace",
    [
        "read(3, \"\"..., 9) = 9",
        "ioctl(1, 0x5401 /* TCGETS */, 0x7) = -1 ENOTTY (Inappropriate ioctl)",
        "socket(0x1 /* AF_UNIX */, 0x1, 0) = 3",
        "listns(0x1) = -1 ENOSYS (the kernel itself has none)",
        "+++ exited with 0 +++",
        "no line of strace's",
    ],
)  # fmt: skip
def test_a_call_that_is_allowed_or_that_this_kernel_lacks_is_none(trace: str) -> None:
    assert used(trace).refused == []


def test_files_are_known_by_their_paths_from_the_root_on(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    usage = used(
        f'openat(-100 /* AT_FDCWD */, "{tmp_path}/one", 0 /* O_RDONLY */) = 3',
        f'openat(-100 /* AT_FDCWD */, "{tmp_path}/none", 0) = -1 ENOENT (No such file)',
        'openat(3, "beneath", 0) = 4',
        f'chdir("{tmp_path}") = 0',
        'openat(-100 /* AT_FDCWD */, "two", 0) = 3',
        "fchdir(3) = 0",
        'openat(-100 /* AT_FDCWD */, "nobody-knows-where", 0) = 3',
    )
    assert usage.opened == [f"{tmp_path}/one", f"{tmp_path}/two"]


def test_what_is_started_begins_in_the_folder_of_who_starts_it(tmp_path: Path) -> None:
    usage = used(f'chdir("{tmp_path}") = 0', "clone(child_stack=NULL, flags=0x11) = 78")
    usage.take('78 openat(-100 /* AT_FDCWD */, "one", 0) = 3')
    assert usage.opened == [f"{tmp_path}/one"]


def test_a_folder_that_is_only_looked_at_is_not_one_to_show(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    usage = used(f'stat("{tmp_path}", 0x7) = 0', f'stat("{tmp_path}/file", 0x7) = 0')
    assert usage.opened == [f"{tmp_path}/file"]
    assert used(f'openat(-100 /* AT_FDCWD */, "{tmp_path}", 0x10000) = 3').opened == [str(tmp_path)]


@pytest.mark.parametrize(
    "trace",
    [
        'openat(-100 /* AT_FDCWD */, "/x/y", 0x241 /* O_WRONLY|O_CREAT|O_TRUNC */, 0666) = 3',
        'creat("/x/y", 0600) = 3',
        'mkdirat(-100 /* AT_FDCWD */, "/x/y", 0777) = 0',
        'renameat2(-100 /* AT_FDCWD */, "/a", -100 /* AT_FDCWD */, "/x/y", 0) = 0',
        'symlink("/a", "/x/y") = 0',
    ],
)
def test_what_is_changed_is_not_what_is_to_be_shown(trace: str) -> None:
    usage = used(trace, 'openat(-100 /* AT_FDCWD */, "/x/y", 0) = 3')
    assert (usage.changed, usage.opened) == (["/x/y"], [])


def test_what_was_taken_of_each_limit_is_measured() -> None:
    usage = used(
        "brk(NULL) = 0x1000",
        "brk(0x3000) = 0x3000",
        "mmap(NULL, 1073741824, 0x3, 0x22 /* MAP_PRIVATE|MAP_ANONYMOUS */, -1, 0) = 0x7f0000000000",
        "mmap(0x7f0000000000, 4096, 0x3, 0x32 /* MAP_FIXED */, -1, 0) = 0x7f0000000000",
        "munmap(0x7f0000000000, 1073741824) = 0",
        'openat(-100 /* AT_FDCWD */, "/x", 0) = 99',
    )
    taken = measured(usage, 61.5)
    assert taken == {"address_space": (1 << 30) + 0x2000, "open_files": 100, "cpu_time": 62}
    assert limit_lines(taken, WORKER.limits) == [
        lines.limit("address_space", 2 << 30), lines.limit("open_files", 128), lines.limit("cpu_time", 64),
    ]  # fmt: skip
    assert limit_lines(measured(used(), 0.1), WORKER.limits) == []


def test_a_child_begins_with_what_its_parent_has_mapped() -> None:
    usage = used(
        "brk(NULL) = 0x1000", "mmap(NULL, 1048576, 0x3, 0x22, -1, 0) = 0x7f0000000000", "fork() = 78"
    )
    usage.take("78 brk(0x3000) = 0x3000")
    assert usage.mapped == (1 << 20) + 0x2000


@pytest.mark.parametrize("end", ["+++ exited with 0 +++", "+++ killed by SIGKILL +++"])
@pytest.mark.parametrize("told_late", [False, True])
def test_of_a_task_that_is_over_nothing_is_kept(end: str, told_late: bool) -> None:
    usage = used("clone(child_stack=NULL, flags=0x11) = 78")
    usage.take("78 +++ exited with 0 +++")
    before = _kept(usage)
    for pid in map(str, range(1000, 1100)):
        started = f"77 clone(child_stack=NULL, flags=0x11) = {pid}"
        life = [f'{pid} chdir("/x") = 0', f"{pid} brk(NULL) = 0x1000", f"{pid} {end}"]
        for line in [*life, started] if told_late else [started, *life]:
            usage.take(line)
    assert _kept(usage) == before


def test_a_thread_that_takes_its_leaders_place_is_over() -> None:
    usage = used("clone(child_stack=0x7f, flags=0x50f00) = 78")
    before = _kept(usage)
    usage.take("77 +++ superseded by execve in pid 78 +++")
    assert _kept(usage) == before - 3


def _kept(usage: Usage) -> int:
    return sum(len(kept) for kept in (usage._here, usage._sizes, usage._breaks, usage._made, usage._over))


def test_names_that_a_command_makes_up_fill_no_memory() -> None:
    usage = used(*(f'openat(-100 /* AT_FDCWD */, "/{number}", 0) = 3' for number in range(5000)))
    assert len(usage.opened) == 4096


def test_a_name_of_any_bytes_is_known_by_them() -> None:
    usage = used(r'openat(-100 /* AT_FDCWD */, "/a\n\377\"1", 0) = 3')
    assert [os.fsencode(path) for path in usage.opened] == [b'/a\n\xff"1']


@given(
    st.text() | st.from_regex(r"[0-9]* ?(openat|mmap|brk|chdir)\([0-9a-z\"\\,|{}\[\]/* ]*\) += [0-9a-fx-]+")
)
def test_no_line_at_all_stops_the_reading(line: str) -> None:
    Usage(RULES).take(line)


@pytest.mark.parametrize(
    ("trace", "reads"),
    [
        ('read(0, ""..., 4096) = 4', True),
        ('readv(0, [{iov_base=""..., iov_len=9}], 1) = 4', True),
        ('read(0, "", 4096) = 0', False),
        ('read(3, ""..., 4096) = 4', False),
        ("close(0) = 0", False),
    ],
)
def test_that_something_was_read_from_standard_input_is_seen(trace: str, reads: bool) -> None:
    assert used(trace).reads_input is reads
