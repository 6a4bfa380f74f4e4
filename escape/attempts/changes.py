"""Out by changing what has a name: files of the host's, and the root, by every call that makes, marks or removes."""

from __future__ import annotations

import ctypes
import os
import stat
from contextlib import suppress

from escape.attempt import Attempt, Wall
from escape.attempts._reaching import CHANGED, NOW, READ_ONLY, made, opened, opens, together
from escape.inside import AT_FDCWD, World, calls_work, every, files_work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Chain = Callable[[World], str]


def _change(*make: Callable[[str], tuple[Any, ...]]) -> Chain:
    """Make calls on the host's file that anyone may write to; each is given its path."""
    return lambda world: together("change", *(each(f"{world.host_folder}/notes") for each in make))


def _attributes(world: World) -> str:
    path = f"{world.host_folder}/notes"
    got = together(
        "change",
        ("setxattr", path, "user.inside", "x", 1, 0),
        ("lsetxattr", path, "user.inside", "x", 1, 0),
        ("setxattrat", AT_FDCWD, path, 0, "user.inside", (ctypes.c_uint64 * 2)(), 16),
    )
    with suppress(OSError):
        os.removexattr(path, "user.inside")
    return got


def _made_beside(world: World) -> str:
    path = f"{world.host_folder}/made"
    old = f"{world.host_folder}/notes"
    return every(
        lambda: made("mkdirat", AT_FDCWD, path, 0o700, path=path),
        lambda: made("mkdir", path, 0o700, path=path),
        lambda: made("mknodat", AT_FDCWD, path, stat.S_IFIFO | 0o600, 0, path=path),
        lambda: made("mknodat", AT_FDCWD, path, stat.S_IFREG | 0o600, 0, path=path),
        lambda: made("mknod", path, stat.S_IFIFO | 0o600, 0, path=path),
        lambda: made("symlinkat", "/", AT_FDCWD, path, path=path),
        lambda: made("symlink", "/", path, path=path),
        lambda: made("linkat", AT_FDCWD, old, AT_FDCWD, path, 0, path=path),
        lambda: made("link", old, path, path=path),
    )


def _renamed(world: World) -> str:
    old, new = f"{world.host_folder}/notes", f"{world.host_folder}/renamed"
    got = together(
        "change",
        ("renameat2", AT_FDCWD, old, AT_FDCWD, new, 0),
        ("renameat", AT_FDCWD, old, AT_FDCWD, new),
        ("rename", old, new),
    )
    os.rename(new, old)
    return got


def _device_made(world: World) -> str:
    # Disks, /dev/mem and /dev/null. Without the filter the kernel asks for rights before it asks for room.
    devices = (os.makedev(8, 0), os.makedev(254, 0), os.makedev(1, 1), os.makedev(1, 3))
    path = "/device"
    kinds = (stat.S_IFCHR, stat.S_IFBLK)
    return every(
        *(
            lambda kind=kind, device=device: made("mknodat", AT_FDCWD, path, kind | 0o666, device, path=path)
            for device in devices
            for kind in kinds
        )
    )


