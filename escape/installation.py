"""How to start a Python on what is installed here, as this user or as one that cannot read it.

As root the suite tries the same-user shape as an ordinary user, and an installation may lie under a folder that is
closed to others: so it is a copy that such a user starts.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE = Path(__file__).resolve().parent.parent
ROOMS = ("spl", "bwrap", "profiles", "escape")


class Installation(NamedTuple):
    """A folder with what is installed; a module of it runs as `[*command, "-m", module]` with `env`."""

    folder: str
    command: list[str]
    env: dict[str, str]


def here() -> Installation:
    """Give this installation, as it is."""
    found = os.pathsep.join([str(_HERE), *filter(os.path.isdir, sys.path)])
    return Installation(
        str(_HERE), [sys.executable, "-s", "-P"], {"PATH": "/usr/bin:/bin", "PYTHONPATH": found}
    )


def copy(folder: str, *, rooms: Sequence[str] = ROOMS) -> Installation:
    """Copy the packages of this interpreter, and these of the project's own rooms, into an empty folder."""
    os.chmod(folder, 0o755)
    packages = f"{folder}/packages"
    shutil.copytree(sysconfig.get_path("purelib"), packages, copy_function=_link, symlinks=True)
    without = shutil.ignore_patterns("__pycache__", ".*")
    for room in rooms:
        shutil.copytree(_HERE / room, f"{folder}/{room}", ignore=without)
    for path, _, names in os.walk(folder):
        os.chmod(path, 0o755)
        if not path.startswith(packages):
            for name in names:
                os.chmod(f"{path}/{name}", 0o644)
    # The interpreter under the virtual environment, whose own folder may be closed too. Python names its packages by
    # version and ABI, so it must be the very one that runs this.
    command = [os.path.realpath(sys.executable), "-s", "-P"]
    return Installation(folder, command, {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder}:{packages}"})


def _link(source: str, target: str) -> str:
    """Copy a file, as a second name of it where that is possible and everyone may read it."""
    if os.stat(source).st_mode & 0o004:
        try:
            os.link(source, target)
        except OSError:
            pass  # another file system, or one that knows no links
        else:
            return target
    shutil.copyfile(source, target)
    os.chmod(target, 0o644)
    return target
