"""The pool of uids for the hosted shape: one per live worker, leased by a lock for as long as it is used.

The lock is the kernel's (flock(2)), so a lease ends with the process that holds it and daemons side by side never
share a uid. A lock file says, until the next boot, that its uid was once a worker's.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bwrap.errors import LayerError

if TYPE_CHECKING:
    from collections.abc import Iterator


_PASSABLE = 0o755


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


@dataclass(frozen=True, slots=True)
class Pool:
    """The uids from `first` to `last`, by default below systemd's dynamic users (61184) and without passwd entries.

    `folder` holds the locks; every daemon of a host uses the same one, whatever its range.
    """

    first: int = 60600
    last: int = 60855
    folder: str = "/run/spl/uids"

    def lease(self) -> Lease:
        """Lease a uid that nobody holds and under which nothing runs; raises `LayerError` when there is none."""
        _prepare(self.folder)
        size = self.last - self.first + 1
        start = secrets.randbelow(size)
        passed = {"leased": 0, "named in passwd": 0, "with a process": 0}
        for step in range(size):
            uid = self.first + (start + step) % size
            if has_name(uid):
                passed["named in passwd"] += 1
            elif (taken := self.take(uid)) is None:
                passed["leased"] += 1
            elif in_use(uid):  # asked once it is ours: nobody else starts anything under it any more
                taken.release()
                passed["with a process"] += 1
            else:
                return taken
        raise LayerError(
            "separate_user",
            expected=f"a free uid from {self.first} to {self.last}",
            observed=", ".join(f"{count} {what}" for what, count in passed.items()),
            remedy="end some runs, or give the workers a wider range of uids",
        )

    def take(self, uid: int) -> Lease | None:
        """Lease this uid, of any range, or give None when someone holds it."""
        descriptor = os.open(self._lock(uid), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return Lease(uid, descriptor)

    def knows(self, uid: int) -> bool:
        """Say whether a uid was leased on this host since it booted, whatever the range was then."""
        return os.path.isfile(self._lock(uid))

    def _lock(self, uid: int) -> str:
        return f"{self.folder}/{uid}"


def in_use(uid: int) -> bool:
    """Say whether any process, a zombie too, has this real uid: one call, the kernel's own answer (getpriority(2))."""
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


def running_uids() -> dict[int, int]:
    """Give the effective uid of every process, by pid (proc(5))."""
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
        above = os.path.dirname(folder)
        os.makedirs(above, mode=0o755, exist_ok=True)
        # Whatever the umask was: a worker must pass it. Each change is work for a disk, so none is made for nothing.
        if stat.S_IMODE(os.stat(above).st_mode) != _PASSABLE:
            os.chmod(above, _PASSABLE)
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
