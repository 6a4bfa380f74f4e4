"""What of the host may be shown to a confined process: the half of a profile's floor that only the host can answer.

A read-only mount stops writing, not connect(2): a socket that is shown can be talked to, whoever listens. So a source
is a file, or a folder that was looked through, and nothing of the instance's home.
"""

from __future__ import annotations

import os
import stat

from bwrap.errors import LayerError
from bwrap.process import MountPoint, mount_points

HOST_FOLDERS = ("/proc", "/sys", "/dev", "/run")
"""Of which nothing is shown: they hold the kernel's and other processes' doors."""

_MOST_ENTRIES = 100_000
"""Entries of a folder that are looked at, some 3 µs each; one that holds more is refused."""


def require(path: str, home: str) -> None:
    """Refuse a path that a profile may not show; `home` is the instance's.

    Raises `LayerError` of the layer that it would break: `home`, or `mounts`.
    """
    require_there(path)
    require_apart(path, home)
    real = os.path.realpath(path)
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
        _look_through(real)


def require_there(path: str) -> None:
    """Refuse a path at which there is no file and no folder; raises `LayerError`. Cheap: done before each start."""
    mode = _mode(path)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise _refusal(path, "a file or a folder", f"a {_kind(mode)}")


def require_socket(path: str) -> None:
    """Refuse a path at which there is no unix socket; raises `LayerError`. Cheap: done before each start."""
    if not stat.S_ISSOCK(_mode(path)):
        raise _refusal(path, "a unix socket", "something else")


def require_apart(path: str, home: str) -> None:
    """Refuse a path that holds the instance's home or lies in it, by its name or by where links lead."""
    for one in (path, os.path.realpath(path)):
        for other in (home, os.path.realpath(home)):
            if within(one, other) or within(other, one):
                raise LayerError(
                    "home",
                    expected=f"{path!r} to be apart from the instance's home",
                    observed="it lies in it" if within(one, other) else "it holds it",
                    remedy="take it out of the profile, or name what is needed beside the home",
                )


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
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


def _look_through(folder: str) -> None:
    """Look for what is neither file, folder nor link; links are not followed, they lead to what is shown or nowhere."""
    pending, left = [folder], _MOST_ENTRIES
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    left -= 1
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif not (entry.is_symlink() or entry.is_file(follow_symlinks=False)):
                        kind = _kind(entry.stat(follow_symlinks=False).st_mode)
                        raise _refusal(
                            folder, "a folder that holds files and folders only", f"a {kind}: {entry.path}"
                        )
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
