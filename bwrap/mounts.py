"""What stands where in a sandbox: a profile's words on files turned into mounts, parents before children.

Whatever a profile nests, bubblewrap must never have to make a path on the host, and nothing may cover or open what
the layers claim. What cannot be had is said here, at the word that asks for it; nothing is left for bubblewrap to find.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from bwrap import sources
from bwrap.profile import OPTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bwrap.errors import ProfileError
    from bwrap.host import Python
    from bwrap.profile import Profile
    from bwrap.sources import Source

IMAGE = "/spl-worker.pyc"
"""Where the sealed program stands."""

PROC = "/proc"
_SCRATCH = "/tmp"  # noqa: S108 - inside the sandbox
_EMPTY_SIZE = 65536
_LINKER_FOLDERS = ("/usr/lib", "/lib")

Word = tuple[str | int, ...]
"""The place of a word in a profile, as `Profile.fault` takes it."""


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
    """One thing in the sandbox's view.

    `source` is a host path with every link followed (a link's text for a symlink), `size` in bytes. What of the host
    is shown was `examined`.
    """

    kind: Kind
    target: str
    source: str = ""
    size: int = 0
    # By whichever of its names it is shown, it is one thing.
    examined: Source | None = field(default=None, compare=False)

    @classmethod
    def of(cls, kind: Kind, target: str, examined: Source) -> Mount:
        """Show at a place what a path of the host leads to."""
        return cls(kind, target, examined.real, examined=examined)

    @property
    def of_host(self) -> bool:
        """Whether a path of the host is shown there."""
        return self.kind in (Kind.READ_ONLY, Kind.SOCKET)


@dataclass(frozen=True, slots=True)
class Places:
    """The daemon's places that profiles name by token."""

    home: str
    worker_socket: str

    @property
    def socket_inside(self) -> str:
        """The worker socket's path as the worker sees it."""
        return f"{self.home}/run/spl-worker.sock"


class Mounts(NamedTuple):
    """All mounts of a plan, and the optional sources that are not there, as the profile names them."""

    found: tuple[Mount, ...]
    absent: tuple[str, ...]


class _Said(NamedTuple):
    mount: Mount
    word: Word


def mounts(profile: Profile, python: Python, places: Places) -> Mounts:
    """Turn what a profile says of files into mounts on this host.

    Raises `ProfileError` at the word that cannot be had, `LayerError` for a source that is missing or not to be shown.
    """
    files = profile.filesystem
    if files.proc == "own" and not profile.namespaces.pid:
        reason = "'own' needs the pid namespace: without it bubblewrap mounts the host's /proc"
        raise profile.fault(("filesystem", "proc"), reason)
    said, absent = [_Said(Mount(Kind.IMAGE, IMAGE), ())], []
    for index, text in enumerate(files.read_only):
        word: Word = ("filesystem", "read_only", index)
        path = _path(profile, word, text.removeprefix(OPTIONAL), {"@python": ""})
        if text == "@python":
            said += [_Said(mount, word) for mount in _interpreter(python, places.home)]
        elif text.startswith(OPTIONAL) and not os.path.exists(path):
            absent.append(path)
        else:
            said += [_Said(mount, word) for mount in _shown([sources.require(path, places.home)])]
    for index, text in enumerate(files.empty):
        word = ("filesystem", "empty", index)
        path = _path(profile, word, text, {"@home": places.home, "@scratch": _SCRATCH})
        said.append(_Said(Mount(Kind.EMPTY, path, size=_EMPTY_SIZE), word))
    for index, each in enumerate(files.tmpfs):
        word = ("filesystem", "tmpfs", index, "path")
        path = _path(profile, word, each.path, {"@scratch": _SCRATCH})
        said.append(_Said(Mount(Kind.TMPFS, path, size=each.size), word))
    for index, text in enumerate(files.sockets):
        word = ("filesystem", "sockets", index)
        path = _path(profile, word, text, {"@worker_socket": places.worker_socket})
        sources.require_socket(path)
        inside = places.socket_inside if text == "@worker_socket" else path
        said.append(_Said(Mount.of(Kind.SOCKET, inside, sources.examine(path)), word))
    return Mounts(_arranged(profile, places, said), tuple(sorted(absent)))


def _path(profile: Profile, word: Word, text: str, tokens: dict[str, str]) -> str:
    if text.startswith("@"):
        if text not in tokens:
            raise profile.fault(word, f"{text!r} cannot stand here, only {', '.join(tokens)} or a path")
        return tokens[text]
    return re.sub("/+", "/", text).rstrip("/") or "/"


def _interpreter(python: Python, home: str) -> Iterator[Mount]:
    paths = [python.path, python.library, python.env, *python.objects]
    for path in paths:
        sources.require_there(path)
        sources.require_apart(path, home)
    yield from _shown(map(sources.examine, paths))
    # An interpreter may name its shared objects relative to itself (`$ORIGIN`, ld.so(8)), which the linker resolves
    # through /proc/self/exe: in a sandbox without /proc it finds them in its default folders only.
    for path in python.objects:
        if not os.path.dirname(_settled(path)).startswith(_LINKER_FOLDERS):
            yield Mount.of(Kind.READ_ONLY, f"/usr/lib/{os.path.basename(path)}", sources.examine(path))


def _shown(examined: Iterable[Source]) -> Iterator[Mount]:
    """Give read-only mounts of host paths, and the links at the root (merged /usr: /lib -> usr/lib) they go through."""
    for source in examined:
        yield Mount.of(Kind.READ_ONLY, _settled(source.named), source)
        top = "/" + source.named.split("/", 2)[1]
        if os.path.islink(top):
            yield Mount(Kind.SYMLINK, top, os.readlink(top))


def _settled(path: str) -> str:
    """Give the path with its folder's links followed, as bubblewrap must be told; the name itself stays."""
    folder, name = os.path.split(path)
    # But not at the root, where the link itself stands in the sandbox.
    return os.path.realpath(path) if folder == "/" else os.path.join(os.path.realpath(folder), name)


def _arranged(profile: Profile, places: Places, said: Iterable[_Said]) -> tuple[Mount, ...]:
    """Sort by depth, so that the order of a profile's entries changes nothing, and judge each against its parent."""
    by_target: dict[str, _Said] = {}
    for each in said:
        known = by_target.setdefault(each.mount.target, each)
        if known.mount != each.mount:
            raise profile.fault(each.word, f"two different things at {each.mount.target!r}")
    kept: dict[str, _Said] = {}
    for target, each in sorted(by_target.items(), key=lambda item: (item[0].count("/"), item[0])):
        above = next((kept[folder] for folder in _parents(target) if folder in kept), None)
        if fault := _fault(profile, places, each, above):
            raise fault
        if above is None or not _shows(above.mount, each.mount):
            kept[target] = each
    return tuple(each.mount for each in kept.values())


def _parents(target: str) -> Iterator[str]:
    while target != "/":
        target = os.path.dirname(target)
        yield target


def _fault(profile: Profile, places: Places, said: _Said, above: _Said | None) -> ProfileError | None:
    mount = said.mount
    if mount.target == "/" or mount.target == PROC or mount.target.startswith(f"{PROC}/"):
        return profile.fault(said.word, f"nothing of a profile's can stand at {mount.target!r}")
    if mount.target.startswith(f"{places.home}/") and mount.target != places.socket_inside:
        return profile.fault(said.word, "nothing but the worker socket may stand in the home")
    if mount.target == places.home and mount.kind is not Kind.EMPTY:
        return profile.fault(said.word, "where the home is, nothing but an empty folder may stand")
    if above is None:
        return None
    where = f"beneath {above.mount.target!r}"
    if mount.kind is Kind.READ_ONLY and above.mount.kind is Kind.TMPFS:
        # Landlock lets it write in that and all beneath it: what the host mounts there later would be writable.
        return profile.fault(said.word, f"{where}, which it can write in, nothing of the host can be shown")
    if above.mount.kind in (Kind.EMPTY, Kind.TMPFS):
        return None
    if above.mount.kind is Kind.SYMLINK:
        return profile.fault(said.word, f"{where}, a link: name where it leads to")
    if above.mount.kind is not Kind.READ_ONLY:
        return profile.fault(said.word, f"{where} there can be nothing")
    if _shows(above.mount, mount):
        return None
    if profile.filesystem.read_only[int(above.word[-1])] == "@python":
        return profile.fault(said.word, f"{where}, which is the interpreter's, nothing else may stand")
    return _unmountable(profile, said, above.mount)


def _shows(above: Mount, mount: Mount) -> bool:
    """Whether a parent shows the very same file at that place already: then it needs no mount of its own."""
    if above.kind is not Kind.READ_ONLY or mount.kind is not Kind.READ_ONLY:
        return False
    here = above.source + mount.target.removeprefix(above.target)
    return os.path.realpath(here) == os.path.realpath(mount.source) and sources.within(
        os.path.realpath(here), os.path.realpath(above.source)
    )


def _unmountable(profile: Profile, said: _Said, above: Mount) -> ProfileError | None:
    """Say why bubblewrap could not mount there: it would have to make the place, and that would be on the host."""
    here = above.source + said.mount.target.removeprefix(above.target)
    settled = os.path.realpath(above.source) + said.mount.target.removeprefix(above.target)
    if not os.path.lexists(here):
        return profile.fault(said.word, f"{here!r} is not on the host, and nothing is made there")
    if os.path.realpath(here) != settled:
        return profile.fault(said.word, f"{here!r} goes through a link: name where it leads to")
    folder = not said.mount.of_host or os.path.isdir(said.mount.source)
    if os.path.isdir(here) != folder:
        return profile.fault(
            said.word,
            f"{here!r} on the host is {'no' if folder else 'a'} folder, and what would stand there is not so",
        )
    return None
