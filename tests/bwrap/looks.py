"""Scenarios of looking: layers that cannot be read, and a worker that is looked at again after its receipt."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bwrap import findings, layers
from bwrap.errors import LayerError
from bwrap.impersonation import impersonate
from bwrap.receipt import confirm
from tests.bwrap import proc
from tests.bwrap.removals import OWN_PROC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bwrap.confined import Confined
    from bwrap.findings import Finding, Layer
    from bwrap.plan import Plan
    from bwrap.process import Process
    from bwrap.receipt import Confirmed
    from tests.bwrap.stage import Stage

# How a reading of /proc may fail: what the kernel would answer, or, as an older kernel's file, nothing in it.
REFUSED, GONE, EMPTY = PermissionError(13, "planted"), FileNotFoundError(2, "planted"), None
WAYS = (REFUSED, GONE, EMPTY)


class _NoEntries(ExitStack):
    """What os.scandir gives of an empty folder."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        raise StopIteration


@contextmanager
def blinded(at: int, way: OSError | None) -> Iterator[list[str]]:
    """Have one reading in this context fail, counted from 0; gives what was read, in order."""
    seen: list[str] = []

    def failing(real: Callable[..., Any], empty: Callable[[], Any]) -> Callable[..., Any]:
        def read(path: str, *words: Any, **named: Any) -> Any:
            seen.append(path)
            if len(seen) - 1 != at:
                return real(path, *words, **named)
            if way is not None:
                raise way
            return empty()

        return read

    with (
        patch.object(os, "open", failing(os.open, partial(os.open, os.devnull, os.O_RDONLY))),
        patch.object(os, "readlink", failing(os.readlink, str)),
        patch.object(os, "listdir", failing(os.listdir, list)),
        patch.object(os, "scandir", failing(os.scandir, _NoEntries)),
        patch.object(os, "stat", failing(os.stat, lambda: os.stat_result([0] * 10))),
    ):
        yield seen


async def blind_judgments(stage: Stage) -> dict[str, Any]:
    """Judge a live worker by its own answers, each reading of each layer failing in turn: give what is still green."""
    answers: dict[str, Any] = {}
    with _answers(answers, lambda name: True):
        worker = await stage.launch(stage.plan(extra=OWN_PROC))
    green, readings = [], {}
    for layer in layers.table(worker.process.plan, worker.process.shape):
        with blinded(-1, None) as seen:
            findings.look(worker.process, layer)
        readings[layer.name] = len(seen)
        for at, path in enumerate(seen):
            for way in WAYS:
                with blinded(at, way):
                    found = findings.judge(worker.process, layer, answers)
                if all(finding.confirmed for finding in found):
                    green.append(f"{layer.name}: {path} {way}")
    await _end(worker)
    return {"green": green, "readings": readings}


async def blind_launches(stage: Stage) -> dict[str, dict[str, str]]:
    """Launch, one layer at a time not to be read from outside, then with no answers to it: give who refused."""
    plan, image = stage.plan(extra=OWN_PROC), stage.image()
    given = findings.look
    refused: dict[str, dict[str, str]] = {"outside": {}, "inside": {}}

    def look_but_for(hidden: str) -> Callable[[Process, Layer], list[Finding]]:
        def look(process: Process, layer: Layer) -> list[Finding]:
            if layer.name != hidden:
                return given(process, layer)
            with blinded(0, REFUSED):
                return given(process.looked_at(), layer)  # what other layers have read of it is not to help

        return look

    for layer in layers.table(plan, plan.host.shape):
        with patch.object(findings, "look", look_but_for(layer.name)):
            await _note(stage, plan, image, refused["outside"], layer.name)
        with _answers({}, lambda name, layer=layer: not name.startswith(f"{layer.name}: ")):  # type: ignore[misc]
            await _note(stage, plan, image, refused["inside"], layer.name)
    return refused


async def without_landlock(stage: Stage) -> dict[str, object]:
    """Launch on a host of which the daemon found that its kernel has no Landlock; give the receipt."""
    worker = await stage.launch(_on(stage.plan(), landlock=0))
    await _end(worker)
    return worker.receipt.wire()


# At a signal, which comes only after the receipt.
OPENS = """
import signal, socket, sys
def _connect(*_):
    global _kept
    _kept = socket.socket(socket.AF_UNIX)
    _kept.connect(json.loads(sys.argv[2])["socket"])
signal.signal(signal.SIGUSR1, _connect)
"""


async def again(stage: Stage, change: str = "") -> dict[str, Any]:
    """Look at a worker again, after it changed in some way."""
    worker = await stage.launch(image=stage.image(OPENS if change == "it opens a connection" else ""))
    loop = asyncio.get_running_loop()
    # The self-probe's own connection comes first.
    (await loop.sock_accept(stage.listener))[0].close()
    with ExitStack() as stack:
        if change == "it opens a connection":
            os.kill(worker.process.pid, signal.SIGUSR1)
            stack.enter_context((await loop.sock_accept(stage.listener))[0])
        if change == "its limits are lowered":
            _lower_limit(worker)
        if change == "it ends":
            os.kill(worker.process.monitor, 9)
            await worker.wait()
        try:
            worker.look_again()
            worker.look_again()
        except LayerError as error:
            told = {"refused": error.layer, "observed": error.observed}
            return {**told, "killed": (await worker.wait()).killed}
    await _end(worker)
    return {"refused": None}


