"""The bench image: the honest worker with the program that times its verdicts, sealed as the worker's own is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spl.transports import image

if TYPE_CHECKING:
    from bwrap.host import Python
    from bwrap.sealed import Sealed

_HERE = Path(__file__).resolve().parent
_PROGRAM = "spl.bench.inside"


def seal(python: Python) -> Sealed:
    """Compile and seal the bench image for an interpreter; raises `LayerError` when that fails."""
    own = {"spl.bench": "", _PROGRAM: (_HERE / "inside.py").read_text(encoding="utf-8")}
    return image.pack(python, {**image.sources(), **own}, _PROGRAM)
