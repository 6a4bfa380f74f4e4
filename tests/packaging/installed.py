"""What pip installs of a wheel: an environment outside the checkout that any user may run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.claims import ROOT
from tests.end_to_end.conftest import ORDINARY
from tests.end_to_end.daemon import Shape

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class InstalledShape(Shape):
    """A shape whose `spl` is the command that pip installed beside its Python."""

    def spl(self, *arguments: str) -> list[str]:
        """Give the command line of an `spl` command as this user."""
        return [f"{os.path.dirname(self.python[0])}/spl", *arguments]


@dataclass(frozen=True)
class Environment:
    """A virtual environment that has no pip of its own: this interpreter's installs into it."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, pins: str = "runtime", *, interpreter: str | None = None) -> Environment:
        """Make one on an interpreter, which is the one that runs this, and install the pins of a file alone, if any."""
        # Not the one of a virtual environment, whose folder may be closed to others.
        command = [
            interpreter or os.path.realpath(sys.executable),
            "-m",
            "venv",
            "--without-pip",
            str(folder),
        ]
        subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, cwd="/", check=True, umask=0o022)
        made = cls(folder)
        if pins:
            made.install("--require-hashes", "-r", str(ROOT / "requirements" / f"{pins}.txt"))
        return made

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    def install(self, *what: str) -> None:
        """Have pip install something into it; the packages that others run must be theirs to read."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", *what]
        subprocess.run(command, cwd="/", check=True, umask=0o022, stderr=subprocess.DEVNULL)

    def shape(self, name: str) -> InstalledShape:
        """Give the shape of this name, whose commands know nothing of this checkout; every warning ends them."""
        uid = ORDINARY if name == "same-user" else 0
        return InstalledShape(name, uid, (self.python,), {"PATH": "/usr/bin:/bin", "PYTHONWARNINGS": "error"})
