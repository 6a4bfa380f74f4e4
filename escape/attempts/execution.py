"""Out by executing: what is shown, by its path and by a descriptor, and what is written into memory."""

from __future__ import annotations

import os

from escape.attempt import Attempt, Wall
from escape.attempts._reaching import together
from escape.inside import AT_FDCWD, Stopped, World, call, calls_work, do, every, files_work

_AT_EMPTY_PATH = 0x1000
_BAD = 1  # an address at which nothing can be


def _executed(world: World) -> str:
    """Execute what is shown. Its arguments cannot be read: a kernel that would run it says EFAULT, having opened it."""

    def one(path: str) -> str:
        try:
            call("execve", path, _BAD, None)
        except Stopped as end:
            if end.answer == "EFAULT at execve":
                return f"the kernel would run {path}"
            raise
        return "unreachable"

    linkers = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
    paths = [world.python, "/usr/bin/env", world.image, *filter(os.path.exists, linkers)]
    return every(*(lambda path=path: one(path) for path in paths))


def _executed_image(world: World) -> str:
    try:
        call("execve", world.image, None, None)
    except Stopped as end:
        if end.answer == "ENOEXEC at execve":
            return "the kernel looked for a program in the image"
        raise
    return "unreachable"


def _executed_by_descriptor(world: World) -> str:
    file = os.open(world.python, os.O_PATH | os.O_CLOEXEC)
    try:
        return together(
            "execveat",
            ("execveat", file, "", _BAD, None, _AT_EMPTY_PATH),
            ("execveat", AT_FDCWD, world.python, _BAD, None, 0),
        )
    except Stopped as end:
        if end.answer == "EFAULT at execveat":
            return "the kernel would run the interpreter"
        raise
    finally:
        os.close(file)


def _executed_memory(_: World) -> str:
    """Write a program into memory and execute that: no path is needed, and no mount is in the way."""
    file = call("memfd_create", "program", 1)
    try:
        do("write", os.write, file, b"no program")
        call("execveat", file, "", None, None, _AT_EMPTY_PATH)
    except Stopped as end:
        if end.answer == "ENOEXEC at execveat":
            return "the kernel looked for a program in memory"
        raise
    finally:
        os.close(file)
    return "unreachable"


ATTEMPTS: tuple[Attempt, ...] = (
    Attempt(
        "execution.executed",
        "executes the interpreter, env, the linker and the image",
        _executed,
        control=files_work,
        walls=[Wall("landlock", "EACCES at execve")],
        escape="another program runs, unprobed, under the same credential",
    ),
    Attempt(
        "execution.image_executed",
        "has the kernel look for a program in the image",
        _executed_image,
        control=files_work,
        walls=[Wall("landlock", "EACCES at execve")],
        escape="the kernel's loaders read what the worker's image holds",
    ),
    Attempt(
        "execution.descriptor_executed",
        "executes the interpreter by a descriptor and by the newer call",
        _executed_by_descriptor,
        control=files_work,
        walls=[Wall("syscalls", "ENOSYS at execveat"), Wall("landlock", "EACCES at execveat")],
        escape="another program runs, unprobed, under the same credential",
    ),
    Attempt(
        "execution.memory_executed",
        "writes a program into memory and executes it without a path",
        _executed_memory,
        control=calls_work,
        # Of a file in memory Landlock does not ask: it has no place in a hierarchy (security/landlock/fs.c).
        walls=[Wall("syscalls", "EPERM at memfd_create")],
        escape="a program of the worker's own runs",
    ),
)
