"""What of the host may be shown to a confined process: the half of a profile's floor that only the host can answer.

A read-only mount stops writing, not connect(2): a socket that is shown can be talked to, whoever listens. So a source
is a file, or a folder that was looked through, and nothing of the instance's home. What a path leads to can be another
thing tomorrow: so each source is known by device and inode (inode(7)) from the moment it was examined.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bwrap import host as hosts
from bwrap.errors import LayerError
from bwrap.host import Shape
from bwrap.process import MountPoint, mount_points

HOST_FOLDERS = ("/proc", "/sys", "/dev", "/run")
"""Of which nothing is shown: they hold the kernel's and other processes' doors."""

_MOST_ENTRIES = 100_000
"""Entries of a folder that are looked at, some 3 µs each; one that holds more is refused."""


class Identity(NamedTuple):
    """A file or folder, whatever its name: no two that are there at once have the same (inode(7))."""

    device: int
    inode: int


class Source(NamedTuple):
    """A path as it is asked for, what it led to when it was examined, and which file or folder that was."""

    named: str
    real: str
    identity: Identity
    folders: tuple[tuple[str, int], ...] = ()
    """The folders that were looked through, each with its last change then (st_ctime_ns, inode(7))."""

    def now(self) -> os.stat_result | None:
        """Give what is there now, if the path still leads to that place and to that file or folder."""
        try:
            real, found = _led_to(self.named)
        except OSError:
            return None
        return found if (real, _identity(found)) == (self.real, self.identity) else None

    @property
    def untouched(self) -> bool:
        """Whether it is unchanged, and nothing came to or went from what was looked through."""
        try:
            return self.now() is not None and all(_changed(folder) == when for folder, when in self.folders)
        except OSError:
            return False


def examine(path: str) -> Source:
    """Note what a path leads to now; raises `LayerError` when there is nothing."""
    real = os.path.realpath(path)
    found = _status(path)
    return Source(path, real, _identity(found))


def identity(path: str, *, folder: int | None = None) -> Identity:
    """Tell which file or folder stands at a path, without following a link there; raises `OSError`.

    A path that is relative is one from the `folder` that is open.
    """
    return _identity(os.stat(path, dir_fd=folder, follow_symlinks=False))


def _identity(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino)


def _led_to(path: str) -> tuple[str, os.stat_result]:
    """Say where a path leads and what is there, in one lookup by the kernel (O_PATH, open(2)); raises `OSError`."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return os.readlink(f"/proc/self/fd/{place}"), os.fstat(place)
    finally:
        os.close(place)


def require_unchanged(source: Source, *, socket: bool = False) -> None:
    """Refuse a source that is not the file or folder, or the `socket`, that was examined; raises `LayerError`.

    Cheap: done before each start.
    """
    found = source.now()
    if found is not None and (stat.S_ISSOCK if socket else _is_shown)(found.st_mode):
        return
    (require_socket if socket else require_there)(source.named)
    raise LayerError(
        "mounts",
        expected=f"{source.named!r} to be the file or folder that was looked at",
        observed="another",
        remedy="start again: it is looked at anew",
    )


def require_reachable(source: Source, shape: Shape) -> None:
    """Refuse what a worker could not read: bubblewrap, which runs as the worker's uid, could not even show it.

    Raises `LayerError`.
    """
    folder = os.path.isdir(source.real)
    if shape is Shape.HOSTED:
        needed = stat.S_IROTH | (stat.S_IXOTH if folder else 0)
        try:
            hosts.require_reachable(repr(source.named), source.real, shape, needed=needed)
        except LayerError as error:
            raise LayerError(
                error.layer,
                expected=error.expected,
                observed=error.observed,
                remedy="open it to others, or take it out of the profile",
            ) from None
    elif not os.access(source.real, os.R_OK | (os.X_OK if folder else 0), effective_ids=True):
        raise _closed(source.named, "it is closed to this user")


def require(path: str, home: str) -> Source:
    """Refuse a path that a profile may not show, else say what it leads to; `home` is the instance's.

    Raises `LayerError` of the layer that it would break: `home`, or `mounts`.
    """
    require_there(path)
    require_apart(path, home)
    source = examine(path)
    real = source.real
    holder, beneath = _file_systems(real)
    if holder.type == "proc":
        raise _refusal(
            path, "a file or folder that is not of /proc", "the host's /proc, which names its processes"
        )
    if beneath:
        raise _refusal(
            path, "a folder of one file system", f"another is mounted at {beneath[0]}, and would come along"
        )
    if folder := next((each for each in HOST_FOLDERS if within(real, each)), None):
        raise _refusal(path, f"a file or folder that is not of {folder}", f"it leads to {real}")
    if os.path.isdir(real):
        source = source._replace(folders=_look_through(real, home))
    return source


def _changed(folder: str) -> int:
    return os.stat(folder, follow_symlinks=False).st_ctime_ns


def require_there(path: str) -> None:
    """Refuse a path at which there is no file and no folder; raises `LayerError`."""
    mode = _mode(path)
    if not _is_shown(mode):
        raise _refusal(path, "a file or a folder", f"a {_kind(mode)}")


