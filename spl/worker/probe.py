"""The self-probe: things attempted from inside, and what the kernel answered to each.

It judges nothing and knows no layer; the daemon says what to attempt and what each answer must be. It needs
no /proc and no /dev.
"""

from __future__ import annotations

import posix
import select
import sys
from _socket import AF_UNIX, SOCK_STREAM, socket

from spl.worker import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


_PATH_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH, linux/landlock.h

# asm-generic/resource.h, as x86-64 and aarch64 have it.
_RESOURCES = {
    "RLIMIT_CPU": 0,
    "RLIMIT_FSIZE": 1,
    "RLIMIT_CORE": 4,
    "RLIMIT_NPROC": 6,
    "RLIMIT_NOFILE": 7,
    "RLIMIT_AS": 9,
}


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
    pid = posix.getpid()
    value: int = libc.syscall(libc.Long(number), *map(libc.word, arguments))
    if posix.getpid() != pid:
        # The attempt was to make a process and it worked: only the parent may report that.
        posix._exit(0)  # noqa: SLF001 - so it is called, and is no private one
    return -libc.get_errno() if value == -1 else value


def _syscall_fd(number: int, *arguments: int | str | None) -> int:
    value = _syscall(number, *arguments)
    if value >= 0:
        posix.close(value)
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
        posix.close(ruleset)


def _landlock_rule(add: int, ruleset: int, given_back: int, path: str) -> int:
    folder = posix.open(path, posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        # struct landlock_path_beneath_attr, packed: a word of rights and a descriptor.
        rule = given_back.to_bytes(8, sys.byteorder) + folder.to_bytes(4, sys.byteorder)
        return _syscall(add, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        posix.close(folder)


def _open(path: str, flags: int) -> int:
    posix.close(posix.open(path, flags, 0o600))
    return 0


def _list(path: str) -> list[str]:
    return sorted(posix.listdir(path))


def _limits(names: list[str]) -> dict[str, list[int]]:
    return {name: _limit(_RESOURCES[name]) for name in names}


def _limit(resource: int) -> list[int]:
    # struct rlimit: the soft limit and the hard one, a word each. As a signed one RLIM_INFINITY is -1.
    limits = (libc.Long * 2)()
    if libc.getrlimit(resource, libc.byref(limits)) != 0:
        raise OSError(libc.get_errno(), "getrlimit")
    return list(limits)


def _connect(path: str) -> int:
    connection = socket(AF_UNIX, SOCK_STREAM)
    try:
        # Blocking: a full backlog is not a missing door, and the launch has its own deadline.
        connection.connect(path)
    finally:
        connection.close()
    return 0


def _ids() -> list[int]:
    return [*posix.getresuid(), *posix.getresgid(), posix.getpid(), posix.getppid()]


def _stdin() -> str:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    events = poll.poll(0)
    if not events:
        return "silent"
    return "data" if events[0][1] & select.POLLIN else "closed"


def _pdeathsig() -> int:
    # PR_GET_PDEATHSIG (prctl(2)) writes its answer where its argument points.
    signal = libc.Int(-1)
    if libc.prctl(2, libc.byref(signal), 0, 0, 0) != 0:
        return -libc.get_errno()
    return int(signal.value)


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
