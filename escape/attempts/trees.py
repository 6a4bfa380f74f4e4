"""Out by the newer calls on mounts: contexts, trees and attributes, and what tells of them by number.

As in `mounts`, most chains make the call twice: once with arguments that the kernel refuses before it asks for rights
and in another way (EINVAL, EBADF, EFAULT), which only the filter answers with EPERM, and once in earnest.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from escape.attempt import Attempt, Wall
from escape.attempts._making import ROOM, VIEW, without_rights
from escape.inside import AT_FDCWD, Stopped, World, call, calls_work, each, every, files_work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Chain = Callable[[World], str]

_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_EMPTY_PATHS = 1, 0x4 | 0x40
_FSCONFIG_SET_STRING, _FSCONFIG_CREATE = 1, 6
_LSMT_ROOT = (1 << 64) - 1


def _context(kind: str) -> int:
    return call("fsopen", kind, 1)


def _with_new_calls(kind: str) -> Chain:
    """Mount by the newer calls, from the context of a file system to the mount that is moved into place."""

    def chain(world: World) -> str:
        context = _context(kind)
        try:
            call("fsconfig", context, _FSCONFIG_CREATE, None, None, 0)
            mount = call("fsmount", context, 1, 0)
            try:
                call("move_mount", mount, "", AT_FDCWD, world.home, _MOVE_MOUNT_EMPTY_PATHS)
                return f"a {kind} over the home: {os.listdir(world.home)[:9]}"
            finally:
                os.close(mount)
        finally:
            os.close(context)

    # Of no context, with no such flags: EINVAL or EBADF without a filter.
    return lambda world: every(
        lambda: f"configured nothing ({call('fsconfig', -1, 99, None, None, 0)})",
        lambda: f"moved nothing ({call('move_mount', -1, '', -1, '', 1 << 30)})",
        lambda: chain(world),
    )


def _overflown(_: World) -> str:
    """Give a legacy file system more parameters than its page holds: the length wraps, and the page's end is passed."""

    def chain() -> str:
        context = _context("cgroup")
        try:
            # Far from the end, and of no meaning: that it is parsed at all is what is looked for.
            with suppress(Stopped):
                call("fsconfig", context, _FSCONFIG_SET_STRING, "inside", "x" * 64, 0)
        finally:
            os.close(context)
        return "the kernel parses parameters of file systems"

    return every(
        lambda: f"configured nothing ({call('fsconfig', -1, _FSCONFIG_SET_STRING, 'a', 'b', 0)})", chain
    )


def _tree_cloned(world: World) -> str:
    def chain(path: str) -> str:
        tree = call("open_tree", AT_FDCWD, path, _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC)
        try:
            call("move_mount", tree, "", AT_FDCWD, world.home, _MOVE_MOUNT_EMPTY_PATHS)
            return f"{path} is mounted over the home"
        finally:
            os.close(tree)

    return every(
        lambda: f"no such flags ({call('open_tree', AT_FDCWD, '/', 1 << 30)})",
        lambda: chain("/"),
        lambda: chain(world.home),
    )


class _Attributes(ctypes.Structure):
    """`struct mount_attr`: what to set, what to clear, how to propagate, and a user namespace to map ids by."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


def _attributes(world: World) -> str:
    """Clear read-only, nosuid, nodev and noexec; each call is also made with a size that the kernel refuses first."""
    loose = _Attributes(0, 1 | 2 | 4 | 8, 0, 0)
    return every(
        lambda: f"no size ({call('mount_setattr', -1, '', 0, loose, 1)})",
        lambda: each(
            "mount_setattr",
            [(AT_FDCWD, path, _AT_RECURSIVE, loose, 32) for path in ("/", world.home, world.library)],
            "it can be written",
        ),
    )


def _tree_attributes(world: World) -> str:
    loose = _Attributes(0, 1 | 2 | 4 | 8, 0, 0)
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE

    def chain() -> str:
        os.close(call("open_tree_attr", AT_FDCWD, world.library, flags, loose, 32))
        return "a copy of the library's mount that can be written"

    return every(
        lambda: f"no size ({call('open_tree_attr', AT_FDCWD, '/', flags, loose, 1)})",
        lambda: f"no such flags ({call('open_tree_attr', AT_FDCWD, '/', 1 << 30, None, 0)})",
        chain,
    )


def _picked(world: World) -> str:
    def chain() -> str:
        context = call("fspick", AT_FDCWD, world.home, 0)
        try:
            call("fsconfig", context, 0, "rw", None, 0)
            call("fsconfig", context, 7, None, None, 0)
        finally:
            os.close(context)
        return "the home's cover can be written"

    return every(lambda: f"configured nothing ({call('fsconfig', -1, 99, None, None, 0)})", chain)


class _MountRequest(ctypes.Structure):
    """`struct mnt_id_req`, of its first version: its size, a mount's number, and what is asked."""

    _fields_ = (
        ("size", ctypes.c_uint32), ("spare", ctypes.c_uint32), ("mount", ctypes.c_uint64), ("asked", ctypes.c_uint64),
    )  # fmt: skip


