"""Landlock: what a confined process gives up by itself, on top of what is taken from it (landlock(7)).

Every right that a ruleset handles is denied for good, on whatever mount and in whatever namespace, but for what a rule
gives back: changing files beneath a file system in memory, and nowhere else. Which rights a kernel knows goes by its
ABI's version; asking for one it does not know fails the whole ruleset.
See Documentation/userspace-api/landlock.rst of the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os

from bwrap.errors import LayerError

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""The calls' numbers, the same on every architecture."""

_CREATE_RULESET_VERSION = 1

# Of linux/landlock.h. LANDLOCK_ACCESS_FS_*: READ_FILE and READ_DIR (bits 2 and 3) are the mount namespace's to say.
_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))  # REMOVE_DIR to MAKE_SYM
_SINCE = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # REFER, TRUNCATE, IOCTL_DEV
_BIND_AND_CONNECT_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def abi() -> int:
    """Ask the kernel for its version of Landlock; 0 where it has none, or has it switched off.

    Raises `LayerError` where something keeps this process from asking: nobody may take that for a kernel without it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    size, flags = ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION)
    version = int(libc.syscall(ctypes.c_long(CREATE_RULESET), None, size, flags))
    if version < 0 and ctypes.get_errno() not in (errno.ENOSYS, errno.EOPNOTSUPP):
        raise LayerError(
            "landlock",
            expected="the kernel to say which version of Landlock it has, or that it has none",
            observed=os.strerror(ctypes.get_errno()),
            remedy="let this process call landlock_create_ruleset (a container's filter may refuse it)",
        )
    return max(version, 0)


def rights(version: int) -> tuple[int, ...]:
    """Give the words of `struct landlock_ruleset_attr` that a kernel of this version knows.

    Executing: what was started is all that will ever run. Changing files; then TCP (version 4), and abstract unix
    sockets and signals beyond its own domain (version 6).
    """
    return (
        _EXECUTE | changes(version),
        *([_BIND_AND_CONNECT_TCP] if version >= 4 else []),
        *([_ABSTRACT_SOCKETS_AND_SIGNALS] if version >= 6 else []),
    )


def changes(version: int) -> int:
    """Give the rights to make, change and remove files that a kernel of this version knows, for a rule to give back."""
    return _WRITE_FILE | _REMOVE_AND_MAKE | sum(right for since, right in _SINCE.items() if version >= since)
