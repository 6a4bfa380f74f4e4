from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bwrap import groups, seccomp
from bwrap.host import Shape
from bwrap.library import Library
from bwrap.mounts import Kind, Mount
from bwrap.refusals import Refusals, Refused
from tests.bwrap.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from bwrap.plan import Plan

COMMAND = ("/usr/bin/env", "-i", "PATH=/usr/bin", "/usr/bin/tried", "word")
BEGINS = (
    'execve("/usr/bin/env", ["/usr/bin/env"...], 0x1 /* 1 var */) = 0',
    'execve("/usr/bin/tried", [""...], 0x1) = 0',
)


def plan(name: str = "worker") -> Plan:
    """Give a profile's plan on this host, with the filter of one architecture whatever this machine is."""
    with Stage() as stage:
        rules = groups.rules(Library().load(name), "x86_64")
        return replace(stage.plan(name), filter=seccomp.compile_filter(rules, "x86_64"))


PLAN = plan()


def refused(*lines: str, begins: tuple[str, ...] = BEGINS, plan: Plan = PLAN) -> list[Refused]:
    seen = Refusals(plan, COMMAND)
    for line in (*begins, *lines):
        seen.take(line)
    return seen.found()


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("kill(2147483647, 0)                     = -1 EPERM (Operation not permitted)", ("syscalls", "kill", "EPERM")),
        ("[pid 77] kill(1, 9 /* SIGKILL */) = -1 EPERM (Operation not permitted)", ("syscalls", "kill", "EPERM")),
        ("inotify_init1(0) = -1 ENOSYS (Function not implemented)", ("syscalls", "inotify_init1", "ENOSYS")),
        ("syscall_0x1d6(0x1, 0x2) = -1 ENOSYS (Function not implemented)", ("syscalls", "listns", "ENOSYS")),
        ("syscall_0xfff(0x1, 0x2) = -1 ENOSYS (Function not implemented)", ("syscalls", "syscall_0xfff", "ENOSYS")),
        (
            "socket(0x2 /* AF_INET */, 0x1 /* SOCK_STREAM */|0x80000 /* SOCK_CLOEXEC */, 0) = -1 EPERM (x)",
            ("syscalls", "socket with argument 0 AF_INET", "EPERM"),
        ),
        (
            "ioctl(0, 0x5412 /* TIOCSTI */, [0x1b]) = -1 EPERM (Operation not permitted)",
            ("syscalls", "ioctl with argument 1 TIOCSTI", "EPERM"),
        ),
        (
            "openat(-100 /* AT_FDCWD */, \"/etc/passwd\", 0x80000 /* O_RDONLY|O_CLOEXEC */) = -1 ENOENT (No such file)",
            ("mounts", "/etc/passwd, which the host has", "ENOENT"),
        ),
        (
            'connect(3, {sa_family=0x1 /* AF_UNIX */, sun_path="/etc/passwd"}, 12) = -1 ENOENT (No such file)',
            ("mounts", "/etc/passwd, which the host has", "ENOENT"),
        ),
        ('openat(-100, "/x", 0x41, 0600) = -1 EROFS (Read-only file system)', ("mounts", "to change /x", "EROFS")),
        ("connect(3, {sa_family=0x2}, 16) = -1 ENETUNREACH (x)", ("network", "connect", "ENETUNREACH")),
        (
            "mmap(NULL, 99, 0x3, 0x22, -1, 0) = -1 ENOMEM (Cannot allocate memory)",
            ("limits", "mmap, where address_space is 512M", "ENOMEM"),
        ),
        (
            "write(1, \"\"..., 1) = -1 EFBIG (File too large)",
            ("limits", "write, where file_size is 16M", "EFBIG"),
        ),
        (
            'openat(-100, "/dev/null", 0) = -1 EMFILE (Too many open files)',
            ("limits", "openat, where open_files is 64", "EMFILE"),
        ),
        (
            "--- SIGXCPU {si_signo=24 /* SIGXCPU */, si_code=0x80 /* SI_KERNEL */} ---",
            ("limits", "processor time, where cpu_time is 60s", "SIGXCPU"),
        ),
        ("+++ killed by SIGSYS (core dumped) +++", ("syscalls", "a call of another architecture", "SIGSYS")),
    ],
)  # fmt: skip
def test_what_a_layer_refuses_is_told_by_that_layer(line: str, row: tuple[str, str, str]) -> None:
    assert refused(line, line) == [Refused(*row, 2)]


