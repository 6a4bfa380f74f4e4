"""The self-probe: things attempted from inside, and what the kernel answered to each.

It judges nothing and knows no layer; the daemon says what to attempt and what each answer must be. It needs
no /proc and no /dev.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


_PATH_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH, linux/landlock.h


def attempt_all(attempts: list[list[object]]) -> dict[str, object]:
    """Make every attempt, each `[name, operation, arguments…]`, in order; give the results by name.

    A result is a JSON value. A call that failed gives its errno as a negative number; an attempt that broke
    down gives its exception's class name, an operation that does not exist gives `unknown`, and neither keeps
    the rest from being made.
    """
    return {str(name): _attempt(str(operation), arguments) for name, operation, *arguments in attempts}


def is_closed() -> bool:
    """Say whether standard input is at its end before anything was written to it."""
    return _stdin() == "closed"


def _attempt(operation: str, arguments: list[object]) -> object:
    perform = _OPERATIONS.get(operation)
    if perform is None:
        return "unknown"
    try:
        return perform(*arguments)
    except OSError as error:
        return -error.errno if error.errno else type(error).__name__
    except Exception as error:  # noqa: BLE001 - whatever it was, the daemon must hear of it, and of the rest
        return type(error).__name__


def _syscall(number: int, *arguments: int | str | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    pid = os.getpid()
    value = int(libc.syscall(ctypes.c_long(number), *(_word(argument) for argument in arguments)))
    if os.getpid() != pid:
        # The attempt was to make a process and it worked: only the parent may report that.
        os._exit(0)
    return -ctypes.get_errno() if value == -1 else value


def _word(argument: int | str | bytes | None) -> ctypes.c_long | ctypes.c_char_p:
    # A plain int would be passed as 32 bits.
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    return ctypes.c_char_p(None if argument is None else os.fsencode(argument))


def _syscall_fd(number: int, *arguments: int | str | None) -> int:
    value = _syscall(number, *arguments)
    if value >= 0:
        os.close(value)
    return value


def _landlock(calls: list[int], rights: list[int], given_back: int, paths: list[str]) -> int:
    """Give up rights for good but for some beneath some folders; the calls' numbers are in the order of their use."""
    create, add, restrict = calls
    # struct landlock_ruleset_attr: a word each. What no rule gives back is denied (landlock(7)).
    attributes = b"".join(right.to_bytes(8, sys.byteorder) for right in rights)
    ruleset = _syscall(create, attributes, len(attributes), 0)
    if ruleset < 0:
        return ruleset
    try:
        for path in paths:
            if (added := _landlock_rule(add, ruleset, given_back, path)) < 0:
                return added
        return _syscall(restrict, ruleset, 0)
    finally:
        os.close(ruleset)


def _landlock_rule(add: int, ruleset: int, given_back: int, path: str) -> int:
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # struct landlock_path_beneath_attr, packed: a word of rights and a descriptor.
        rule = given_back.to_bytes(8, sys.byteorder) + folder.to_bytes(4, sys.byteorder)
        return _syscall(add, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(folder)


def _open(path: str, flags: int) -> int:
    os.close(os.open(path, flags, 0o600))
    return 0


def _list(path: str) -> list[str]:
    return sorted(os.listdir(path))


def _limits(names: list[str]) -> dict[str, list[int]]:
    # RLIM_INFINITY is -1 in this module.
    return {name: list(resource.getrlimit(getattr(resource, name))) for name in names}


def _connect(path: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # Blocking: a full backlog is not a missing door, and the launch has its own deadline.
        connection.connect(path)
    return 0


def _ids() -> list[int]:
    return [*os.getresuid(), *os.getresgid(), os.getpid(), os.getppid()]


def _stdin() -> str:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    events = poll.poll(0)
    if not events:
        return "silent"
    return "data" if events[0][1] & select.POLLIN else "closed"


def _pdeathsig() -> int:
    # PR_GET_PDEATHSIG (prctl(2)) writes its answer where its argument points.
    libc = ctypes.CDLL(None, use_errno=True)
    signal = ctypes.c_int(-1)
    if libc.prctl(2, ctypes.byref(signal), 0, 0, 0) != 0:
        return -ctypes.get_errno()
    return signal.value


_OPERATIONS: dict[str, Callable[..., object]] = {
    "syscall": _syscall,
    "syscall_fd": _syscall_fd,
    "open": _open,
    "list": _list,
    "limits": _limits,
    "connect": _connect,
    "ids": _ids,
    "stdin": _stdin,
    "pdeathsig": _pdeathsig,
    "landlock": _landlock,
}
