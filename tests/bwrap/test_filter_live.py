"""The filter as the kernel applies it: foreign calls are deadly, and a profile of one's own can have threads."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

from bwrap.seccomp import architecture

if TYPE_CHECKING:
    from tests.bwrap.conftest import Daemon

MACHINE_CODE = """
import ctypes
code = bytes.fromhex({code!r})
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
size, everything, private_anonymous = ctypes.c_size_t(4096), 7, 0x22
at = libc.mmap(None, size, everything, private_anonymous, -1, ctypes.c_long(0))
ctypes.memmove(at, code, len(code))
return ctypes.CFUNCTYPE(ctypes.c_long)(at)() == os.getpid()
"""

# getpid by three ways into the kernel: mov eax, number; syscall (or int 0x80); ret.
NATIVE = "b8270000000f05c3"
FOREIGN = {"i386": "b814000000cd80c3", "x32": "b8270000400f05c3"}

ONE_MORE_TASK = """
import threading
said = []
try:
    thread = threading.Thread(target=lambda: said.append(threading.get_native_id()))
    thread.start()
    thread.join()
except RuntimeError as error:
    said.append(str(error))
try:
    if os.fork() == 0:
        os._exit(0)
    said.append("forked")
except OSError as error:
    said.append(error.errno)
return [said[0] if isinstance(said[0], str) else said[0] != os.getpid(), said[1]]
"""

# glibc asks for clone3 first, and falls back to clone where it is told that there is none.
THREADS = """
[limits]
processes = 8

[syscalls]
allow = ["@threads"]

[[syscalls.when]]
call = "clone"
argument = 0
has = "CLONE_THREAD"
"""


def asked(daemon: Daemon, source: str, extra: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = daemon.play("does", module="entrusted", source=source, extra=extra)
    return answer


if architecture() == "x86_64":  # elsewhere there is no second way into the kernel from 64-bit code

    @pytest.mark.claim("I4")
    @pytest.mark.parametrize("abi", FOREIGN)
    def test_an_x86_64_worker_that_makes_a_call_of_a_foreign_abi_dies_by_sigsys(
        daemon: Daemon, abi: str
    ) -> None:
        ended = asked(daemon, MACHINE_CODE.format(code=FOREIGN[abi]))

        assert ended == {"code": None, "signal": "SIGSYS", "said": ""}

    def test_an_x86_64_worker_that_makes_the_same_call_of_its_own_abi_lives(daemon: Daemon) -> None:
        ended = asked(daemon, MACHINE_CODE.format(code=NATIVE))

        assert ended == {"code": 0, "signal": None, "said": "true"}


def test_a_profile_that_allows_threads_has_threads_and_no_processes(daemon: Daemon) -> None:
    ended = asked(daemon, ONE_MORE_TASK, THREADS)

    assert ended == {"code": 0, "signal": None, "said": f"[true, {errno.EPERM}]"}


@pytest.mark.claim("I4")
def test_under_the_shipped_profile_there_is_neither(daemon: Daemon) -> None:
    ended = asked(daemon, ONE_MORE_TASK)

    assert ended == {"code": 0, "signal": None, "said": f'["can\'t start new thread", {errno.EPERM}]'}