def _listed(_: World) -> str:
    """List the mounts: where on the host each thing lies that is shown, is what statmount would tell."""
    found = (ctypes.c_uint64 * 64)()
    request = _MountRequest(24, 0, _LSMT_ROOT, 0)
    return f"{call('listmount', request, found, 64, 0)} mounts are listed"


def _told(_: World) -> str:
    found = (ctypes.c_uint64 * 64)()
    call("listmount", _MountRequest(24, 0, _LSMT_ROOT, 0), found, 64, 0)
    text = (ctypes.c_uint8 * 4096)()

    def where(mount: int) -> str:
        # STATMOUNT_MNT_ROOT: the path on the file system that it came from.
        call("statmount", _MountRequest(24, 0, mount, 8), text, 4096, 0)
        return bytes(text[512:]).strip(b"\0").split(b"\0")[0].decode("utf-8", "replace")

    told = [where(mount) for mount in found if mount]
    return f"{len(told)} of the host's paths"


def _statmount(world: World) -> str:
    # With no request the kernel says EFAULT.
    return every(lambda: f"told of nothing ({call('statmount', None, None, 0, 0)})", lambda: _told(world))


ATTEMPTS: tuple[Attempt, ...] = (
    *(
        Attempt(
            f"trees.new_calls_{kind}",
            f"mounts a {kind} by the newer calls, step by step",
            _with_new_calls(kind),
            control=files_work,
            walls=[
                Wall("syscalls", "EPERM at fsconfig, EPERM at move_mount, EPERM at fsopen"),
                *without_rights("EINVAL at fsconfig, EPERM at move_mount, EPERM at fsopen"),
            ],
            escape=VIEW,
            cve="CVE-2021-41133",
        )
        for kind in ("tmpfs", "proc")
    ),
    Attempt(
        "trees.overflown",
        "gives a file system parameters by the newer calls, whose length once wrapped",
        _overflown,
        control=files_work,
        walls=[
            Wall("syscalls", "EPERM at fsconfig, EPERM at fsopen"),
            *without_rights("EINVAL at fsconfig, EPERM at fsopen"),
        ],
        escape="the kernel's memory is written past a page",
        cve="CVE-2022-0185",
    ),
    Attempt(
        "trees.cloned",
        "clones the tree of the root and of the home's cover and moves it into place",
        _tree_cloned,
        control=files_work,
        walls=[
            Wall("syscalls", "EPERM at open_tree"),
            *without_rights("EINVAL at open_tree, EPERM at open_tree"),
        ],
        escape=VIEW,
        cve="CVE-2021-41133, CVE-2021-42762",
    ),
    Attempt(
        "trees.attributes",
        "clears read-only, nosuid and nodev of what is mounted",
        _attributes,
        control=files_work,
        walls=[
            Wall("syscalls", "EPERM at mount_setattr"),
            *without_rights("EINVAL at mount_setattr, EPERM at mount_setattr"),
        ],
        escape=ROOM,
        cve="CVE-2021-41133",
    ),
    Attempt(
        "trees.cloned_attributes",
        "clones the library's mount without read-only, by the newest call",
        _tree_attributes,
        control=files_work,
        walls=[
            Wall("syscalls", "EPERM at open_tree_attr"),
            *without_rights("EPERM at open_tree_attr, EINVAL at open_tree_attr"),
        ],
        escape=ROOM,
    ),
    Attempt(
        "trees.picked",
        "picks the home's cover to configure it anew",
        _picked,
        control=files_work,
        walls=[
            Wall("syscalls", "EPERM at fsconfig, EPERM at fspick"),
            *without_rights("EINVAL at fsconfig, EPERM at fspick"),
        ],
        escape=ROOM,
        cve="CVE-2021-41133",
    ),
    Attempt(
        "trees.listed",
        "lists the mounts by number",
        _listed,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at listmount")],
        escape="what the sandbox is made of is known",
    ),
    Attempt(
        "trees.told",
        "asks of each mount where on the host it lies",
        _statmount,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at statmount, EPERM at listmount")],
        escape="the host's paths are known",
    ),
)
