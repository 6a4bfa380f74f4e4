"""The ledger: what this instance has running, written where the next daemon finds it when this one is killed."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bwrap import cgroup, uids
from bwrap.supervise import kill_pid, started

if TYPE_CHECKING:
    from bwrap.process import Process

_UID, _START = "uid-", "start-"


class Ledger:
    """The workers this instance has, by pid and start time, and the uids it leases, in a folder that outlives it.

    `groups` is what it may divide among them.
    """

    def __init__(
        self, folder: str, pool: uids.Pool | None = None, groups: cgroup.Groups | None = None
    ) -> None:
        self._folder = Path(folder)
        self._pool = pool or uids.Pool()
        self.groups = groups or cgroup.Groups()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._live: dict[int, int] = {}
        self._ended: set[str] = set()

    def lease(self) -> uids.Lease:
        """Lease a uid and write it down before anything runs under it: a daemon that dies then leaves no pid to go by.

        Raises `LayerError` when there is none.
        """
        lease = self._pool.lease()
        try:
            self._write(f"{_UID}{lease.uid}", None)
        except BaseException:
            lease.release()
            raise
        return lease

    def release(self, lease: uids.Lease) -> None:
        """Give a uid back under which nothing of ours runs any more."""
        self._strike(f"{_UID}{lease.uid}")
        lease.release()

    def begin(self, nonce: str) -> None:
        """Write a launch down before anything of it runs: until its child has a pid to go by, its nonce is all.

        With its group, in which is found whatever it has forked, however long it goes on.
        """
        place = self.groups.at(nonce)
        self._write(f"{_START}{nonce}", None, group=place and place.folder)

    def end(self, nonce: str) -> None:
        """Strike a launch of which nothing runs any more."""
        self._strike(f"{_START}{nonce}")

    def add(self, process: Process) -> None:
        """Write a worker down; it must not have been released yet."""
        self._write(str(process.pid), started(process.pid))
        self._live[process.pid] = process.uid

    def holds(self, uid: int) -> bool:
        """Say whether a process of this uid is being made or lives."""
        return uid in self._live.values()

    def remove(self, process: Process) -> None:
        """Strike a worker that is gone."""
        self._live.pop(process.pid, None)
        self._strike(str(process.pid))

    def sweep(self) -> list[int]:
        """Kill what an earlier daemon of this instance left running; gives the pids.

        Only what is certainly ours, since the same boot: the same pid with the same start time, what names a launch's
        nonce in its command line or is in the group of its name, and whatever runs under a uid that this instance
        leased, whatever its range was then, and nobody has now. A group that cannot be removed stays written down.
        """
        killed: list[int] = []
        for path in sorted(self._folder.iterdir()):
            if path.is_symlink() or not path.is_file():
                continue  # none of ours; a FIFO would be waited for
            with suppress(ValueError, KeyError, TypeError):
                said = json.loads(path.read_text())
                if said["boot"] != self._boot:
                    pass
                elif path.name.startswith(_START):
                    nonce = path.name.removeprefix(_START)
                    killed += _sweep_launch(nonce)
                    found = cgroup.sweep(said["group"], nonce) if said.get("group") else []
                    if found is None:
                        continue
                    killed += found
                elif path.name.startswith(_UID):
                    killed += self._sweep_uid(int(path.name.removeprefix(_UID)))
                elif _sweep_worker(int(path.name), said["start_time"]):
                    killed.append(int(path.name))
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

    def _write(self, name: str, start_time: int | None, *, group: str | None = None) -> None:
        # Whole or not at all: a daemon that dies here must not leave an entry that says nothing.
        draft = self._folder / ".draft"
        draft.write_text(json.dumps({"boot": self._boot, "start_time": start_time, "group": group}))
        draft.replace(self._folder / name)
        self._ended.discard(name)

    def _strike(self, name: str) -> None:
        """Strike an entry; on a disk that cannot be written it stands until another is struck, or for the next sweep.

        Nothing may be kept for it that a worker held: by such an entry no process is killed but one that is ours.
        """
        self._ended.add(name)
        for each in tuple(self._ended):
            with suppress(OSError):
                (self._folder / each).unlink(missing_ok=True)
                self._ended.discard(each)


def _sweep_worker(pid: int, start_time: int | None) -> bool:
    return start_time is not None and kill_pid(pid, lambda: started(pid) == start_time)


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
