"""A host made of files that need not run, below one folder: what plans are resolved on where nothing is started."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from bwrap.host import Bubblewrap, Host, Python, Shape
from bwrap.library import Library
from bwrap.plan import Places, Plan, resolve

if TYPE_CHECKING:
    from pathlib import Path

HOME = "/home/ada/.syncro"


def host(tree: Path) -> Host:
    """Make the files and give the host that has them."""
    for name in ("usr/bin/python3", "usr/bin/env", "usr/lib/libc.so.6", "usr/lib/python3/os.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    (tree / "usr/lib/python3/json").mkdir(exist_ok=True)
    if not (tree / "w").exists():
        os.mknod(tree / "w", stat.S_IFSOCK | 0o600)
    python = Python(
        f"{tree}/usr/bin/python3",
        f"{tree}/usr/lib/python3",
        (f"{tree}/usr/lib/libc.so.6",),
        "3.11.2",
        f"{tree}/usr/bin/env",
    )
    return Host(Shape.SAME_USER, Bubblewrap("/usr/bin/bwrap", "0.8.0", "00", ()), python, 7)


def places(tree: Path, home: str = HOME) -> Places:
    """Give the daemon's places on that host."""
    return Places(home, f"{tree}/w")


def plan(tree: Path, text: str = "", home: str = HOME, extends: str = "worker") -> Plan:
    """Resolve a profile that extends a shipped one by some lines of TOML."""
    (tree / "own.toml").write_text(f'extends = "{extends}"\n{text}')
    return resolve(Library(tree).load("own"), host(tree), places(tree, home))
