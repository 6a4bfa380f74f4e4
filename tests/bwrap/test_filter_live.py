"""The filter as the kernel applies it: foreign calls are deadly, and a profile of one's own can have threads."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from bwrap import seccomp
from bwrap.seccomp import architecture
from tests.bwrap.stage import examine

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

# glibc asks for clone3 first, and falls back to clone where it is told that there is none. A lock without a time limit
# waits by FUTEX_WAIT_BITSET_PRIVATE | FUTEX_CLOCK_REALTIME. From 3.13 on Python joins its threads: pthread_join waits
# by the same operation on a word that is not private, since it is the kernel that wakes it (265).
THREADS = """
[limits]
processes = 8

[syscalls]
allow = ["@threads"]

[[syscalls.when]]
call = "clone"
argument = 0
has = "CLONE_THREAD"

[[syscalls.when]]
call = "futex"
argument = 1
equals = [265, 393]
"""


# Each by its number, past libc and its clocks that need no call; the page is of a file that others are shown too.
OF_OTHERS = """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def answer(number, *arguments):
    ctypes.set_errno(0)
    words = (each if each is None or isinstance(each, ctypes.Array) else ctypes.c_long(each) for each in arguments)
    libc.syscall(ctypes.c_long(number), *words)
    return ctypes.get_errno()
futex, clock_gettime, clock_getres, set_robust_list = {numbers}
with open({path!r}, "rb") as file:
    shown = libc.mmap(None, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
own, time, head = (ctypes.c_uint32 * 2)({pid}), (ctypes.c_long * 2)(), (ctypes.c_long * 3)()
at, pids = ctypes.addressof(own), ({pid}, 0x3ffffffe)
return {{
    "own": [answer(futex, at, operation, 0, None, None, 1) for operation in (128, 129, 137)],
    "shown": [answer(futex, shown, operation, 1, time, None, 1) for operation in (0, 1, 9, 10, 256 + 9)],
    "locks": [answer(futex, at, operation, 0, None, None, 0) for operation in (6, 7, 8, 13, 134, 135, 136, 141)],
    "moved": [answer(futex, at, operation, 0, 0, at, 0) for operation in (3, 4, 5, 11, 12, 131, 132, 139, 140)],
    "high": [answer(futex, at, operation | 1 << 32, 0, None, None, 1) for operation in (1, 129)],
    "clocks": [answer(clock_gettime, clock, time) for clock in (0, 1, 7)],
    "spent": [answer(clock_gettime, ~pid << 3 | kind, time) for pid in pids for kind in (2, 6)],
    "ticks": [answer(clock_getres, ~pid << 3 | 2, time) for pid in pids],
    "robust": answer(set_robust_list, ctypes.addressof(head), 24),
}}
"""
WITH_CLOCK_GETRES = '[[syscalls.when]]\ncall = "clock_getres"\nargument = 0\nequals = ["CLOCK_MONOTONIC"]'


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


@pytest.mark.claim("I10")
def test_a_futex_that_is_shared_and_a_clock_of_another_process_are_refused(daemon: Daemon) -> None:
    calls = ("futex", "clock_gettime", "clock_getres", "set_robust_list")
    numbers = tuple(seccomp.number(call, architecture()) for call in calls)
    source = OF_OTHERS.format(numbers=numbers, path=examine().python.path, pid=os.getpid())

    ended = asked(daemon, source, WITH_CLOCK_GETRES)

    assert (ended["code"], ended["signal"]) == (0, None)
    answers = json.loads(ended["said"])
    # The word is not 0, so that nobody waits.
    assert answers.pop("own") == [errno.EAGAIN, 0, errno.EAGAIN]
    assert answers.pop("clocks") == [0, 0, 0]
    assert answers.pop("robust") == errno.ENOSYS
    # Bits that the kernel drops change nothing.
    assert answers.pop("high") == [errno.EPERM, 0]
    assert set(answers) == {"shown", "locks", "moved", "spent", "ticks"}
    assert {answer for each in answers.values() for answer in each} == {errno.EPERM}
