"""Control groups, where one is delegated: a group for each worker, which bounds all of it and ends all of it at once.

Version 2 alone (cgroups(7); Documentation/admin-guide/cgroup-v2.rst). A cgroup is this process's to divide where
whoever manages the host says so: systemd marks what it delegates with an extended attribute (its "Control Group APIs
and Delegation"). That root could write in any is no delegation.
"""

from __future__ import annotations

import errno
import os
import resource
import select
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from bwrap.errors import LayerError
from bwrap.pipes import readable
from bwrap.process import mount_points
from bwrap.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from bwrap.plan import Plan

CONTROLLERS = ("memory", "pids")
"""What a worker is bounded by, where it is there."""

DAEMON = "daemon"
"""The group of the process that divides: one with controllers for its children has no process of its own."""

_MARKS = ("user.delegate", "trusted.delegate")
_WORKER = "worker-"
_SECONDS = 5.0
_REMEDY = "give the daemon a cgroup of its own to divide (Delegate=yes, systemd.resource-control(5))"


class Place(NamedTuple):
    """A cgroup: its path as this process sees it, its folder, and where the hierarchy is mounted."""

    path: str
    folder: str
    mount: str


@dataclass(frozen=True, slots=True)
class Groups:
    """What this process may divide, with the controllers it can set and whether a group can be killed as one.

    Without a `place` it has nothing to divide, and `reason` says why; with one, `reason` says what is missing. It is
    `asked` for where a cgroup is marked as delegated.
    """

    place: Place | None = None
    controllers: tuple[str, ...] = ()
    kill: bool = False
    reason: str = "none was looked for"
    asked: bool = False

    def __str__(self) -> str:
        """Say it in a line."""
        if self.place is None:
            return f"no group for each worker: {self.reason}"
        able = [f"bounded by {' and '.join(self.controllers)}"] if self.controllers else []
        able += ["ended by cgroup.kill"] if self.kill else []
        said = f"a group for each worker, {' and '.join(able) or 'neither bounded nor ended as one'}"
        return f"{said}; {self.reason}" if self.reason else said

    @property
    def lacking(self) -> bool:
        """Whether something was asked for that is not there."""
        return self.asked and bool(self.reason)

    def wire(self) -> dict[str, object]:
        """Give it by name, for answers."""
        reason = {"reason": self.reason} if self.reason else {}
        if self.place is None:
            return {"delegated": False, **reason}
        return {"delegated": True, "controllers": list(self.controllers), "kill": self.kill, **reason}

    def at(self, name: str) -> Place | None:
        """Give where a worker's group is or will be."""
        if self.place is None:
            return None
        child = f"/{_WORKER}{name}"
        return Place(self.place.path.rstrip("/") + child, self.place.folder + child, self.place.mount)

    def make(self, name: str, plan: Plan) -> Group | None:
        """Make a worker's group and bound it by its plan; None where there is nothing to divide.

        Raises `LayerError` of the layer `limits`, and `OSError` for want of descriptors or memory; a group that could
        not be bounded is gone then.
        """
        place = self.at(name)
        if place is None:
            return None
        group = Group(place, bounds(plan, self.controllers))
        try:
            os.mkdir(place.folder, 0o755)
            try:
                group.bound()
            except OSError:
                os.rmdir(place.folder)
                raise
        except OSError as error:
            raise _refusal("a group in the cgroup that is delegated to the daemon", error) from None
        return group


class Group:
    """One worker's group; `bounds` is what is written in it, by the names of its files."""

    def __init__(self, place: Place, bounds: dict[str, str]) -> None:
        self.place = place
        self.bounds = bounds

    def bound(self) -> None:
        """Write the bounds; raises `OSError`. Without swap in the kernel there is none to forbid."""
        if not os.path.exists(f"{self.place.folder}/memory.swap.max"):
            self.bounds.pop("memory.swap.max", None)
        for name, value in self.bounds.items():
            _write(f"{self.place.folder}/{name}", value)

    def read(self, name: str) -> str:
        """Read a file of it; raises `OSError`."""
        return _read(f"{self.place.folder}/{name}")

    def enter(self, pids: Iterable[int]) -> None:
        """Move processes in that are not there, and see that they are in it and nothing else is.

        The kernel takes some milliseconds to move one (a grace period of its RCU). Raises `ProcessLookupError` for one
        that has ended, `LayerError` of the layer `limits`, and `OSError` for want of descriptors or memory.
        """
        pids = sorted(pids)
        expected = f"processes {' and '.join(map(str, pids))} in a group of their own"
        try:
            for pid in set(pids) - set(processes(self.place.folder)):
                _write(f"{self.place.folder}/cgroup.procs", str(pid))
            found = processes(self.place.folder)
        except ProcessLookupError:
            raise
        except OSError as error:
            raise _refusal(expected, error) from None
        if set(pids) - set(found):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if found != pids:
            raise LayerError(
                "limits",
                expected=expected,
                observed=f"it holds {' and '.join(map(str, found)) or 'none'}",
                remedy=_REMEDY,
            )

    def starved(self) -> str | None:
        """Say for want of which memory the kernel killed in it: `memory` of its own bound, `host_memory` of another.

        The other is one above, or all that the host has: then it may have taken little itself. None where the kernel
        did not.
        """
        with suppress(FileNotFoundError):
            events = dict(_pairs(self.read("memory.events")))
            if int(events.get("oom_kill", "0")):
                # Counted where the bound is that was met, and above that.
                return "memory" if int(events["oom"]) else "host_memory"
        return None

    def kill(self) -> None:
        """Kill everything in it at once, whatever it forked; where the kernel cannot (before 5.14), nothing.

        Raises `OSError`.
        """
        _kill(self.place.folder)

    async def empty(self) -> None:
        """Kill what is left in it and wait until nothing lives; raises `OSError`."""
        self.kill()
        with _Populated(self.place.folder) as populated:
            while populated.now():
                await readable(populated.changes.fileno())

    def remove(self) -> None:
        """Remove it, in which nothing lives any more; raises `OSError`."""
        os.rmdir(self.place.folder)


