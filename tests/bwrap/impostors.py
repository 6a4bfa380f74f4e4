"""Scenarios of a bubblewrap that is not the one that was examined, or names another's process as its child."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bwrap import host as hosts
from bwrap.errors import LayerError
from bwrap.host import Bubblewrap
from tests.bwrap import proc
from tests.bwrap.scenarios import end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.plan import Plan
    from tests.bwrap.stage import Stage

# Says that a process is its child, and does nothing more until it is killed.
_FOREIGN = """#!/usr/bin/python3 -IS
import os, signal, sys
options = os.read(int(sys.argv[2]), 1 << 20).split(b"\\0")
os.write(int(options[options.index(b"--json-status-fd") + 1]), b'{{"child-pid": {pid}}}\\n')
signal.pause()
"""


async def replaced(stage: Stage) -> dict[str, Any]:
    """Launch with a bubblewrap, then with another file of the same bytes in its place, then with none."""
    path = f"{stage.folder}/bwrap"
    _copy(stage.plan().host.bubblewrap.path, path)
    plan = _with(stage, path)
    worker = await stage.launch(plan)
    said: dict[str, Any] = {"path": path, "digest": hosts.file_digest(path)}
    said["receipt"] = worker.receipt.wire()["bubblewrap"]
    await end(worker)
    _copy(path, f"{path}-other")
    os.replace(f"{path}-other", path)
    said["replaced"] = await _refused(stage, plan)
    os.unlink(path)
    said["gone"] = await _refused(stage, plan)
    return said


async def names_a_foreign_process(stage: Stage) -> dict[str, Any]:
    """Launch with a bubblewrap that names somebody's process; give the refusal, and what became of that process."""
    path = f"{stage.folder}/bwrap"
    with _bystander() as bystander:
        _write(path, _FOREIGN.format(pid=bystander.pid))
        limits = proc.read(bystander.pid, "limits")
        said = await _refused(stage, _with(stage, path), seconds=5)
        said["limited"] = proc.read(bystander.pid, "limits") != limits
        # Answered by no process that was killed, however long that takes to show.
        said["answer"] = bystander.communicate(b"here\n")[0].decode()
    return said


def _copy(source: str, path: str) -> None:
    shutil.copyfile(source, path)
    os.chmod(path, 0o755)


def _write(path: str, program: str) -> None:
    Path(path).write_text(program)
    os.chmod(path, 0o755)


def _with(stage: Stage, path: str) -> Plan:
    """Plan with the bubblewrap at a path, as it is now."""
    plan = stage.plan()
    bubblewrap = Bubblewrap(path, "0.8.0", hosts.file_digest(path), hosts.file_stamp(path))
    return replace(plan, host=replace(plan.host, bubblewrap=bubblewrap))


async def _refused(stage: Stage, plan: Plan, seconds: float = 30) -> dict[str, Any]:
    try:
        worker = await stage.launch(plan, seconds=seconds)
    except LayerError as error:
        return {"layer": error.layer, "expected": error.expected, "observed": error.observed}
    await end(worker)
    return {"layer": "", "expected": "", "observed": "it was confirmed"}


@contextmanager
def _bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Have a process of the daemon's own user, which is nobody's worker."""
    command = [sys.executable, "-c", "print(input())"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
