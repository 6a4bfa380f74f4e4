"""A cgroup that is delegated as systemd would delegate it, for tests that start a process in one."""

from __future__ import annotations

import os
import select
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bwrap.process import mount_points

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECONDS = 10
_OWNED = ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads")


class Delegated:
    """A cgroup that is marked as delegated, by its folder and by its path in the hierarchy."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.path = f"/{os.path.basename(folder)}"

    @property
    def controllers(self) -> list[str]:
        """Which of those that bound a worker this host has for it; the others may belong to version 1."""
        there = Path(self.folder, "cgroup.controllers").read_text().split()
        return [each for each in ("memory", "pids") if each in there]

    def enter(self, pid: int) -> None:
        """Move a process in, as whoever delegates does."""
        Path(self.folder, "cgroup.procs").write_text(str(pid))

    def prefix(self) -> list[str]:
        """Give what goes before a command that is to be started in it, by root.

        One that was divided takes no process itself: then it is started where its last daemon was.
        """
        enter = (
            f"echo $$ 2>/dev/null >{self.folder}/cgroup.procs || echo $$ >{self.folder}/daemon/cgroup.procs"
        )
        return ["sh", "-c", f'{enter}; exec "$@"', "sh"]

    def groups(self) -> list[str]:
        """List the groups that are in it."""
        return sorted(each.name for each in Path(self.folder).iterdir() if each.is_dir())


@contextmanager
def delegated(uid: int) -> Iterator[Delegated]:
    """Make a cgroup and delegate it to a user; it is removed with all that is still in it."""
    if os.getuid() != 0:
        pytest.skip("only root can delegate a cgroup")
    mounts = [
        each for each in mount_points(Path("/proc/self/mountinfo").read_text()) if each.type == "cgroup2"
    ]
    folder = tempfile.mkdtemp(prefix="spl-test-", dir=mounts[0].target)
    os.chmod(folder, 0o755)
    os.setxattr(folder, "user.delegate", b"1")
    for name in _OWNED:
        os.chown(f"{folder}/{name}", uid, uid)
    try:
        yield Delegated(folder)
    finally:
        _remove(folder)


def _remove(folder: str) -> None:
    Path(folder, "cgroup.kill").write_text("1")
    with open(f"{folder}/cgroup.events", "rb", buffering=0) as events:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        while b"populated 1" in os.pread(events.fileno(), 4096, 0):
            assert poll.poll(_SECONDS * 1000), f"something in {folder} does not die"
    for path, _, _ in os.walk(folder, topdown=False):
        os.rmdir(path)
