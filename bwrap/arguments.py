"""A plan's bubblewrap options: a pure function, the same plan gives the same list.

Descriptors stand in it by name, so that the list, and its digest in a receipt, are the same for every launch.
See bwrap(1).
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from bwrap.mounts import PROC, Kind, Mount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bwrap.plan import Plan

FILTER, STATUS, BLOCK, IMAGE = "{filter}", "{status}", "{block}", "{image}"
DESCRIPTORS = (FILTER, STATUS, BLOCK, IMAGE)


def arguments(plan: Plan) -> tuple[str, ...]:
    """Give the options for a plan, with the names of `DESCRIPTORS` where a descriptor's number goes."""
    return (*_namespaces(plan), *_mounts(plan), *_process())


def numbered(options: Sequence[str], descriptors: Mapping[str, int]) -> list[str]:
    """Put the descriptors of one launch into the options."""
    return [str(descriptors[option]) if option in DESCRIPTORS else option for option in options]


def packed(options: Sequence[str]) -> bytes:
    """Give the options as `--args` reads them: each ended by a NUL. Names may hold any other byte."""
    return b"".join(os.fsencode(option) + b"\0" for option in options)


def digest(options: Sequence[str], command: Sequence[str]) -> str:
    """Give the SHA-256 of options and command together, in hexadecimal."""
    return hashlib.sha256(packed([*options, "--", *command])).hexdigest()


def _namespaces(plan: Plan) -> list[str]:
    own = plan.namespaces
    chosen = [
        # A nested namespace would bring capabilities back inside it, so the kernel is told to allow none.
        *(["--unshare-user", "--disable-userns"] if own.user else []),
        *(["--unshare-net"] if own.net else []),
        *(["--unshare-ipc"] if own.ipc else []),
        *(["--unshare-uts"] if own.uts else []),
        *(["--unshare-cgroup"] if own.cgroup else []),
        # As pid 1 itself: the pid that bubblewrap names, that is probed and limited, is then the worker's.
        *(["--unshare-pid", "--as-pid-1"] if own.pid else []),
    ]
    return chosen + (["--proc", PROC] if plan.proc else [])


def _mounts(plan: Plan) -> list[str]:
    options = [part for mount in plan.mounts for part in _mount(mount)]
    # Read-only last, when everything beneath exists; the root, which bubblewrap leaves writable, last of all.
    for target in [*(mount.target for mount in plan.find(Kind.EMPTY)), *([PROC] if plan.proc else [])]:
        options += ["--remount-ro", target]
    return [*options, "--remount-ro", "/"]


def _mount(mount: Mount) -> list[str]:
    match mount.kind:
        case Kind.READ_ONLY | Kind.SOCKET:
            return ["--ro-bind", mount.source, mount.target]
        case Kind.EMPTY:
            return ["--perms", "0755", "--size", str(mount.size), "--tmpfs", mount.target]
        case Kind.TMPFS:
            return ["--perms", "0700", "--size", str(mount.size), "--tmpfs", mount.target]
        case Kind.SYMLINK:
            return ["--symlink", mount.source, mount.target]
        case Kind.IMAGE:
            # Executable by mode though it is no program, so that a refusal to execute it is a layer's (Landlock's).
            return ["--perms", "0555", "--ro-bind-data", IMAGE, mount.target]


def _process() -> list[str]:
    return [
        *("--cap-drop", "ALL"),
        # Its own session: no controlling terminal to push input into (CVE-2017-5226).
        "--new-session",
        "--die-with-parent",
        *("--chdir", "/"),
        *("--seccomp", FILTER),
        *("--json-status-fd", STATUS),
        *("--block-fd", BLOCK),
    ]
