from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from bwrap import floor, lines
from bwrap.advice import CONSTRUCTION, Adviser
from bwrap.library import Library
from bwrap.plan import Places
from bwrap.refusals import Refusals, Refused
from tests.bwrap.stage import Stage, examine
from tests.bwrap.test_refusals import BEGINS, COMMAND, PLAN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.lines import Line


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        os.chmod(stage.folder, 0o755)
        yield stage


def adviser(stage: Stage, name: str = "worker") -> Adviser:
    library = Library()
    return Adviser(library.load(name), library.draft, examine(), Places(stage.home, f"{stage.folder}/w"))


def met(line: str) -> Refused:
    """Give the one refusal that a line of a trace tells of."""
    seen = Refusals(PLAN, COMMAND)
    for each in (*BEGINS, line):
        seen.take(each)
    (found,) = seen.found()
    return found


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        ("uname({sysname=\"Linux\"}) = -1 ENOSYS (x)", '[syscalls]\nallow = ["uname"]'),
        (
            "ioctl(0, 0x5413 /* TIOCGWINSZ */, 0x7) = -1 EPERM (x)",
            '[[syscalls.when]]\ncall = "ioctl"\nargument = 1\nequals = ["TIOCGWINSZ"]',
        ),
        # The profile says nothing of it, and the floor allows it for some values alone.
        (
            "clock_nanosleep(0 /* CLOCK_REALTIME */, 0, {tv_sec=1}, NULL) = -1 ENOSYS (x)",
            '[[syscalls.when]]\ncall = "clock_nanosleep"\nargument = 0\nequals = ["CLOCK_REALTIME"]',
        ),
        ('openat(-100, "/etc/passwd", 0) = -1 ENOENT (x)', '[filesystem]\nread_only = ["/etc/passwd"]'),
        (
            'openat(-100, "/srv/new", 0x41, 0600) = -1 EROFS (x)',
            '[filesystem]\ntmpfs = [{ path = "/srv", size = "16M" }]',
        ),
        ('openat(-100, "/x/y", 0) = -1 EMFILE (x)', "[limits]\nopen_files = 128"),
        ("mmap(NULL, 99, 0x3, 0x22, -1, 0) = -1 ENOMEM (x)", '[limits]\naddress_space = "1G"'),
        ("--- SIGXCPU {si_signo=24, si_code=0x80 /* SI_KERNEL */} ---", '[limits]\ncpu_time = "120s"'),
    ],
)  # fmt: skip
def test_a_refusal_is_told_with_the_line_that_lifts_it(stage: Stage, trace: str, line: str) -> None:
    advice = adviser(stage).on(met(trace))
    assert (str(advice.line), advice.floor) == (line, None)
    wire = advice.wire()
    assert (wire["line"], f"{wire['header']}\n{wire['entry']}") == (line, line)


@pytest.mark.parametrize(
    ("trace", "row"),
    [
        ("kill(1, 9) = -1 EPERM (x)", "@other-process"),
        ("clone(child_stack=NULL, flags=0x11) = -1 EPERM (x)", "@new-task"),
        ("inotify_init1(0) = -1 ENOSYS (x)", "calls"),
        ("ioctl(0, 0x5412 /* TIOCSTI */, [0x1b]) = -1 EPERM (x)", "ioctl"),
        ("socket(0x2 /* AF_INET */, 0x1, 0) = -1 EPERM (x)", "socket"),
        ("connect(3, {sa_family=0x2}, 16) = -1 ENETUNREACH (x)", "net namespace"),
        ('openat(-100, "/proc/self", 0) = -1 ENOENT (x)', "host folders"),
        ('openat(-100, "/dev/new", 0x41, 0600) = -1 EROFS (x)', "host folders"),
        ('openat(-100, "/new", 0x41, 0600) = -1 EROFS (x)', CONSTRUCTION),
        ("+++ killed by SIGSYS +++", CONSTRUCTION),
    ],
)
def test_what_the_floor_forbids_is_told_with_its_row_and_without_a_line(
    stage: Stage, trace: str, row: str
) -> None:
    advice = adviser(stage).on(met(trace))
    assert (advice.line, advice.floor) == (None, row)
    assert advice.reason
    assert row in (CONSTRUCTION, *(each.name for each in floor.FLOOR))


def test_nothing_of_the_home_is_advised_to_be_shown(stage: Stage) -> None:
    for path in (f"{stage.home}/token", stage.home, stage.folder):
        advice = adviser(stage).judge(lines.show(path))
        assert (advice.line, advice.floor) == (None, "home")


def test_what_this_host_could_not_show_is_not_advised(stage: Stage) -> None:
    closed = f"{stage.folder}/closed"
    os.close(os.open(closed, os.O_CREAT, 0o600))
    advice = adviser(stage).judge(lines.show(closed))
    assert (advice.line, advice.floor) == (None, None)
    assert "closed to others" in advice.reason
    assert "pattern" in adviser(stage).judge(lines.show("/etc/a*")).reason


def test_a_limit_at_its_most_is_forbidden_by_its_row(stage: Stage) -> None:
    assert adviser(stage).judge(lines.limit("open_files", 2048)).floor == "open_files"


def test_a_profile_below_the_floor_is_not_what_a_line_is_blamed_for(stage: Stage) -> None:
    assert floor.breaches(Library().load("base"))
    assert adviser(stage, "base").judge(lines.allow("uname")).line == lines.allow("uname")
    assert adviser(stage, "base").judge(lines.allow("ptrace")).floor == "@trace"


@pytest.mark.parametrize(
    "upon", [[lines.folder_in_memory("/etc")], []], ids=["beneath a folder in memory", "by itself"]
)
def test_a_line_is_judged_beside_those_that_are_there(stage: Stage, upon: list[Line]) -> None:
    advice = adviser(stage).judge(lines.show("/etc/passwd"), upon)
    assert (advice.line is None) == bool(upon)
