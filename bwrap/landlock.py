"""Landlock: what a confined process gives up by itself, on top of what is taken from it (landlock(7)).

A ruleset without a rule: every right it handles is denied for good, on whatever mount and in whatever namespace.
Which rights a kernel knows goes by its ABI's version; asking for one it does not know fails the whole ruleset.
See Documentation/userspace-api/landlock.rst of the kernel.
"""

from __future__ import annotations

import ctypes

CREATE_RULESET, RESTRICT_SELF = 444, 446
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
    """Ask the kernel for its version of Landlock; 0 where it has none, or keeps this process from asking."""
    libc = ctypes.CDLL(None, use_errno=True)
    size, flags = ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION)
    return max(int(libc.syscall(ctypes.c_long(CREATE_RULESET), None, size, flags)), 0)


def rights(version: int, *, writes: bool) -> tuple[int, ...]:
    """Give the words of `struct landlock_ruleset_attr` that a kernel of this version knows.

    Executing is always handled: what was started is all that will ever run. Changing files is handled unless the
    process `writes`; then TCP (version 4), and abstract unix sockets and signals beyond its own domain (version 6).
    """
    files = _EXECUTE
    if not writes:
        files |= _WRITE_FILE | _REMOVE_AND_MAKE
        files |= sum(right for since, right in _SINCE.items() if version >= since)
    return (
        files,
        *([_BIND_AND_CONNECT_TCP] if version >= 4 else []),
        *([_ABSTRACT_SOCKETS_AND_SIGNALS] if version >= 6 else []),
    )
