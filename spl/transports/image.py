"""The worker's program, taken once at the daemon's start and sealed.

The sources of `spl.loop` and `spl.worker` are compiled and loaded by the interpreter that will run them and packed into
one `.pyc`: a worker reads one file, and what is installed later changes nothing for this daemon.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from bwrap.errors import LayerError
from bwrap.sealed import Sealed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bwrap.host import Python

_ROOT = Path(__file__).resolve().parent.parent

# What a worker is made of, in the order of its imports.
MODULES = {
    "spl": "__init__.py",
    "spl.loop": "loop/__init__.py",
    "spl.loop.tools": "loop/tools.py",
    "spl.loop.machine": "loop/machine.py",
    "spl.worker": "worker/__init__.py",
    "spl.worker.jsontext": "worker/jsontext.py",
    "spl.worker.libc": "worker/libc.py",
    "spl.worker.doors": "worker/doors.py",
    "spl.worker.probe": "worker/probe.py",
    "spl.worker.program": "worker/program.py",
}

_LOAD = """
import marshal, sys
for name, code in marshal.loads(PARTS):
    module = sys.modules[name] = type(sys)(name)
    module.__path__ = []
    exec(code, vars(module))
"""

# There is nothing to flush, and to take an interpreter down costs it a millisecond.
_START = """
import posix
posix._exit(sys.modules[PROGRAM].main(sys.argv))
"""

# Run by the worker's interpreter: a code object is of no use to another version. It loads what it has packed, so that
# an interpreter that lacks a module, or has another than is known here, is refused now. The header is that of PEP 552.
# Without the columns of every instruction (no_debug_ranges): nobody sees a traceback of a worker's. What the sources
# say by `from __future__` is said to the compiler, for the statement would read a module from the disk.
_PACK = """
import __future__, ast, importlib.util, json, marshal, sys
said = json.load(sys.stdin)
annotations = __future__.annotations.compiler_flag
parts = []
for name, source in said["modules"].items():
    tree = ast.parse(source)
    tree.body = [each for each in tree.body if getattr(each, "module", None) != "__future__"]
    parts.append((name, compile(tree, "<%s>" % name, "exec", annotations, True, 2)))
load = "PARTS, PROGRAM = %r\\n%s" % ((marshal.dumps(parts), said["program"]), said["load"])
code = compile(load + said["start"], "<spl loop-worker>", "exec", optimize=2)
packed = importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
exec(load, {})
sys.stdout.buffer.write(packed)
"""


def seal(python: Python, *, root: Path = _ROOT) -> Sealed:
    """Read the worker's sources below `root`, compile, load and seal them; raises `LayerError` when that fails."""
    return pack(python, sources(root), "spl.worker.program")


def sources(root: Path = _ROOT) -> dict[str, str]:
    """Read what a worker is made of: the source of each module, in the order of their imports."""
    return {name: (root / path).read_text(encoding="utf-8") for name, path in MODULES.items()}


def pack(python: Python, modules: Mapping[str, str], program: str) -> Sealed:
    """Compile modules, load them once and seal them as one; what runs is `program`'s `main`.

    Raises `LayerError` when that fails, as it does where the interpreter lacks a module that they import.
    """
    done = subprocess.run(
        [python.path, "-I", "-S", "-B", "-X", "no_debug_ranges", "-c", _PACK],
        input=json.dumps(
            {"modules": dict(modules), "load": _LOAD, "start": _START, "program": program}
        ).encode(),
        capture_output=True,
        check=False,
        env={},
        timeout=30,
    )
    if done.returncode != 0 or not done.stdout:
        raise LayerError(
            "image",
            expected=f"{python.path} to compile the worker's program and to load it",
            observed=(done.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"])[-1],
            remedy="mend the installation of this interpreter",
        )
    return Sealed("spl-worker", done.stdout)
