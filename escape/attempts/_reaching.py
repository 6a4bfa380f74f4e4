"""Reaching for files, by many paths and many calls.

What was opened is closed and what was made is taken away again: that it could be had is the escape.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from escape.attempt import Wall
from escape.inside import Stopped, call, do, every, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# UTIME_NOW for when it was read, UTIME_OMIT for when it was written.
NOW = (ctypes.c_long * 4)(0, (1 << 30) - 1, 0, (1 << 30) - 2)

CHANGED = "a file of the host's is changed"
NO_FILE = (Wall("mounts", "ENOENT at open"),)
READ_ONLY = (Wall("mounts", "EROFS at open"), Wall("landlock", "EACCES at open"))


def opened(step: str, path: str, flags: int) -> int:
    """Open a file without waiting for whoever is at its other end."""
    return do(step, os.open, path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


def reads(*paths: str) -> str:
    """Read any of several files; of what is in one it is told how much, and never what."""
    return every(*(lambda path=path: f"{path}, {len(read(path))} bytes" for path in paths))


def opens(flags: int, *paths: str) -> str:
    """Open any of several files, and do nothing with them: that it can be had is enough."""

    def one(path: str) -> str:
        os.close(opened("open", path, flags))
        return f"{path} is open"

    return every(*(lambda path=path: one(path) for path in paths))


def makes(*paths: str) -> str:
    """Make any of several new files, and take it away again."""

    def one(path: str) -> str:
        os.close(opened("open", path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(path)
        return f"{path} was made"

    return every(*(lambda path=path: one(path) for path in paths))


def together(step: str, *calls: tuple[Any, ...], opening: bool = False) -> str:
    """Make calls that come to one thing, those that this machine has; their answers are told as one step's."""
    got, answers = [], []
    for name, *arguments in calls:
        try:
            value = call(name, *arguments)
            got.append(f"{name} works")
            if opening:
                os.close(value)
        except Stopped as end:
            word = end.answer.partition(" at ")[0]
            if word != "no number":
                answers.append(f"{word} at {step}")
    if got:
        return "; ".join(dict.fromkeys(got))
    raise Stopped(", ".join(dict.fromkeys(answers)) or f"no number at {step}")


def made(name: str, *arguments: int | bytes | str | None, path: str) -> str:
    """Make something by a call, told as a change, and take it away again."""
    got = together("change", (name, *arguments))
    with suppress(OSError):
        (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
    return got