async def readings(stage: Stage) -> list[list[str]]:
    """Look at a live worker twice; give what of it was read in each look, in order."""
    worker = await stage.launch()
    told = []
    for _ in range(2):
        with blinded(-1, None) as seen:
            worker.look_again()
        told.append([path for path in seen if path.startswith(f"/proc/{worker.process.pid}/")])
    await _end(worker)
    return told


async def launcher(stage: Stage) -> dict[str, Any]:
    """Give how bubblewrap itself was started, as anyone on the host may read it."""
    worker = await stage.launch()
    words = [os.fsdecode(word) for word in proc.read(worker.process.monitor, "cmdline").split(b"\0")[:-1]]
    environ = proc.read(worker.process.monitor, "environ").decode()
    plan = worker.process.plan
    await _end(worker)
    at = words.index("--")
    command = words[at + 1 :][: len(plan.command)]
    return {
        "environ": environ,
        "options": [word for word in words[:at] if not word.isdecimal()],
        "bubblewrap": plan.host.bubblewrap.path,
        "command_is_the_plans": command == list(plan.command),
    }


async def gone_before_the_start(stage: Stage) -> dict[str, Any]:
    """Launch with a source that went after the plan was made; give the refusal and what was started."""
    folder = f"{stage.folder}/shown"
    os.mkdir(folder)
    os.chmod(folder, 0o755)
    plan = stage.plan(extra=f'[filesystem]\nread_only = ["?{folder}"]')
    os.rmdir(folder)
    image = stage.image()
    started: list[Any] = []
    with patch.object(subprocess, "Popen", lambda *words, **_: started.append(words)):
        try:
            await stage.launch(plan, image)
        except LayerError as error:
            return {"layer": error.layer, "expected": error.expected, "started": len(started)}
    raise AssertionError("it was confirmed")


async def shown(stage: Stage, called: str) -> dict[str, Any]:
    """Show a worker a host folder of some name, with places of the sandbox's own in it; give all it then sees there."""
    folder = f"{stage.folder}/{called}"
    os.makedirs(f"{folder}/empty")
    os.makedirs(f"{folder}/full")
    os.mknod(f"{folder}/full/{called}")
    os.chmod(folder, 0o755)
    before = _below(folder)
    text = [
        f"read_only = [{json.dumps(folder)}, {json.dumps(folder + '/full')}, {json.dumps('?' + folder + '/absent')}]",
        f"empty = [{json.dumps(folder + '/empty')}]",
        f'tmpfs = [{{ path = {json.dumps("/" + called)}, size = "64K" }}]',
    ]
    worker = await stage.launch(stage.plan(extra="[filesystem]\n" + "\n".join(text)))
    root = f"/proc/{worker.process.pid}/root"
    seen = _below(root + folder)
    await _end(worker)
    return {
        "seen": [path.removeprefix(root + folder) for path in seen],
        "absent": worker.receipt.wire()["absent"],
        "untouched": before == _below(folder),
    }


async def linked_home(stage: Stage) -> list[str]:
    """Launch for a home that is named through a link; give what stands at either name."""
    real, link = stage.home, f"{stage.folder}-link"
    os.symlink(stage.folder, link)
    try:
        stage.home = f"{link}/home"
        worker = await stage.launch()
    finally:
        stage.home = real
        os.unlink(link)
    root = f"/proc/{worker.process.pid}/root"
    seen = [path.removeprefix(root) for path in _below(f"{root}/tmp")]
    await _end(worker)
    return seen


def _below(folder: str) -> list[str]:
    return sorted(
        os.path.join(at, name) for at, folders, names in os.walk(folder) for name in [*folders, *names]
    )


def _lower_limit(worker: Confined) -> None:
    """Lower a live worker's limit on descriptors as its own user may, who needs no right for that (prlimit(2))."""
    process = worker.process
    lower = partial(resource.prlimit, process.pid, resource.RLIMIT_NOFILE, (32, 32))
    impersonate(process.uid, process.gid, lower)


async def _note(stage: Stage, plan: Plan, image: Any, refused: dict[str, str], layer: str) -> None:
    try:
        await _end(await stage.launch(plan, image))
    except LayerError as error:
        refused[layer] = error.layer
    # The self-probe's connection, of which the socket holds sixteen.
    stage.listener.accept()[0].close()


async def _end(worker: Confined) -> None:
    worker.kill("test")
    await worker.wait()


def _on(plan: Plan, **facts: Any) -> Plan:
    return replace(plan, host=replace(plan.host, **facts))


def _answers(kept: dict[str, Any], wanted: Callable[[str], bool]) -> Any:
    """Leave answers out of what launches in this context hear from the worker; keeps what was heard."""

    def hear(process: Process, answer: bytes, nonce: str, digest: str) -> tuple[Confirmed, ...]:
        said = json.loads(answer)
        said["results"] = {name: result for name, result in said["results"].items() if wanted(name)}
        kept.update(said["results"])
        return confirm(process, json.dumps(said).encode(), nonce, digest)

    return patch("bwrap.launch.confirm", hear)
