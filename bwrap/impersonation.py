"""A thread in a worker's ids for one act, and in its own again: ids are a thread's, not a process's (credentials(7)).

A child that is made with other ids by Python is a whole fork of the daemon, some milliseconds that grow with it; one
that has its maker's ids is there by vfork(2) in a fraction of one. And who has a worker's ids may limit it
(prlimit(2)), which a root without CAP_SYS_RESOURCE may not.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bwrap.seccomp import architecture, number

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_CAP_AMBIENT = 1, 2, 3, 4, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_KEEP = -1

# struct __user_cap_header_struct of linux/capability.h, version 3 and this thread; its data are two times 12 bytes.
_CAPABILITIES_OF_THIS = (ctypes.c_uint32 * 2)(0x20080522, 0)
_CAPABILITIES_SIZE = 24


def impersonate(uid: int, gid: int, act: Callable[[], T]) -> T:
    """Do something on this thread as a user of one group, and give what that gives; other threads stay who they are.

    Its real and effective ids are the user's and its saved ones stay its own, so that it can go back, and so that
    nobody of that user may trace it meanwhile (ptrace(2)). They may signal it, by its real uid (kill(2)): so the user
    is to be one of whom nothing runs that is not trusted, as of a uid that was just leased. A program that the act
    starts has the user's ids alone, and no capability (execve(2), capabilities(7)). As little as possible is to be
    done there: no file opened, nothing awaited. The process is not dumpable meanwhile, and afterwards what it was. For
    who it is already nothing is changed.

    Raises `OSError` when the ids cannot be had: EPERM without CAP_SETUID and CAP_SETGID, EINVAL for one that this user
    namespace does not map (user_namespaces(7)). A process that cannot go back ends at once.
    """
    if (os.getresuid(), os.getresgid()) == ((uid,) * 3, (gid,) * 3):
        return act()
    own = _Credentials.now()
    try:
        own.leave(uid, gid)
        return act()
    finally:
        try:
            own.take_back()
        except BaseException as error:  # noqa: BLE001 - nothing may go on under ids that are not its own
            os.write(2, f"the daemon cannot take its own ids back and ends: {error}\n".encode())
            os._exit(os.EX_OSERR)


class _Credentials(NamedTuple):
    """What a change of ids takes from the thread that makes it, and from its process."""

    uids: tuple[int, int, int]
    gids: tuple[int, int, int]
    groups: list[int]
    capabilities: bytes
    dumpable: int
    death: int
    parent: int

    @classmethod
    def now(cls) -> _Credentials:
        death = ctypes.c_int()
        _call("prctl", _PR_GET_PDEATHSIG, ctypes.byref(death), 0, 0, 0)
        return cls(
            os.getresuid(),
            os.getresgid(),
            os.getgroups(),
            _capabilities(),
            _call("prctl", _PR_GET_DUMPABLE, 0, 0, 0, 0),
            death.value,
            os.getppid(),
        )

    def leave(self, uid: int, gid: int) -> None:
        # Kept while some id is root's, and kept over an exec: root's own programs need none of them.
        _call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        _call("setgroups", 0, None)
        _call("setresgid", gid, gid, self.gids[1])
        _call("setresuid", uid, uid, self.uids[1])
        # A change of ids sets it to fs.suid_dumpable, which an administrator may have made 1 (proc_sys_fs(5)).
        _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)

    def take_back(self) -> None:
        # The effective uid first: with it come back the capabilities that all else takes. What was refused needs none.
        if os.getresuid() != self.uids:
            _call("setresuid", _KEEP, self.uids[1], _KEEP)
        if os.getgroups() != self.groups:
            _call("setgroups", len(self.groups), (ctypes.c_uint32 * len(self.groups))(*self.groups))
        if os.getresgid() != self.gids:
            _call("setresgid", *self.gids)
        if os.getresuid() != self.uids:
            _call("setresuid", *self.uids)
        # Where a filter lets nobody change ids, it lets nobody set these either, and nothing was changed.
        if _capabilities() != self.capabilities:
            _call("capset", _CAPABILITIES_OF_THIS, self.capabilities)
        # 2, root's alone, can only be had from fs.suid_dumpable: 0 is no less.
        _call("prctl", _PR_SET_DUMPABLE, int(self.dumpable == 1), 0, 0, 0)
        if self.death:
            _call("prctl", _PR_SET_PDEATHSIG, self.death, 0, 0, 0)
            if os.getppid() != self.parent:
                os.kill(os.getpid(), self.death)  # it ended while nothing was to be sent


def _capabilities() -> bytes:
    found = ctypes.create_string_buffer(_CAPABILITIES_SIZE)
    _call("capget", _CAPABILITIES_OF_THIS, found)
    return found.raw


# With the interpreter's lock held, and by the numbers: libc's own functions would change every thread (nptl(7)).
_LIBC = ctypes.PyDLL(None, use_errno=True)


@functools.cache
def _number(name: str) -> int:
    return number(name, architecture())


def _call(name: str, *arguments: object) -> int:
    """Make one system call; raises `OSError`."""
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    given: int = _LIBC.syscall(_number(name), *words)
    if given < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return given
