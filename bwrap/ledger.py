"""The ledger: what this instance has running, written where the next daemon finds it when this one is killed."""

from __future__ import annotations

import errno
import json
import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bwrap import cgroup, uids
from bwrap.supervise import kill_pid, started

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bwrap.process import Process

_UID, _START = "uid-", "start-"

_OPTIONS = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Ledger:
    """The launches this instance has made, each a file in a folder that outlives it, and the uids it leases for them.

    A launch's entry is a line of JSON, and one more once its worker is there to go by pid and start time. Nothing is
    synced: what it says is of no use after the next boot. `groups` is what it may divide among the workers.
    """

    def __init__(
        self, folder: str, pool: uids.Pool | None = None, groups: cgroup.Groups | None = None
    ) -> None:
        self._folder = Path(folder)
        self._pool = pool or uids.Pool()
        self.groups = groups or cgroup.Groups()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._live: dict[str, int] = {}
        self._ended: set[str] = set()

    def lease(self) -> uids.Lease:
        """Lease a uid, which `begin` is to write down; raises `LayerError` when there is none."""
        return self._pool.lease()

    def begin(self, nonce: str, uid: int | None = None) -> None:
        """Write a launch down before anything of it runs: until its child has a pid to go by, its nonce is all.

        With the `uid` that is leased for it, if one is, since whatever runs under that is its. And with its group, in
        which is found whatever it has forked, however long it goes on.
        """
        place = self.groups.at(nonce)
        said = {"boot": self._boot, "uid": uid, "group": place and place.folder}
        self._write(nonce, said, os.O_CREAT | os.O_EXCL)

    def add(self, nonce: str, process: Process) -> None:
        """Write down what a launch has come to; it must not have been released yet."""
        self._write(nonce, {"pid": process.pid, "start_time": started(process.pid)}, os.O_APPEND)
        self._live[nonce] = process.uid

    def holds(self, uid: int) -> bool:
        """Say whether a process of this uid is being made or lives."""
        return uid in self._live.values()

    def end(self, nonce: str) -> None:
        """Strike a launch of which nothing runs any more.

        On a disk that cannot be written its entry stands until another is struck, or for the next sweep. Nothing may
        be kept for it that a worker held: by such an entry no process is killed but one that is ours.
        """
        self._live.pop(nonce, None)
        self._ended.add(nonce)
        for each in tuple(self._ended):
            with suppress(OSError):
                self._path(each).unlink(missing_ok=True)
                self._ended.discard(each)

    def sweep(self) -> list[int]:
        """Kill what an earlier daemon of this instance left running; gives the pids.

        Only what is certainly ours, since the same boot: the same pid with the same start time, what names a launch's
        nonce in its command line or is in the group of its name, and whatever runs under a uid that this instance
        leased, whatever its range was then, and nobody has now. A group that cannot be removed stays written down.
        Before there was one file for a launch, a uid and a worker had entries of their own: they are read as well.
        """
        killed: list[int] = []
        for path in sorted(self._folder.iterdir()):
            if path.is_symlink() or not path.is_file():
                continue  # none of ours; a FIFO would be waited for
            with suppress(ValueError, KeyError, TypeError):
                said = _read(path)
                if said["boot"] != self._boot:
                    pass
                elif path.name.startswith(_START):
                    nonce = path.name.removeprefix(_START)
                    killed += _sweep_launch(nonce)
                    if said.get("pid") is not None:
                        killed += _sweep_worker(said["pid"], said["start_time"])
                    if said.get("uid") is not None:
                        killed += self._sweep_uid(said["uid"])
                    found = cgroup.sweep(said["group"], nonce) if said.get("group") else []
                    if found is None:
                        continue
                    killed += found
                elif path.name.startswith(_UID):
                    killed += self._sweep_uid(int(path.name.removeprefix(_UID)))
                else:
                    killed += _sweep_worker(int(path.name), said["start_time"])
            path.unlink(missing_ok=True)
        return sorted(set(killed))

    def _sweep_uid(self, uid: int) -> list[int]:
        # The range may have been another then. A uid that was never leased since the boot, or that has a name, is
        # somebody's, whatever the entry says.
        if not self._pool.knows(uid) or uids.has_name(uid):
            return []
        lease = self._pool.take(uid)
        if lease is None:
            return []
        try:
            return [
                pid
                for pid, owner in uids.running_uids().items()
                if owner == uid and kill_pid(pid, partial(_runs_as, pid, uid))
            ]
        finally:
            lease.release()

    def _write(self, nonce: str, said: Mapping[str, object], how: int) -> None:
        line = json.dumps(said).encode() + b"\n"
        entry = os.open(self._path(nonce), _OPTIONS | how, 0o600)
        try:
            # What is cut off here, on a full disk say, is no line, and is not read.
            if os.write(entry, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(entry)

    def _path(self, nonce: str) -> Path:
        return self._folder / f"{_START}{nonce}"


def _read(path: Path) -> dict[str, Any]:
    """Read what the lines of an entry say together; one that was not written to its end says nothing."""
    said: dict[str, Any] = {}
    for line in path.read_text().splitlines():
        with suppress(ValueError):
            said |= json.loads(line)
    return said


def _sweep_worker(pid: int, start_time: int | None) -> list[int]:
    found = start_time is not None and kill_pid(pid, lambda: started(pid) == start_time)
    return [pid] if found else []


def _sweep_launch(nonce: str) -> list[int]:
    """Kill what names a launch in its command line: bubblewrap, and its child until that is set up.

    The nonce is 128 random bits, so nothing else names it but by being told.
    """
    if not re.fullmatch(r"[0-9a-f]{32}", nonce):
        return []
    named = nonce.encode()
    return [
        pid
        for pid in uids.running_uids()
        if _named(pid, named) and kill_pid(pid, partial(_named, pid, named))
    ]


def _named(pid: int, nonce: bytes) -> bool:
    try:
        return nonce in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _runs_as(pid: int, uid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid
    except OSError:
        return False
