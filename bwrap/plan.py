"""From a profile to a plan: every token a path, every group compiled, nothing of one run in it.

A plan is the same for both shapes and for every run of its profile, so that workers can be made before the run
they will serve exists.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from bwrap import groups, seccomp
from bwrap.errors import LayerError, ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bwrap.host import Host, Python
    from bwrap.profile import Limits, Namespaces, Profile

PATH = "/usr/bin"
IMAGE = "/spl-worker.pyc"
_EMPTY_SIZE = 65536
_LINKER_FOLDERS = ("/usr/lib", "/lib")


class Kind(StrEnum):
    """What stands at a place in the sandbox."""

    READ_ONLY = "read_only"
    SOCKET = "socket"
    EMPTY = "empty"
    TMPFS = "tmpfs"
    SYMLINK = "symlink"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class Mount:
    """One thing in the sandbox's view: `source` is a host path (a link's text for a symlink), `size` in bytes."""

    kind: Kind
    target: str
    source: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Places:
    """The daemon's places that profiles name by token."""

    home: str
    worker_socket: str

    @property
    def socket_inside(self) -> str:
        """The worker socket's path as the worker sees it."""
        return f"{self.home}/run/spl-worker.sock"


@dataclass(frozen=True, slots=True)
class Plan:
    """A profile resolved on a host: all that `arguments`, `launch` and `layers` need."""

    profile: str
    profile_digest: str
    namespaces: Namespaces
    mounts: tuple[Mount, ...]
    proc: bool
    limits: Limits
    filter: seccomp.Filter
    host: Host
    places: Places

    @property
    def command(self) -> tuple[str, ...]:
        """The confined command up to its own arguments.

        bubblewrap adds PWD to the environment, so env(1) clears it once more; `-I -S` keeps the interpreter from
        reading anything but its own library, `-B` from trying to write there.
        """
        python = self.host.python
        return (python.env, "-i", f"PATH={PATH}", python.path, "-I", "-S", "-B", IMAGE)

    def find(self, kind: Kind) -> Iterator[Mount]:
        """Give the mounts of one kind, parents before children."""
        return (mount for mount in self.mounts if mount.kind is kind)


def resolve(profile: Profile, host: Host, places: Places) -> Plan:
    """Resolve a profile; raises `ProfileError`, `seccomp.FilterError`, or `LayerError` for a source that is missing."""
    rules = groups.rules(profile, seccomp.architecture())
    mounts = _mounts(profile, host.python, places)
    return Plan(
        profile=profile.name,
        profile_digest=profile.digest,
        namespaces=profile.namespaces,
        mounts=mounts,
        proc=profile.filesystem.proc == "own",
        limits=profile.limits,
        filter=seccomp.compile_filter(rules),
        host=host,
        places=places,
    )


def _mounts(profile: Profile, python: Python, places: Places) -> tuple[Mount, ...]:
    said = profile.filesystem
    found: list[Mount] = [Mount(Kind.IMAGE, IMAGE)]
    for source in said.read_only:
        paths = _python_paths(python) if source == "@python" else [_path(source, places)]
        found += [Mount(Kind.READ_ONLY, _settled(path), path) for path in paths]
        found += _links(paths)
        found += _default_places(python.objects) if source == "@python" else []
    found += [Mount(Kind.EMPTY, _path(source, places), size=_EMPTY_SIZE) for source in said.empty]
    found += [Mount(Kind.TMPFS, _path(each.path, places), size=each.size) for each in said.tmpfs]
    for source in said.sockets:
        inside = places.socket_inside if source == "@worker_socket" else source
        found.append(Mount(Kind.SOCKET, inside, _path(source, places)))
    return _in_order(profile.name, found)


def _in_order(profile: str, found: Iterable[Mount]) -> tuple[Mount, ...]:
    """Sort by depth, so that the order of a profile's entries changes nothing, and check each source."""
    by_target: dict[str, Mount] = {}
    for mount in found:
        if by_target.setdefault(mount.target, mount) != mount:
            raise ProfileError(profile, "filesystem", f"two different things at {mount.target!r}")
        if mount.kind in (Kind.READ_ONLY, Kind.SOCKET) and not os.path.exists(mount.source):
            raise LayerError(
                "mounts",
                expected=f"{mount.source!r} on this host",
                observed="nothing there",
                remedy=f"make it, or take it out of profile {profile!r}",
            )
    return tuple(sorted(by_target.values(), key=lambda mount: (mount.target.count("/"), mount.target)))


def _path(source: str, places: Places) -> str:
    match source:
        case "@home":
            return places.home
        case "@worker_socket":
            return places.worker_socket
        case "@scratch":
            return "/tmp"  # noqa: S108 - inside the sandbox
        case _:
            return source


def _python_paths(python: Python) -> list[str]:
    return [python.path, python.library, python.env, *python.objects]


def _default_places(objects: Iterable[str]) -> Iterator[Mount]:
    """Give the shared objects outside the linker's default folders a second place within them.

    An interpreter may name them relative to itself (`$ORIGIN`, ld.so(8)), which the linker resolves through
    /proc/self/exe: in a sandbox without /proc it would not find them.
    """
    for path in objects:
        if not os.path.dirname(_settled(path)).startswith(_LINKER_FOLDERS):
            yield Mount(Kind.READ_ONLY, f"/usr/lib/{os.path.basename(path)}", path)


def _settled(path: str) -> str:
    """Give the path with its folder's links followed, as bubblewrap must be told; the name itself stays."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _links(paths: Iterable[str]) -> Iterator[Mount]:
    """Give the links at the root (merged /usr: /lib -> usr/lib) that the paths go through."""
    for top in {"/" + path.split("/", 2)[1] for path in paths}:
        if os.path.islink(top):
            yield Mount(Kind.SYMLINK, top, os.readlink(top))
