"""The self-probe, unconfined: each operation reports what the kernel answered, and none stops the rest."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import socket
from typing import TYPE_CHECKING

from spl.worker.probe import attempt_all

if TYPE_CHECKING:
    from pathlib import Path


X86 = platform.machine() == "x86_64"
GETPID, CLOSE, OPENAT, CLONE = (39, 3, 257, 56) if X86 else (172, 57, 56, 220)
AT_FDCWD = -100


def attempt(*attempt: object) -> object:
    return attempt_all([["it", *attempt]])["it"]


def test_a_system_call_gives_its_value() -> None:
    assert attempt("syscall", GETPID) == os.getpid()


def test_a_system_call_that_fails_gives_its_errno_as_a_negative_number() -> None:
    assert attempt("syscall", CLOSE, -1) == -errno.EBADF


def test_a_system_call_takes_strings_nulls_and_whole_words(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")

    assert attempt("syscall", OPENAT, AT_FDCWD, absent, os.O_RDONLY, 0) == -errno.ENOENT
    assert attempt("syscall", OPENAT, AT_FDCWD, None, os.O_RDONLY, 0) == -errno.EFAULT
    # An address of 64 bits: cut to 32 it would be NULL, and munmap of NULL succeeds.
    munmap = 11 if X86 else 215
    assert attempt("syscall", munmap, 1 << 63, 4096) == -errno.EINVAL


def test_a_descriptor_from_a_system_call_is_closed_again(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")

    descriptor = attempt("syscall_fd", OPENAT, AT_FDCWD, str(tmp_path), os.O_RDONLY, 0)

    assert isinstance(descriptor, int)
    assert descriptor > 2
    assert os.listdir("/proc/self/fd") == before


def test_a_process_that_an_attempt_made_ends_and_reports_nothing() -> None:
    child = attempt("syscall", CLONE, int(signal.SIGCHLD), None, None, None, None)

    assert isinstance(child, int)
    assert child > 0
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_opening_gives_nothing_or_the_errno(tmp_path: Path) -> None:
    assert attempt("open", str(tmp_path / "new"), os.O_WRONLY | os.O_CREAT) == 0
    assert attempt("open", str(tmp_path / "absent"), os.O_RDONLY) == -errno.ENOENT
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_listing_gives_sorted_names_or_the_errno(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()

    assert attempt("list", str(tmp_path)) == ["a", "b", "c"]
    assert attempt("list", str(tmp_path / "absent")) == -errno.ENOENT


def test_limits_are_given_by_name_with_minus_one_for_none() -> None:
    assert attempt("limits", ["RLIMIT_AS", "RLIMIT_NOFILE"]) == {
        "RLIMIT_AS": list(resource.getrlimit(resource.RLIMIT_AS)),
        "RLIMIT_NOFILE": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
    }
    assert resource.RLIM_INFINITY == -1


def test_connecting_gives_nothing_or_the_errno(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert attempt("connect", path) == -errno.ENOENT
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        assert attempt("connect", path) == -errno.ECONNREFUSED
        listener.listen(1)
        assert attempt("connect", path) == 0


def test_the_death_of_parent_signal_is_the_one_that_was_set() -> None:
    libc = ctypes.CDLL(None)
    assert attempt("pdeathsig") == 0
    libc.prctl(1, signal.SIGUSR1, 0, 0, 0)
    try:
        assert attempt("pdeathsig") == signal.SIGUSR1
    finally:
        libc.prctl(1, 0, 0, 0, 0)


def test_ids_are_the_three_uids_the_three_gids_pid_and_parent() -> None:
    assert attempt("ids") == [*os.getresuid(), *os.getresgid(), os.getpid(), os.getppid()]


def test_standard_input_is_silent_has_data_or_is_closed() -> None:
    kept = os.dup(0)
    reader, writer = os.pipe()
    try:
        os.dup2(reader, 0)
        assert attempt("stdin") == "silent"
        os.write(writer, b"x")
        assert attempt("stdin") == "data"
        os.read(0, 1)
        os.close(writer)
        assert attempt("stdin") == "closed"
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reader)


def test_what_breaks_down_is_named_and_the_rest_is_still_attempted() -> None:
    results = attempt_all(
        [
            ["unknown", "fly", 1],
            ["too_few", "open"],
            ["nul", "open", "a\0b", 0],
            ["no_such_limit", "limits", ["RLIMIT_COURAGE"]],
            ["long", "connect", "x" * 200],
            ["wrong", "syscall", "getpid"],
            ["last", "syscall", GETPID],
        ]
    )

    assert results == {
        "unknown": "unknown",
        "too_few": "TypeError",
        "nul": "ValueError",
        "no_such_limit": "KeyError",
        "long": "OSError",
        "wrong": "TypeError",
        "last": os.getpid(),
    }
