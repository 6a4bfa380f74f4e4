"""The escape image: the honest worker with the attempts in it, sealed as the worker's own program is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bwrap.seccomp import architecture, names, number
from spl.transports import image

if TYPE_CHECKING:
    from bwrap.host import Python
    from bwrap.sealed import Sealed

_HERE = Path(__file__).resolve().parent
_PROGRAM = "escape.program"


def seal(python: Python) -> Sealed:
    """Compile and seal the escape image for an interpreter; raises `LayerError` when that fails."""
    return image.pack(python, {**image.sources(), **sources()}, _PROGRAM)


def sources() -> dict[str, str]:
    """Give what the image has beside the honest worker's modules, in the order of their imports."""
    attempts = sorted(path.stem for path in (_HERE / "attempts").glob("*.py") if path.stem != "__init__")
    return {
        "escape": "",
        "escape.numbers": _numbers(),
        **{f"escape.{name}": _read(f"{name}.py") for name in ("attempt", "inside")},
        # The package comes after what it imports: a module of the image is executed where it stands.
        **{f"escape.attempts.{name}": _read(f"attempts/{name}.py") for name in attempts},
        "escape.attempts": _read("attempts/__init__.py"),
        "escape.program": _read("program.py"),
    }


def numbers() -> dict[str, int]:
    """Give the number of every system call that this machine has, by name."""
    arch = architecture()
    return {name: number(name, arch) for name in sorted(names(arch))}


def _numbers() -> str:
    return f"NUMBERS = {numbers()!r}\n"


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
