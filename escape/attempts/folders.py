"""Out by a folder: up from the one it stands in, and from what was inherited."""

from __future__ import annotations

import ctypes
import os

from escape.attempt import Attempt, Wall
from escape.inside import (
    AT_FDCWD,
    World,
    call,
    calls_work,
    do,
    every,
    files_work,
    stopped,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_UP = "../" * 16


def _working_folder(world: World) -> str:
    """Go up from the folder it was started in, which may have been left outside the root."""
    wanted = (_UP + world.host_file.lstrip("/"), world.host_file)
    return every(*(_beneath(AT_FDCWD, path) for path in wanted))


def _folder_of_descriptor(world: World) -> str:
    """Go up from every descriptor, of which one might be a folder of the host's."""
    path = _UP + world.host_file.lstrip("/")
    return every(*(_beneath(at, path) for at in range(64)))


def _beneath(folder: int, path: str) -> Callable[[], str]:
    def ask() -> str:
        at = call("openat", folder, path, os.O_RDONLY | os.O_CLOEXEC, 0)
        try:
            said = do("read", os.read, at, 64)
        finally:
            os.close(at)
        return f"{path}, {len(said)} bytes"

    return ask


def _where(world: World) -> str:
    place = ctypes.create_string_buffer(4096)
    call("getcwd", place, len(place))
    said = os.fsdecode(place.value)
    if said == "/":
        stopped("nothing but /")
    return f"it stands in {said}"


def _moved_there(world: World) -> str:
    """Step into what a descriptor stands for, from which no path leads back."""
    at = do("open", os.open, "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        call("fchdir", at)
        os.close(call("openat", AT_FDCWD, world.host_file.lstrip("/"), os.O_RDONLY | os.O_CLOEXEC, 0))
    finally:
        os.close(at)
    return "a file of the host's"


_CONTENTS = "a file of the host's is within reach"

ATTEMPTS = (
    Attempt(
        "folders.up",
        "goes up from the folder it was started in",
        _working_folder,
        control=files_work,
        walls=[Wall("mounts", "ENOENT at openat")],
        escape=_CONTENTS,
        cve="CVE-2024-21626",
    ),
    Attempt(
        "folders.inherited",
        "goes up from every descriptor as from a folder",
        _folder_of_descriptor,
        control=files_work,
        walls=[Wall("descriptors", "ENOTDIR at openat, EBADF at openat")],
        escape=_CONTENTS,
        cve="CVE-2024-21626, CVE-2016-9962",
    ),
    Attempt(
        "folders.name",
        "asks where it stands",
        _where,
        control=calls_work,
        walls=[Wall("syscalls", "ENOSYS at getcwd"), Wall("mounts", "nothing but /")],
        escape="it was started in a folder of the host's",
        cve="CVE-2018-1000001, CVE-2024-21626",
    ),
    Attempt(
        "folders.entered",
        "steps into a folder by a descriptor",
        _moved_there,
        control=files_work,
        walls=[Wall("syscalls", "ENOSYS at fchdir"), Wall("mounts", "ENOENT at openat")],
        escape=_CONTENTS,
    ),
)