def bounds(plan: Plan, controllers: Iterable[str]) -> dict[str, str]:
    """Give what a worker's group is bounded by: what admission reckons with, and its processes beside the monitor.

    Nothing of it may be swapped: then it would take more than is reckoned. Where it takes too much all of it goes, not
    one process of several.
    """
    page = resource.getpagesize()  # what memory.max is rounded down to
    said = {
        "memory": {
            "memory.max": str(plan.worst_case // page * page),
            "memory.swap.max": "0",
            "memory.oom.group": "1",
        },
        "pids": {"pids.max": str(plan.limits.processes + 1)},
    }
    return {name: value for each in controllers for name, value in said[each].items()}


def look(root: str = "") -> Groups:
    """Say what is delegated to this process, and change nothing; `root` goes before every path that is read."""
    try:
        own = place = _own(root)
        # What moved there has the group above it to divide.
        if os.path.basename(own.path) == DAEMON and not _marked(own) and own.folder != own.mount:
            place = Place(os.path.dirname(own.path), os.path.dirname(own.folder), own.mount)
        if not _marked(place):
            return Groups(reason=f"its cgroup {printable(own.path)} is not delegated to it")
        there = _read(f"{place.folder}/cgroup.controllers").split()
    except OSError as error:
        return Groups(reason=f"its cgroup cannot be told: {_said(error)}")
    for path in (place.folder, f"{place.folder}/cgroup.procs", f"{place.folder}/cgroup.subtree_control"):
        if not os.access(path, os.W_OK):
            return Groups(reason=f"{printable(path)} is delegated and cannot be written", asked=True)
    able = tuple(each for each in CONTROLLERS if each in there)
    kill = os.path.exists(f"{place.folder}/cgroup.kill")
    return Groups(place, able, kill, _missing(able, kill), asked=True)


def take() -> Groups:
    """Divide what is delegated to this process: move it, with all its threads, into a child, and give the rest out.

    Nothing raises: what cannot be had is told.
    """
    found = look()
    if found.place is None:
        return found
    folder, path = found.place.folder, printable(found.place.path)
    try:
        # Not where it is there already: a daemon that was started anew, or DelegateSubgroup= (systemd 254).
        if os.getpid() in processes(folder):
            os.makedirs(f"{folder}/{DAEMON}", exist_ok=True)
            _write(f"{folder}/{DAEMON}/cgroup.procs", str(os.getpid()))
        refused = [why for each in found.controllers if (why := _enable(folder, each))]
        enabled = _read(f"{folder}/cgroup.subtree_control").split()
    except OSError as error:
        return Groups(reason=f"{path} is delegated and cannot be divided: {_said(error)}", asked=True)
    able = tuple(each for each in CONTROLLERS if each in enabled)
    missing = [_missing(able, found.kill), *refused]
    return replace(found, controllers=able, reason="; ".join(filter(None, missing)))


def sweep(folder: str, name: str) -> list[int] | None:
    """Kill what is left in a worker's group of an earlier daemon, and remove it; gives the pids, or None if it stays.

    A folder that is not called as the group of that `name` would be, or that does not lie itself in a cgroup that is
    delegated, is none, and left alone.
    """
    parent, child = os.path.split(folder)
    if child != f"{_WORKER}{name}" or os.path.realpath(folder) != folder or not os.path.isdir(folder):
        return []
    if not _marked(Place("", parent, "")):
        return []
    try:
        found = processes(folder)
        _kill(folder)
        with _Populated(folder) as populated:
            while populated.now() and populated.changes.poll(_SECONDS):
                pass
        os.rmdir(folder)
    except OSError:
        return None
    return found


def members(path: str) -> Iterator[int]:
    """Give what is in a group by its path, zombies too, which its own list leaves out."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            if path_of(int(pid)) == path:
                yield int(pid)


def path_of(pid: int | str, root: str = "") -> str | None:
    """Give the path of a process's cgroup as this process sees it; None without such a hierarchy. Raises `OSError`."""
    lines = _read(f"{root}/proc/{pid}/cgroup").split("\n")
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)


