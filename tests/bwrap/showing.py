"""Scenarios of what a host shows: closed to a worker, under a second name, mounted while a worker runs."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bwrap import sources
from bwrap.errors import LayerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bwrap.stage import Stage


def _asks(stage: Stage, path: str) -> dict[str, str]:
    """Resolve a profile that shows a path; give the refusal."""
    try:
        stage.plan(extra=f'[filesystem]\nread_only = ["{path}"]')
    except LayerError as error:
        return error.wire()
    raise AssertionError("it was resolved")


async def closed(stage: Stage) -> list[dict[str, str]]:
    """Ask for a file, a folder, and what lies in it, all closed to whoever a worker is."""
    folder, file = f"{stage.folder}/folder", f"{stage.folder}/file"
    os.makedirs(f"{folder}/deeper")
    os.chmod(f"{folder}/deeper", 0o755)
    os.mknod(file, 0o600)
    refused = []
    try:
        for each in (folder, file):
            os.chmod(each, 0)
        refused += [_asks(stage, each) for each in (file, folder, f"{folder}/deeper")]
    finally:
        os.chmod(folder, 0o700)
    return refused


async def aliases(stage: Stage) -> dict[str, str]:
    """Ask for a home, and for what holds it or lies in it, by names that a bind mount gives; give what is observed."""
    home, alias, other = f"{stage.folder}/ada/home", f"{stage.folder}/alias", f"{stage.folder}/other"
    for folder in (f"{home}/run", alias, other):
        os.makedirs(folder)
    observed = {}
    with _mounted("--bind", f"{stage.folder}/ada", alias), _mounted("--bind", f"{home}/run", other):
        for path, of in (
            (alias, home),
            (f"{alias}/home", home),
            (f"{alias}/home/run", home),
            (other, home),
            (f"{stage.folder}/ada", f"{alias}/home"),
            (home, f"{alias}/home"),
        ):
            try:
                sources.require(path, of)
            except LayerError as error:
                said = f"{error.layer}: {error.observed}"
                observed[f"{path} beside {of}".replace(stage.folder, "")] = said.replace(stage.folder, "")
    return observed


# Once it is told to, it writes where it can and where it must not, and says what came of it.
WRITES = """
def _credential():
    os.read(0, 1)
    for path in {paths!r}:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            said = "written"
        except OSError as error:
            said = str(error.errno)
        os.write(2, f"{{said}}\\n".encode())
"""


async def mounted_later(stage: Stage, *, landlock: bool = True) -> dict[str, Any]:
    """Mount something that anyone may write to beneath a folder that a live worker is shown; give what it can do."""
    shown = f"{stage.folder}/shown"
    os.makedirs(f"{shown}/later")
    for folder in (shown, f"{shown}/later"):
        os.chmod(folder, 0o755)
    extra = f'[filesystem]\nread_only = ["{shown}"]\ntmpfs = [{{ path = "/room", size = "1M" }}]\n'
    image = stage.image(WRITES.format(paths=["/room/file", f"{shown}/later/file", f"{shown}/file"]))
    plan = stage.plan(extra=extra)
    if not landlock:
        plan = replace(plan, host=replace(plan.host, landlock=0))
    worker = await stage.launch(plan, image)
    with _mounted("-t", "tmpfs", "-o", "mode=0777", "spl-test", f"{shown}/later"):
        seen = [mount for mount in worker.process.mounts() if mount.target == f"{shown}/later"]
        worker.entrust(b"x")
        await worker.wait()
        made = os.listdir(f"{shown}/later")
    return {
        "seen": [f"{mount.type} {'ro' if mount.read_only else 'rw'}" for mount in seen],
        "said": worker.stderr.split("\n"),
        "made": made,
    }


@contextmanager
def _mounted(*words: str) -> Iterator[None]:
    subprocess.run(["mount", *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", words[-1]], check=True)
