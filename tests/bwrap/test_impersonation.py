from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

USER, GROUP = 60600, 60600
ROOT = "the ids of another are root's to take"

# What stands before each program: what it does runs in a process of its own, as what it changes would be the tests'.
PREAMBLE = """
import ctypes, errno, os, re, subprocess, sys, threading
from unittest.mock import patch
from bwrap import impersonation
from bwrap.impersonation import impersonate
libc = ctypes.CDLL(None, use_errno=True)
def told_in(text):
    return re.findall(r"^(?:Uid|Gid|Groups|Cap...|NoNewPrivs):.*", text, re.M)
def told():
    return told_in(open("/proc/thread-self/status").read())
def fails(*words):
    raise OSError(errno.ENOENT, "planted")
"""


def play(program: str, *, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program as root in a process of its own; `prefix` goes before its command."""
    if os.getuid() != 0:
        pytest.skip(ROOT)
    return subprocess.run(
        [*prefix, sys.executable, "-c", PREAMBLE + program], capture_output=True, text=True, check=False
    )


def printed(program: str, **given: Any) -> list[str]:
    """Give the lines that a program prints, which ends well."""
    ended = play(program, **given)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def child(*, prefix: Sequence[str] = (), before: str = "") -> dict[str, list[str]]:
    """Give the ids and capabilities of what is started as another, as its own status tells them."""
    lines = printed(
        f"os.setgroups([0, 1, 2])\n{before}\n"
        f"impersonate({USER}, {GROUP}, lambda: subprocess.Popen(['cat', '/proc/self/status'])).wait()",
        prefix=prefix,
    )
    return {name: words.split() for name, _, words in (line.partition(":") for line in lines)}


@pytest.mark.claim("I9")
def test_what_is_started_has_the_ids_of_the_user_alone_and_no_capability_to_use() -> None:
    status = child()

    assert (status["Uid"], status["Gid"], status["Groups"]) == ([str(USER)] * 4, [str(GROUP)] * 4, [])
    assert {name: int(status[name][0], 16) for name in ("CapPrm", "CapEff", "CapAmb")} == {
        "CapPrm": 0,
        "CapEff": 0,
        "CapAmb": 0,
    }


def test_an_ambient_capability_of_root_reaches_nothing_that_is_started() -> None:
    raised = (
        "assert libc.prctl(47, 2, 5, 0, 0) == 0"  # PR_CAP_AMBIENT_RAISE of CAP_KILL, which is inheritable
    )

    status = child(prefix=["setpriv", "--inh-caps=+kill"], before=raised)

    assert [int(status[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [
        1 << 5,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize(
    "act", ["lambda: None", "fails", "lambda: subprocess.Popen(['/nowhere'])", "lambda: sys.exit()"]
)
def test_the_thread_is_who_it_was_whatever_came_of_the_act(act: str) -> None:
    before, after = printed(f"""
os.setgroups([0, 1, 2])
print(told())
try:
    impersonate({USER}, {GROUP}, {act})
except (OSError, SystemExit):
    pass
print(told())
""")

    assert before == after
    assert "Groups:\\t0 1 2" in before


def test_rights_that_were_laid_down_are_not_taken_up_again() -> None:
    # The effective set without CAP_KILL (5), the permitted one with it.
    before, after = printed(f"""
data = ctypes.create_string_buffer(24)
impersonation._call("capget", impersonation._CAPABILITIES_OF_THIS, data)
effective = int.from_bytes(data.raw[:4], sys.byteorder) & ~(1 << 5)
data[:4] = effective.to_bytes(4, sys.byteorder)
impersonation._call("capset", impersonation._CAPABILITIES_OF_THIS, data)
print(told())
impersonate({USER}, {GROUP}, lambda: None)
print(told())
""")

    assert before == after


def test_the_other_threads_are_who_they_were_all_the_while() -> None:
    before, here, there, after = printed(f"""
started, over = threading.Event(), threading.Event()
def other():
    global status
    status = open("/proc/thread-self/status")
    started.set()
    over.wait()
threading.Thread(target=other).start()
started.wait()
def now():
    return told_in(os.pread(status.fileno(), 1 << 16, 0).decode())
print(now())
impersonate({USER}, {GROUP}, lambda: print(os.getresuid(), now(), sep="\\n"))
print(now())
over.set()
""")

    assert here == f"({USER}, {USER}, 0)"
    assert before == there == after


@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        (["setpriv", "--bounding-set=-setuid", "--inh-caps=-setuid"], errno.EPERM),
        (["setpriv", "--bounding-set=-setgid", "--inh-caps=-setgid"], errno.EPERM),
        (["unshare", "--user", "--map-root-user"], errno.EPERM),
    ],
    ids=["no CAP_SETUID", "no CAP_SETGID", "a user namespace of one user"],
)
def test_ids_that_cannot_be_had_leave_the_thread_who_it_was(prefix: list[str], code: int) -> None:
    before, refused, after = printed(
        f"""
print(told())
try:
    impersonate({USER}, {GROUP}, lambda: print("done"))
except OSError as error:
    print(error.errno)
print(told())
""",
        prefix=prefix,
    )

    assert (before, int(refused)) == (after, code)


@pytest.mark.parametrize("dumpable", [0, 1])
def test_the_process_is_not_dumpable_meanwhile_and_afterwards_what_it_was(dumpable: int) -> None:
    assert printed(f"""
assert libc.prctl(4, {dumpable}, 0, 0, 0) == 0
print(impersonate({USER}, {GROUP}, lambda: libc.prctl(3, 0, 0, 0, 0)))
print(libc.prctl(3, 0, 0, 0, 0))
""") == ["0", str(dumpable)]


def test_a_process_that_was_to_end_with_its_parent_still_is() -> None:
    assert printed(f"""
assert libc.prctl(1, 15, 0, 0, 0) == 0
impersonate({USER}, {GROUP}, lambda: None)
found = ctypes.c_int()
libc.prctl(2, ctypes.byref(found), 0, 0, 0)
print(found.value)
""") == ["15"]


def test_a_process_whose_parent_ended_meanwhile_ends_with_it() -> None:
    ended = play(f"""
assert libc.prctl(1, {signal.SIGTERM.value}, 0, 0, 0) == 0
with patch.object(impersonation.os, "getppid", iter([os.getppid(), 1]).__next__):
    impersonate({USER}, {GROUP}, lambda: None)
""")

    assert ended.returncode == -signal.SIGTERM


@pytest.mark.parametrize("call", ["setresuid", "setgroups", "setresgid"])
def test_a_process_that_cannot_go_back_ends_at_once(call: str) -> None:
    ended = play(f"""
given, there = impersonation._call, []
def failing(name, *words):
    if there and name == {call!r}:
        raise OSError(errno.ENOMEM, "planted")
    return given(name, *words)
os.setgroups([0, 1])
with patch.object(impersonation, "_call", failing):
    try:
        impersonate({USER}, {GROUP}, lambda: there.append(True))
    finally:
        print("it goes on")
""")

    assert (ended.returncode, ended.stdout) == (os.EX_OSERR, "")
    assert ended.stderr == "the daemon cannot take its own ids back and ends: [Errno 12] planted\n"


@pytest.mark.claim("I9")
def test_where_a_filter_lets_nobody_change_ids_or_rights_the_thread_goes_on_as_who_it_was() -> None:
    refused = (
        'lambda name, *given: fails() if name in ("setgroups", "setresuid", "capset") else call(name, *given)'
    )
    assert printed(
        f"before, call = told(), impersonation._call\n"
        f"with patch.object(impersonation, '_call', {refused}):\n"
        f"    try:\n        impersonate({USER}, {GROUP}, print)\n"
        f"    except OSError as error:\n        print(error.strerror)\n"
        f"print(told() == before)"
    ) == ["planted", "True"]