def memory_left(root: str = "") -> int | None:
    """Give the bytes that the bounds of this process's cgroup and of those above it leave, as far as they can be seen.

    None where nothing bounds it. At `memory.high` nothing is killed, but all that run there are held up: who admits by
    this must stay below either. What was read from files and can be dropped is not taken for used. `root` goes before
    every path. Raises `OSError` or `ValueError`.
    """
    try:
        place = _own(root)
    except FileNotFoundError:
        return None
    left = []
    folder = place.folder
    while folder.startswith(place.mount):
        # The root has no such files, nor has any group without the controller.
        with suppress(FileNotFoundError):
            bounds = [_read(f"{folder}/{name}") for name in ("memory.max", "memory.high")]
            for most in (bound for bound in bounds if bound != "max"):
                dropped = int(dict(_pairs(_read(f"{folder}/memory.stat"))).get("inactive_file", "0"))
                left.append(max(0, int(most) - int(_read(f"{folder}/memory.current")) + dropped))
        folder = os.path.dirname(folder)
    return min(left, default=None)


def processes(folder: str) -> list[int]:
    """Give the pids in a group, zombies left out, in order; raises `OSError`."""
    return sorted(map(int, _read(f"{folder}/cgroup.procs").split()))


class _Populated:
    """Whether anything lives in a group, and an epoll that is readable when that changes.

    Such a file can always be read; what says that it has changed is POLLPRI, which asyncio does not wait for.
    """

    def __init__(self, folder: str) -> None:
        with ExitStack() as held:
            self._file = os.open(f"{folder}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, self._file)
            self.changes = held.enter_context(select.epoll())
            self.changes.register(self._file, select.EPOLLPRI)
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def now(self) -> bool:
        """Say whether anything lives in it now; what changes after that makes `changes` readable."""
        return dict(_pairs(os.pread(self._file, 4096, 0).decode()))["populated"] == "1"


def _own(root: str) -> Place:
    """Find this process's cgroup; raises `OSError` where it has none, or none that can be seen.

    On a host with both versions the second is mounted somewhere below; in a container a part of it may be.
    """
    path = path_of("self", root)
    if path is None:
        raise FileNotFoundError(errno.ENOENT, "this host has no hierarchy of version 2")
    for mount in mount_points(_read(f"{root}/proc/self/mountinfo")):
        base = mount.root.rstrip("/")
        if (
            mount.type == "cgroup2"
            and "/.." not in path
            and (path == mount.root or path.startswith(f"{base}/"))
        ):
            at = root + mount.target
            return Place(path, f"{at}{path[len(base) :].rstrip('/')}", at)
    raise FileNotFoundError(errno.ENOENT, "no file system of version 2 that shows it is mounted")


def _marked(place: Place) -> bool:
    for name in _MARKS:
        # Not there, not to be read, or not on such a file system.
        with suppress(OSError):
            if os.getxattr(place.folder, name) == b"1":
                return True
    return False


def _kill(folder: str) -> None:
    with suppress(FileNotFoundError):
        _write(f"{folder}/cgroup.kill", "1")


def _enable(folder: str, controller: str) -> str | None:
    """Have a controller set in the children; gives why it cannot be."""
    try:
        _write(f"{folder}/cgroup.subtree_control", f"+{controller}")
    except OSError as error:
        # A group that has processes of its own cannot have it: the rule is the kernel's.
        others = processes(folder) if error.errno == errno.EBUSY else []
        held = f": process {others[0]} sits in the cgroup that is delegated" if others else ""
        return f"{controller} cannot be had ({_said(error)}){held}"
    return None


def _missing(able: Iterable[str], kill: bool) -> str:
    lacking = [each for each in CONTROLLERS if each not in able]
    said = [f"without the controller {each}" for each in lacking]
    return " and ".join(said if kill else [*said, "without cgroup.kill"])


def _refusal(expected: str, error: OSError) -> LayerError | OSError:
    """Give what a launch is refused by; what this process has too little of is no matter of groups."""
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return error
    return LayerError("limits", expected=expected, observed=_said(error), remedy=_REMEDY)


def _said(error: OSError) -> str:
    return printable(f"{error.strerror}: {error.filename}" if error.filename else f"{error.strerror}")


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Read a flat keyed file."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        yield name, value


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="surrogateescape").removesuffix("\n")


def _write(path: str, text: str) -> None:
    """Write to a file that is there, in one call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise type(error)(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)
