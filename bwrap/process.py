"""One confined process as the daemon sees it: its numbers, and `/proc/<pid>` read for the layers (proc(5))."""

from __future__ import annotations

import functools
import os
import re
import resource
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from bwrap.limits import resource_limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.cgroup import Group
    from bwrap.host import Shape
    from bwrap.plan import Plan


_UTIME, _STIME, _RSS = 14, 15, 24
"""Fields of /proc/<pid>/stat (proc_pid_stat(5))."""

_NAME = 26
"""Characters of a line of /proc/<pid>/limits that hold what is limited (proc_pid_limits(5))."""

_PIECE = 65536


class MountPoint(NamedTuple):
    """A line of /proc/<pid>/mountinfo (proc_pid_mountinfo(5))."""

    target: str
    type: str
    options: frozenset[str]
    root: str = "/"

    @property
    def read_only(self) -> bool:
        """Whether this mount is read-only (per mount, not per file system)."""
        return "ro" in self.options


class Use(NamedTuple):
    """What a process uses: its resident memory, files it shares with others included, and its processor time so far."""

    memory_bytes: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Process:
    """A confined process and the plan it must live up to.

    `pid` and `monitor` (bubblewrap's own) are the daemon's numbers; `uid` and `gid` are outside the namespaces. `group`
    is the cgroup that the two are in, where one is delegated.
    """

    plan: Plan
    shape: Shape
    pid: int
    monitor: int
    uid: int
    gid: int
    group: Group | None = None

    @property
    def pid_inside(self) -> int:
        """Its own pid as it sees it."""
        return 1 if self.plan.namespaces.pid else self.pid

    @property
    def parent_inside(self) -> int:
        """Its parent's pid as it sees it."""
        return 0 if self.plan.namespaces.pid else self.monitor

    def read(self, name: str) -> str:
        """Read /proc/<pid>/<name>."""
        return read_file(f"/proc/{self.pid}/{name}")

    def looked_at(self) -> Look:
        """Give it for one look at all its layers."""
        return Look(self.plan, self.shape, self.pid, self.monitor, self.uid, self.gid, self.group)

    def status(self, name: str) -> str:
        """Give one field of /proc/<pid>/status; raises `KeyError` when this kernel has no such field."""
        return _fields(self.read("status"))[name]

    @staticmethod
    def own_status(name: str) -> str:
        """Give one field of this process's own status."""
        return _fields(read_file("/proc/self/status"))[name]

    def stat(self, position: int) -> str:
        """Give a field of /proc/<pid>/stat by its number in proc(5), from 3 on."""
        return stat_fields(self.read("stat"))[position - 3]

    def use(self) -> Use:
        """Give what of the host it uses now; raises `OSError` when it is gone."""
        fields = stat_fields(self.read("stat"))
        ticks = int(fields[_UTIME - 3]) + int(fields[_STIME - 3])
        pages = int(fields[_RSS - 3])
        return Use(pages * resource.getpagesize(), ticks / os.sysconf("SC_CLK_TCK"))

    def namespace(self, name: str) -> str:
        """Give the id of one of its namespaces, as `user:[4026531837]`."""
        return os.readlink(f"/proc/{self.pid}/ns/{name}")

    def descriptors(self) -> list[str]:
        """List its open descriptors."""
        return sorted(os.listdir(f"/proc/{self.pid}/fd"), key=int)

    def numbers(self, folder: str) -> list[str]:
        """List what is called by a number in a folder as the process sees it, such as the processes of its /proc."""
        return sorted(filter(str.isdecimal, os.listdir(self.inside(folder))), key=int)

    def limits(self) -> dict[str, int]:
        """Give what the plan sets, by the names of getrlimit(2)."""
        return resource_limits(self.plan.limits)

    def limit(self, name: str) -> list[str]:
        """Give the soft and hard limit of a line of /proc/<pid>/limits."""
        return _limits(self.read("limits"))[name]

    def mounts(self) -> tuple[MountPoint, ...]:
        """Read its mount table."""
        return mount_points(self.read("mountinfo"))

    def inside(self, path: str) -> str:
        """Give the path by which the daemon reaches what the process sees at a path."""
        return f"/proc/{self.pid}/root{path}"

    @contextmanager
    def root(self) -> Iterator[int]:
        """Open the root that the process has, for a while, to look up paths from."""
        descriptor = os.open(self.inside("/"), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def files(self, folder: str) -> Iterator[str]:
        """Walk a folder as the process sees it and give everything in it that is not a folder, a link to one too."""
        with os.scandir(self.inside(folder)) as found:
            for each in found:
                path = f"{folder}/{each.name}"
                if each.is_dir(follow_symlinks=False):
                    yield from self.files(path)
                else:
                    yield path


@dataclass(frozen=True, slots=True)
class Look(Process):
    """A process as one look sees it: a file of its `/proc` is read once, whichever layers ask for it.

    Never kept beyond that look: the next one is to see what is there then.
    """

    _read: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read(self, name: str) -> str:
        """Give /proc/<pid>/<name> as this look has read it."""
        if name not in self._read:
            self._read[name] = Process.read(self, name)
        return self._read[name]


def stat_fields(text: str) -> list[str]:
    """Split /proc/<pid>/stat after the command name, which may hold spaces and parentheses; field 3 comes first."""
    return text[text.rindex(")") + 1 :].split()


def read_file(path: str) -> str:
    """Read a file of /proc, which gives no more than a page or a record at a time."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = [os.read(descriptor, _PIECE)]
        while pieces[-1]:
            pieces.append(os.read(descriptor, _PIECE))
    finally:
        os.close(descriptor)
    return os.fsdecode(b"".join(pieces))


# What these give follows from the text alone: of one that was read once, it is made once.
@functools.lru_cache(maxsize=4)
def mount_points(text: str) -> tuple[MountPoint, ...]:
    """Read a mountinfo file, in the order of mounting."""
    # Not splitlines(): the kernel escapes the newlines in a path, but not what else Python takes for one.
    return tuple(_mount_point(line) for line in text.split("\n") if line)


@functools.lru_cache(maxsize=4)
def _fields(text: str) -> dict[str, str]:
    # Not splitlines(): a name that the process gives itself may hold what else Python takes for a line's end.
    lines = (line.partition(":") for line in text.split("\n"))
    return {key: value.strip() for key, _, value in lines}


@functools.lru_cache(maxsize=4)
def _limits(text: str) -> dict[str, list[str]]:
    # A column of names, which hold spaces, then the soft and the hard limit and a unit.
    return {line[:_NAME].rstrip(): line[_NAME:].split()[:2] for line in text.split("\n")[1:] if line}


def _mount_point(line: str) -> MountPoint:
    before, _, after = line.partition(" - ")
    words = before.split(" ")
    # The kernel writes space, tab, newline and backslash in paths as octal.
    root, target = map(_unescaped, words[3:5])
    return MountPoint(target, after.split(" ", 1)[0], frozenset(words[5].split(",")), root)


def _unescaped(path: str) -> str:
    if "\\" not in path:
        return path
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)
