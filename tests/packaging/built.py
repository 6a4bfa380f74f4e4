"""A wheel, or an sdist, of this checkout or of a copy of its sources in which something is otherwise."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from escape.installation import ROOMS
from tests.claims import ROOT

if TYPE_CHECKING:
    from pathlib import Path

BESIDE = ("contrib", "pyproject.toml", "README.md", "LICENSE", "requirements/sbom.cdx.json")
"""What a wheel is built from beside the rooms, as far as it is there."""


def build(target: str, folder: Path, root: Path = ROOT) -> Path:
    """Build a `wheel` or an `sdist` of what is below `root`, with the pinned hatchling alone; gives its path."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)],
        cwd=root, env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True,
    )  # fmt: skip
    (made,) = folder.iterdir()
    return made


def copy(folder: Path) -> Path:
    """Copy what a wheel is built from, with times of its own; gives the folder."""
    for name in (*ROOMS, *BESIDE):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            without = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, copy_function=shutil.copyfile, ignore=without)
        elif source.exists():
            shutil.copyfile(source, target)
    return folder
