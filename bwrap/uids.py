"""The pool of uids for the hosted shape: one per live worker, leased by a lock for as long as it is used.

The lock is the kernel's (flock(2)), so a lease ends with the process that holds it and daemons side by side never
share a uid. The range lies below systemd's dynamic users (61184) and has no passwd entries.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
from typing import TYPE_CHECKING

from bwrap.errors import LayerError

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, LAST = 60600, 60855
FOLDER = "/run/spl/uids"


class Lease:
    """One uid, ours until `release`; the gid is the same number."""

    def __init__(self, uid: int, descriptor: int) -> None:
        self.uid = uid
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the uid back; can be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lease(folder: str = FOLDER) -> Lease:
    """Lease a uid that nobody holds and under which nothing runs; raises `LayerError` when there is none."""
    _prepare(folder)
    busy = set(running_uids().values())
    size = LAST - FIRST + 1
    start = secrets.randbelow(size)
    for step in range(size):
        uid = FIRST + (start + step) % size
        if uid in busy or has_name(uid):
            continue
        if taken := take(uid, folder):
            return taken
    raise LayerError(
        "separate_user",
        expected=f"a free uid between {FIRST} and {LAST}",
        observed="each is leased, named in passwd, or runs a process",
        remedy="end some runs, or whatever else uses these uids",
    )


def take(uid: int, folder: str = FOLDER) -> Lease | None:
    """Lease this uid, or give None when someone holds it."""
    descriptor = os.open(f"{folder}/{uid}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return Lease(uid, descriptor)


def running_uids() -> dict[int, int]:
    """Give the uid (real) of every process, by pid."""
    return dict(_running())


def _running() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                yield int(name), os.stat(f"/proc/{name}").st_uid
            except FileNotFoundError:
                continue


def has_name(uid: int) -> bool:
    """Say whether a uid has a passwd entry: then it is somebody's."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _prepare(folder: str) -> None:
    try:
        os.makedirs(os.path.dirname(folder), mode=0o755, exist_ok=True)
        # Whatever the umask was: a worker must pass it.
        os.chmod(os.path.dirname(folder), 0o755)  # noqa: S103
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder, follow_symlinks=False)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(1, "open to others", folder)
    except OSError as error:
        raise LayerError(
            "separate_user",
            expected=f"the folder {folder}, root's own",
            observed=error.strerror or str(error),
            remedy=f"make {folder} writable for root alone",
        ) from None
