"""The C library by what is beneath `ctypes`, whose import would cost the worker's start two milliseconds.

`_ctypes` promises nothing, so the worker's program is loaded when it is sealed, by the interpreter that will run it:
one whose `_ctypes` is missing, or made otherwise, is refused there.
"""

from __future__ import annotations

import sys
from _ctypes import (
    FUNCFLAG_CDECL,
    FUNCFLAG_USE_ERRNO,
    CFuncPtr,
    _SimpleCData,
    byref,
    dlopen,
    dlsym,
    get_errno,
)

__all__ = ["Int", "Long", "byref", "get_errno", "getrlimit", "prctl", "syscall", "word"]


class Int(_SimpleCData):  # type: ignore[type-arg]
    """A C `int`."""

    _type_ = "i"


class Long(_SimpleCData):  # type: ignore[type-arg]
    """A C `long`, which is as wide as a register and as an address."""

    _type_ = "l"


class _ReturningInt(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = Int


class _ReturningLong(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = Long


def word(argument: int | str | bytes | None) -> Long | bytes | None:
    """Give an argument as a system call takes it: text and bytes go by their address, None is NULL.

    A plain int would be passed as 32 bits.
    """
    if isinstance(argument, int):
        return Long(argument)
    if isinstance(argument, str):
        return argument.encode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
    return argument


# None: what the interpreter has loaded already (dlopen(3)).
_library = dlopen(None)  # type: ignore[arg-type]

syscall = _ReturningLong(dlsym(_library, "syscall"))
"""syscall(2): a number and words; -1 with `get_errno()` where it failed."""
prctl = _ReturningInt(dlsym(_library, "prctl"))
"""prctl(2)."""
getrlimit = _ReturningInt(dlsym(_library, "getrlimit"))
"""getrlimit(2): a resource and a reference to two longs."""
