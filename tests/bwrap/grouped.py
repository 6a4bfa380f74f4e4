"""Scenarios of launch in a cgroup that is delegated to the child they are played in."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from bwrap import cgroup, supervise, uids
from bwrap.errors import LayerError
from bwrap.launch import Launch
from escape.weakened import allowing_all
from tests.bwrap.stage import options
from tests.full import limited

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from bwrap.confined import Confined
    from bwrap.plan import Plan
    from bwrap.process import Process
    from bwrap.receipt import Confirmed
    from tests.bwrap.stage import Stage

# Its descendants ignore whatever can be ignored, have sessions of their own and no parent but the daemon; it says that
# it is ready once each is there.
FORKS = """
import os, signal
for each in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(each, signal.SIG_IGN)
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            os.fork()
            os.write(writing, b"x")
            while True:
                signal.pause()
    os._exit(0)
os.wait()
for _ in range(4):
    os.read(reading, 1)
os.write(1, b"{}\\n")
os.read(0, 1)
"""

HANGS = "def attempt_all(rows): os.read(0, 1)"


class Unjudged(Launch):
    """A launch of a program that is no worker, and is held against nothing."""

    def confirm(self, process: Process, answer: bytes) -> tuple[Confirmed, ...]:
        return ()


async def lived(stage: Stage) -> dict[str, Any]:
    """Look at a worker in its group, have a bound of it changed, and end it."""
    groups = _take(stage)
    worker = await stage.launch()
    process, group = worker.process, worker.process.group
    assert group is not None
    (limits,) = [each for each in worker.receipt.layers if each.layer == "limits"]
    told = {
        "groups": groups.wire(),
        "made": _made(groups),
        "paths": [cgroup.path_of(pid) for pid in (process.pid, process.monitor)],
        "path": group.place.path,
        "daemon": cgroup.path_of("self"),
        "files": {name: group.read(name) for name in group.bounds},
        "worst_case": process.plan.worst_case,
        "processes": process.plan.limits.processes,
        "said": [(each.expected, each.observed) for each in limits.findings if "cgroup" in each.how],
        "changed": _changed(worker),
    }
    await worker.stop("test")
    return {**told, "left": _made(groups)}


def _changed(worker: Confined) -> str:
    """Take a live worker out of its group: gives the layer that it is refused by."""
    assert worker.process.group is not None
    folder = os.path.dirname(worker.process.group.place.folder)
    Path(folder, cgroup.DAEMON, "cgroup.procs").write_text(str(worker.process.pid))
    try:
        worker.look_again()
    except LayerError as error:
        return error.layer
    return "it is as it was"


async def forking(stage: Stage, how: str) -> dict[str, Any]:
    """See a worker with descendants end, by its group alone: nobody looks for what else belongs to it."""
    groups = _take(stage)
    plan = allowing_all(stage.plan(extra="[limits]\nprocesses = 16"))
    rules = plan.filter.rules
    plan = replace(plan, filter=replace(plan.filter, rules=replace(rules, allow=rules.allow | {"fork"})))

    async def nobody(*_: object) -> None:
        pass

    with (
        patch("bwrap.supervise.belonging", lambda *_: iter(())),
        patch("bwrap.supervise.reap_adopted", nobody),
    ):
        worker = await Unjudged(plan, stage.program(FORKS), stage.ledger).within(30)
        group = worker.process.group
        assert group is not None
        pids = cgroup.processes(group.place.folder)
        if how == "killed":
            worker.kill("test")
        else:
            worker.entrust(b"\n")
        ended = await worker.wait()
    alive = set(pids) & uids.running_uids().keys()
    return {"pids": len(pids), "alive": sorted(alive), "signal": ended.signal, "left": _made(groups)}


EATS = """
import os, signal
if os.fork() == 0:
    os.setsid()
    while True:
        signal.pause()