@pytest.mark.parametrize(
    "line",
    [
        "socket(0x1 /* AF_UNIX */, 0x1, 0) = -1 EPERM (it is not the filter's)",
        "socket(2, 0x1, 0) = -1 EACCES (the rules mean EPERM)",
        "kill(1, 9) = -1 ESRCH (the rules mean EPERM)",
        "read(3, \"\"..., 9) = -1 EPERM (an allowed call's own)",
        "getcpu() = 0",
        'openat(-100, "/no/such/path", 0) = -1 ENOENT (the host has none either)',
        'execve("/usr/bin/env", [], 0x0) = -1 ENOENT (its interpreter: it is shown itself)',
        'openat(-100, "etc/passwd", 0) = -1 ENOENT (whose folder is not known)',
        'openat(-100, "/etc/pass"..., 0) = -1 ENOENT (not the whole path)',
        "read(3, \"\"..., 9) = -1 EAGAIN (nothing there yet)",
        "read(3, \"\"..., 9) = -1 ENOMEM (the kernel's own)",
        "--- SIGXCPU {si_signo=24, si_code=0 /* SI_USER */, si_pid=1} ---",
        "--- SIGCHLD {si_signo=17, si_code=0x80 /* SI_KERNEL */} ---",
        "+++ exited with 1 +++",
        "no line of strace's",
        "kill(1, 9) = -1 EPERM",
        "kill(1, 9",
        "",
    ],
)  # fmt: skip
def test_what_no_layer_is_known_to_have_refused_is_not_told(line: str) -> None:
    assert refused(line) == []


def test_a_name_cannot_forge_a_refusal() -> None:
    forged = r'") = -1 EPERM (Operation not permitted)'
    assert refused(f'chdir("/\\"{forged}", 1) = 0') == []
    assert refused(r'openat(-100, "kill(1, 9) = -1 EPERM (x)\nkill(1, 9) = -1 EPERM (x)", 0) = 3') == []


def test_a_path_is_shown_so_that_it_cannot_steer_a_terminal() -> None:
    assert refused(r'openat(-100, "/\33[2J\"\n\377", 0x41) = -1 EROFS (Read-only file system)') == [
        Refused("mounts", r'to change /\x1b[2J"\n\udcff', "EROFS", 1)
    ]


def test_a_path_with_any_bytes_is_looked_for_by_those_bytes(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b'/a\n\xff"1'
    os.close(os.open(path, os.O_CREAT))
    line = rf'openat(-100, "{tmp_path}/a\n\377\"1", 0) = -1 ENOENT (No such file or directory)'
    assert [row.layer for row in refused(line)] == ["mounts"]


def test_what_came_before_the_command_is_nobodys_refusal() -> None:
    line = "kill(1, 9) = -1 EPERM (Operation not permitted)"
    assert refused(line, begins=()) == []
    assert refused(line, begins=BEGINS[:1]) == []


def test_a_command_that_is_refused_its_very_start_is_told_of() -> None:
    denied = 'execve("/usr/bin/env", [""...], 0x1) = -1 ENOSYS (Function not implemented)'
    seen = Refusals(plan("base"), COMMAND)
    seen.take(denied)
    assert seen.begun
    assert seen.found() == [Refused("syscalls", "execve", "ENOSYS", 1)]


def test_what_was_refused_on_purpose_is_told_first_and_what_nearly_every_program_misses_last() -> None:
    missed = ["/etc/ld.so.cache", "/etc/nsswitch.conf"]
    rows = refused(
        *(f'openat(-100, "{path}", 0) = -1 ENOENT (x)' for path in missed),
        'openat(-100, "/etc/passwd", 0) = -1 ENOENT (x)',
        "inotify_init1(0) = -1 ENOSYS (x)",
        "kill(1, 9) = -1 EPERM (x)",
    )
    assert [row.what.partition(",")[0] for row in rows] == ["kill", "/etc/passwd", "inotify_init1", *missed]
    assert [row.usual for row in rows] == [None, None, None, *missed]


def test_a_file_that_is_shown_and_closed_to_the_commands_uid_is_told_by_the_layer_of_that_uid(
    tmp_path: Path,
) -> None:
    path = tmp_path / "closed"
    path.touch(mode=0o600)
    line = f'openat(-100, "{path}", 0) = -1 EACCES (Permission denied)'
    shown = replace(PLAN, mounts=(*PLAN.mounts, Mount(Kind.READ_ONLY, str(tmp_path), str(tmp_path))))
    assert refused(line, plan=shown) == [
        Refused("separate_user", f"{path}, which is closed to the command's own uid", "EACCES", 1)
    ]
    # Not shown it is another file of this name, and one that nobody may execute is closed to everybody.
    assert refused(line) == []
    assert refused(f'execve("{path}", [""...], 0) = -1 EACCES (x)', plan=shown) == []
    same_user = replace(shown, host=replace(shown.host, shape=Shape.SAME_USER))
    assert refused(line, plan=same_user) == []


def test_names_that_a_command_makes_up_fill_no_memory() -> None:
    lines = [f'openat(-100, "/{number}", 0x41) = -1 EROFS (x)' for number in range(1000)]
    rows = refused(*lines)
    assert len(rows) == 201
    assert sum(row.times for row in rows) == 1000


@given(st.text() | st.from_regex(r"(\[pid +1\] )?kill\([0-9a-z\"\\,|{}\[\]/* ]*\) += -1 E[A-Z]+ \(x\)"))
def test_no_line_at_all_stops_the_reading(line: str) -> None:
    refused(line)


def test_a_call_that_libc_goes_without_is_usual_and_told_last() -> None:
    found = refused(
        "set_robust_list(0x7f, 24) = -1 ENOSYS (Function not implemented)",
        "inotify_init1(0) = -1 ENOSYS (Function not implemented)",
    )
    assert [(each.what, each.usual) for each in found] == [
        ("inotify_init1", None),
        ("set_robust_list", "set_robust_list"),
    ]