def _is_shown(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def require_socket(path: str) -> None:
    """Refuse a path at which there is no unix socket; raises `LayerError`."""
    if not stat.S_ISSOCK(_mode(path)):
        raise _refusal(path, "a unix socket", "something else")


def require_apart(path: str, home: str) -> None:
    """Refuse a path that holds the instance's home or lies in it: by its name, by where links lead, or by what it is.

    A bind mount shows the same folder under a name that says nothing, and a second name (link(2)) the same file.
    Raises `LayerError`.
    """
    for one in (path, os.path.realpath(path)):
        for other in (home, os.path.realpath(home)):
            if within(one, other) or within(other, one):
                raise _of_the_home(path, "it lies in it" if within(one, other) else "it holds it")
    real, own = os.path.realpath(path), _identities(home)
    for one in (real, *map(str, Path(real).parents)):
        if identity(one) in own:
            raise _of_the_home(path, "it lies in it, under another name")


def _identities(home: str) -> frozenset[Identity]:
    """Tell what the home and all beneath it are; none while there is no home."""
    found: set[Identity] = set()
    # By descriptors, one for each folder on the way: a tool may have made a file at a path that is too long to be named
    # whole. And not by os.fwalk: in Python 3.11 a command that makes a thousand folders in each other would end it.
    way: list[tuple[int, list[str]]] = []
    try:
        _step_into(os.path.realpath(home), way)
        found |= {_identity(os.fstat(folder)) for folder, _ in way}
        while way:
            folder, names = way[-1]
            if not names:
                os.close(way.pop()[0])
                continue
            name = names.pop()
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                found.add(_identity(status))
                if stat.S_ISDIR(status.st_mode):
                    _step_into(name, way)
        return frozenset(found)
    except OSError as error:
        raise LayerError(
            "home",
            expected="the instance's home to be looked through",
            observed=error.strerror or str(error),
            remedy="mend what the message names, or take what is nested too deeply out of the home",
        ) from None
    finally:
        for folder, _ in way:
            os.close(folder)


def _step_into(name: str, way: list[tuple[int, list[str]]]) -> None:
    """Open a folder in the last one of a way and add it with what it holds, if it is there and open to this user."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(name, flags, dir_fd=way[-1][0] if way else None)
        way.append((folder, []))
        way[-1][1].extend(os.listdir(folder))


def _of_the_home(path: str, observed: str) -> LayerError:
    return LayerError(
        "home",
        expected=f"{path!r} to be apart from the instance's home",
        observed=observed,
        remedy="take it out of the profile, or name what is needed beside the home",
    )


def _mode(path: str) -> int:
    return _status(path).st_mode


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except PermissionError:
        raise _closed(path, "it lies in a folder that is closed to this user") from None
    except OSError as error:
        raise LayerError(
            "mounts",
            expected=f"{path!r} on this host",
            observed="nothing there"
            if isinstance(error, FileNotFoundError)
            else error.strerror or str(error),
            remedy="make it, or take it out of the profile ('?' before a path lets it be absent)",
        ) from None


def within(path: str, folder: str) -> bool:
    """Whether a path is a folder, or lies beneath it, by their names alone."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _file_systems(real: str) -> tuple[MountPoint, list[str]]:
    """Give the mount that holds a path, and the mount points beneath it."""
    with open("/proc/self/mountinfo", "rb") as file:
        found = mount_points(os.fsdecode(file.read()))
    # The longest name; of two mounts at one place, the later one.
    holders = [each for each in reversed(found) if within(real, each.target)]
    holder = max(holders, key=lambda each: len(each.target))
    return holder, sorted(each.target for each in found if each.target != real and within(each.target, real))


def _look_through(folder: str, home: str) -> tuple[tuple[str, int], ...]:
    """Look for what is neither file, folder nor link, and for what is the home's under another name.

    Gives each folder with its last change, taken before it was read, so that what comes meanwhile is noticed. Links are
    not followed, they lead to what is shown or nowhere.
    """
    own = _identities(home)
    inodes = {each.inode for each in own}
    pending, left = [folder], _MOST_ENTRIES
    seen: list[tuple[str, int]] = []
    while pending:
        try:
            at = pending.pop()
            seen.append((at, _changed(at)))
            with os.scandir(at) as entries:
                for entry in entries:
                    left -= 1
                    is_folder = entry.is_dir(follow_symlinks=False)
                    # A file's number stands in its folder: of a hundred thousand few need to be asked for their device.
                    if (is_folder or entry.inode() in inodes) and identity(entry.path) in own:
                        raise _of_the_home(folder, f"it holds some of it, under another name: {entry.path}")
                    if is_folder:
                        pending.append(entry.path)
                    elif not (entry.is_symlink() or entry.is_file(follow_symlinks=False)):
                        kind = _kind(entry.stat(follow_symlinks=False).st_mode)
                        raise _refusal(
                            folder, "a folder that holds files and folders only", f"a {kind}: {entry.path}"
                        )
        except PermissionError as error:
            raise _closed(folder, f"{error.filename}: {error.strerror}") from None
        except OSError as error:
            raise _refusal(
                folder, "a folder that can be looked through", f"{error.filename}: {error.strerror}"
            ) from None
        if left < 0:
            raise _refusal(
                folder,
                f"a folder of at most {_MOST_ENTRIES} entries, to be looked through for sockets",
                "more",
            )
    return tuple(seen)


def _kind(mode: int) -> str:
    if stat.S_ISSOCK(mode):
        return "socket, which a read-only mount would not keep anyone from connecting to"
    return "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "named pipe"


def _refusal(path: str, expected: str, observed: str) -> LayerError:
    return LayerError(
        "mounts",
        expected=f"{expected} at {path!r}",
        observed=observed,
        remedy="take it out of the profile, or name what is needed beneath it",
    )


def _closed(path: str, observed: str) -> LayerError:
    return LayerError(
        "mounts",
        expected=f"{path!r} to be open to this user",
        observed=observed,
        remedy="open it to this user, or take it out of the profile",
    )