os.write(1, b"{}\\n")
os.read(0, 1)
eaten = b"x" * (128 << 20)
"""


async def starving(stage: Stage) -> dict[str, Any]:
    """See a worker take more than its group may while its address space would allow it, with a child elsewhere."""
    groups, bounds = _take(stage), cgroup.bounds
    plan = allowing_all(stage.plan(extra="[limits]\nprocesses = 4"))
    rules = plan.filter.rules
    plan = replace(plan, filter=replace(plan.filter, rules=replace(rules, allow=rules.allow | {"fork"})))

    def less(plan: Plan, controllers: Iterable[str]) -> dict[str, str]:
        said = bounds(plan, controllers)
        return {**said, "memory.max": str(64 << 20)} if "memory.max" in said else said

    with patch("bwrap.cgroup.bounds", less):
        worker = await Unjudged(plan, stage.program(EATS), stage.ledger).within(30)
    group = worker.process.group
    assert group is not None
    pids = cgroup.processes(group.place.folder)
    worker.entrust(b"\n")
    ended = await worker.wait()
    alive = set(pids) & uids.running_uids().keys()
    return {
        "pids": len(pids),
        "alive": sorted(alive),
        "ended": ended.wire(),
        "killed": ended.killed,
        "left": _made(groups),
    }


async def refused(stage: Stage) -> dict[str, Any]:
    """Come to no worker in each of the ways there are."""
    groups = _take(stage)
    found: dict[str, Any] = {}
    for name, changes, seconds in (
        ("impostor", "def attempt_all(rows): return {}", 30),
        ("ended", "def attempt_all(rows): os._exit(3)", 30),
        ("late", HANGS, 0.3),
    ):
        try:
            await stage.launch(image=stage.image(changes), seconds=seconds)
        except LayerError as error:
            found[name] = [error.layer, _made(groups)]
    # It ends before it has read what it waits for, and maybe before it was moved.
    with options(lambda said: ["--no-such-option", *said]):
        try:
            await stage.launch()
        except LayerError as error:
            found["no bubblewrap"] = [error.observed, _made(groups)]
    for name, moved in (("cancelled before it forked", 1), ("cancelled while it was held", 2)):
        await _cancel(stage, moved)
        found[name] = [None, _made(groups)]
    with patch("bwrap.cgroup.bounds", lambda *_: {"no.such": "1"}):
        try:
            await stage.launch()
        except LayerError as error:
            found["unbounded"] = [error.layer, _made(groups)]
    return found


async def _cancel(stage: Stage, moved: int) -> None:
    """Cancel a launch while so many processes are moved into its group."""
    loop, entered, enter = asyncio.get_running_loop(), asyncio.Event(), cgroup.Group.enter

    def told(group: cgroup.Group, pids: Collection[int]) -> None:
        if len(pids) == moved:
            loop.call_soon_threadsafe(entered.set)
        enter(group, pids)

    with patch.object(cgroup.Group, "enter", told):
        task = asyncio.create_task(stage.launch(image=stage.image(HANGS)))
        await entered.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def out_of_descriptors(stage: Stage) -> dict[str, Any]:
    """Kill a worker where not one more descriptor can be had, and begin launches with one more at each."""
    groups, plan, image = _take(stage), stage.plan(), stage.image()
    worker = await stage.launch(plan, image)
    pidfd = os.pidfd_open(worker.process.pid)
    with limited(resource.RLIMIT_NOFILE, 3):
        worker.kill("test")
        told: dict[str, Any] = {"died": bool(select.select([pidfd], [], [], 10)[0])}
        ended = asyncio.create_task(worker.wait())
        # It is seen to have ended, and looked for, with nothing to look for it by.
        await asyncio.wait([ended], timeout=0.1)
    os.close(pidfd)
    told["killed"] = (await ended).killed
    told["refusals"] = []
    for more in range(100):
        with limited(resource.RLIMIT_NOFILE, pidfd + more):
            try:
                worker = await stage.launch(plan, image)
            except LayerError as error:
                told["refusals"].append([error.layer, error.observed])
                continue
        break
    made = _made(groups)
    await worker.stop("test")
    return {**told, "made": len(made), "left": _made(groups)}


async def one_too_many(stage: Stage) -> dict[str, Any]:
    """Start processes without limits of their own in a worker's group until no more can be."""
    groups = _take(stage)
    group = groups.make("00", stage.plan())
    assert group is not None
    try:
        said = _fill(group)
        await group.empty()
        await supervise.clear_group(group.place.path)
        return {
            "controllers": list(groups.controllers),
            "said": said.decode(),
            "most": group.bounds.get("pids.max"),
        }
    finally:
        group.remove()


def _fill(group: cgroup.Group) -> bytes:
    command = ["/usr/bin/python3", "-IS", "-c", TOO_MANY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        group.enter([process.pid])
        with pytest.raises(LayerError, match="limits"):
            group.enter([])  # as what was to be in it, with another there
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        return process.stdout.readline()


TOO_MANY = """
import os, signal
os.read(0, 1)
made = 0
try:
    while made < 20:
        if os.fork() == 0:
            signal.pause()
        made += 1
except OSError as error:
    print(made, os.strerror(error.errno))
else:
    print(made)
"""


def _take(stage: Stage) -> cgroup.Groups:
    stage.ledger.groups = cgroup.take()
    return stage.ledger.groups


def _made(groups: cgroup.Groups) -> list[str]:
    assert groups.place is not None
    return [each for each in os.listdir(groups.place.folder) if each.startswith("worker-")]