def _root_made(_: World) -> str:
    os.close(opened("open", "/made", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink("/made")
    return "a file in the root"


def _unnamed(world: World) -> str:
    return opens(os.O_TMPFILE | os.O_RDWR, "/", os.path.dirname(world.home))


def _root_folder(_: World) -> str:
    return every(
        lambda: made("mkdirat", AT_FDCWD, "/made", 0o700, path="/made"),
        lambda: made("symlinkat", "/", AT_FDCWD, "/made", path="/made"),
        lambda: made("mknodat", AT_FDCWD, "/made", stat.S_IFIFO | 0o600, 0, path="/made"),
    )


def _removed(world: World) -> str:
    # All of it the root's or a mount: were nothing in the way, the kernel would still answer EACCES or EBUSY.
    paths = (world.image, world.python, world.library)
    return together(
        "change",
        *(("unlinkat", AT_FDCWD, path, 0) for path in paths),
        *(("unlink", path) for path in paths),
        *(("unlinkat", AT_FDCWD, path, 0x200) for path in (world.library, world.home)),
        *(("rmdir", path) for path in (world.library, world.home)),
    )


_NOT_CHANGED = (
    Wall("syscalls", "ENOSYS at change"),
    Wall("mounts", "ENOENT at change"),
    Wall("landlock", "EACCES at change"),
)
# Landlock knows nothing of modes, owners, times and attributes (landlock(7)): then it is another's file.
_NOT_MARKED = (
    Wall("syscalls", "ENOSYS at change"),
    Wall("mounts", "ENOENT at change"),
    Wall("separate_user", "EPERM at change", shape="hosted"),
)
_ROOT_READ_ONLY = (
    Wall("syscalls", "ENOSYS at change"),
    Wall("mounts", "EROFS at change"),
    Wall("landlock", "EACCES at change"),
)


def _of_file(
    name: str, sentence: str, chain: Chain, *, walls: tuple[Wall, ...] = _NOT_CHANGED, cve: str = ""
) -> Attempt:
    return Attempt(
        f"changes.{name}",
        sentence,
        chain,
        control=calls_work,
        walls=walls,
        escape=CHANGED,
        cve=cve,
        victims=["files"],
    )


ATTEMPTS: tuple[Attempt, ...] = (
    _of_file(
        "made",
        "makes folders, pipes, files and links in a folder of the host's, by every call there is",
        _made_beside,
        cve="CVE-2025-55345, CVE-2026-39861",
    ),
    _of_file(
        "renamed",
        "renames a file of the host's",
        _renamed,
    ),
    _of_file(
        "truncated",
        "sets the length of a file of the host's by its path",
        _change(lambda path: ("truncate", path, 10)),
    ),
    _of_file(
        "mode",
        "changes the mode of a file of the host's, by every call there is",
        _change(
            lambda path: ("fchmodat", AT_FDCWD, path, 0o666),
            lambda path: ("fchmodat2", AT_FDCWD, path, 0o666, 0),
            lambda path: ("chmod", path, 0o666),
        ),
        walls=_NOT_MARKED,
    ),
    _of_file(
        "owner",
        "changes the owner of a file of the host's, by every call there is",
        _change(
            lambda path: ("fchownat", AT_FDCWD, path, os.getuid(), -1, 0),
            lambda path: ("chown", path, os.getuid(), -1),
            lambda path: ("lchown", path, os.getuid(), -1),
        ),
        walls=_NOT_MARKED,
    ),
    _of_file(
        "times",
        "changes the times of a file of the host's",
        _change(lambda path: ("utimensat", AT_FDCWD, path, NOW, 0)),
        walls=_NOT_MARKED,
    ),
    _of_file(
        "attributes",
        "gives a file of the host's an extended attribute, by every call there is",
        _attributes,
        walls=_NOT_CHANGED[:2],
    ),
    Attempt(
        "changes.root_file",
        "makes a file in the root",
        _root_made,
        control=files_work,
        walls=READ_ONLY,
        escape="room that no limit bounds, and a place to prepare more",
    ),
    Attempt(
        "changes.root_made",
        "makes folders, links and pipes in the root",
        _root_folder,
        control=calls_work,
        walls=_ROOT_READ_ONLY,
        escape="room that no limit bounds, and a place to prepare more",
    ),
    Attempt(
        "changes.unnamed",
        "makes a file without a name, in the root and above the home",
        _unnamed,
        control=files_work,
        walls=READ_ONLY,
        escape="room that no limit bounds",
    ),
    Attempt(
        "changes.device_made",
        "makes devices for disks and memory in the root",
        _device_made,
        control=calls_work,
        walls=[
            Wall("syscalls", "ENOSYS at change"),
            Wall("mounts", "EROFS at change"),
            Wall("landlock", "EACCES at change"),
            # Devices are made by who has the right to in the host's own user namespace.
            Wall("user_namespace", "EPERM at change"),
        ],
        escape="the host's memory or disk is within reach",
    ),
    Attempt(
        "changes.removed",
        "removes the interpreter, its library, the image and the home",
        _removed,
        control=calls_work,
        walls=[Wall("syscalls", "ENOSYS at change"), Wall("mounts", "EROFS at change")],
        escape="no other worker can start, or one starts with something else",
    ),
)
