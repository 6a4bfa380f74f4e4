"""A confined worker does a whole run on every Python 3.11 or later that this machine has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.bwrap.entrusted import ANSWERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bwrap.conftest import Daemon

NEEDED = "3.11"
_NAME = re.compile(r"python3\.(1[1-9]|[2-9][0-9])")
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "idlelib", "ensurepip", "site-packages", "lib2to3", "tkinter", "turtledemo",
    "config-*", "*.a", "pydoc_data",
)  # fmt: skip


def _found() -> Iterator[str]:
    """Give this process's own interpreter, the system's, and those of pyenv: each file once."""
    yield os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    for folder in (Path("/usr/bin"), Path("/usr/local/bin"), *Path.home().glob(".pyenv/versions/3.*/bin")):
        for path in sorted(folder.glob("python3.*")):
            if _NAME.fullmatch(path.name) and os.access(path, os.X_OK):
                yield os.path.realpath(path)


INTERPRETERS = list(dict.fromkeys(_found()))


@cache
def version(path: str) -> str:
    command = [path, "-I", "-S", "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(command, capture_output=True, check=True, text=True, env={}).stdout.strip()


@pytest.fixture(scope="session")
def within_reach() -> Iterator[Callable[[str], str]]:
    """Give a function that gives an interpreter a path that any uid can use: its own, or that of a copy."""
    with tempfile.TemporaryDirectory(prefix="spl-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        copies: dict[str, str] = {}

        def reach(path: str) -> str:
            if all(each.stat().st_mode & 0o001 for each in (Path(path), *Path(path).parents)):
                return path
            if path not in copies:
                copies[path] = _copy(Path(path), Path(folder, str(len(copies))))
            return copies[path]

        yield reach


def _copy(path: Path, to: Path) -> str:
    """Copy an interpreter's installation without what no worker reads; Python finds its library beside itself."""
    library = path.parent.parent / "lib"
    shutil.copytree(library / path.name, to / "lib" / path.name, ignore=_LEFT_OUT)
    for shared in library.glob("libpython3*.so*"):
        shutil.copy(shared, to / "lib")
    (to / "bin").mkdir()
    copy = to / "bin" / path.name
    # One that was built with a libpython of its own names that by its absolute path (DT_RUNPATH, ld.so(8)).
    named, beside = os.fsencode(library) + b"\0", b"$ORIGIN/../lib\0"
    copy.write_bytes(path.read_bytes().replace(named, beside.ljust(len(named), b"\0")))
    for folder, _, names in os.walk(to):
        os.chmod(folder, 0o755)
        for name in names:
            os.chmod(Path(folder, name), 0o755)
    return str(copy)


def test_the_python_that_is_required_is_here() -> None:
    assert NEEDED in {version(path).rpartition(".")[0] for path in INTERPRETERS}


@pytest.mark.claim("I4")
@pytest.mark.parametrize("profile", ["worker", "strict"])
@pytest.mark.parametrize("path", INTERPRETERS)
@pytest.mark.one_shape
def test_a_worker_does_a_whole_run_on_this_interpreter(
    daemon: Daemon,
    path: str,
    profile: str,
    within_reach: Callable[[str], str],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("interpreter", f"{version(path)} ({path}), {daemon.shape}, {profile}")

    ended = daemon.play("runs", module="entrusted", python=within_reach(path), profile=profile)

    assert (ended["code"], ended["signal"], ended["said"]) == (0, None, "")
    assert ended["visited"] == [door for door, _ in ANSWERS]
    assert (ended["version"], ended["shape"]) == (version(path), daemon.shape)
    assert "syscalls" in ended["layers"]
