"""Scenarios of launch, played in a child of each shape: what only the process that launches can do and see."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bwrap import findings as judging
from bwrap import launch, layers, seccomp, supervise, uids
from bwrap.errors import LayerError
from bwrap.host import file_stamp
from bwrap.receipt import confirm
from tests.bwrap import proc
from tests.bwrap.stage import SECRET, attempting, judged

if TYPE_CHECKING:
    from bwrap.confined import Confined
    from bwrap.plan import Plan
    from bwrap.process import Process
    from bwrap.receipt import Confirmed
    from bwrap.sealed import Sealed
    from tests.bwrap.stage import Stage


async def end(worker: Confined) -> dict[str, Any]:
    """Kill a worker and give its exit."""
    worker.kill("test")
    worker.kill("another reason")
    ended = await worker.wait()
    return {"code": ended.code, "signal": ended.signal, "killed": ended.killed}


async def receipt(stage: Stage, extra: str = "") -> dict[str, Any]:
    """Give a receipt as a record holds it, and the exit of its killed worker."""
    image = stage.image()
    worker = await stage.launch(stage.plan(extra=extra), image)
    numbers = {"image": image.digest, "uid": worker.process.uid, "pid": worker.process.pid}
    return {**numbers, "receipt": worker.receipt.wire(), "exit": await end(worker)}


async def live(stage: Stage) -> dict[str, Any]:
    """Look at a live worker."""
    worker = await stage.launch()
    pid = worker.process.pid
    seen = proc.look(pid, stage.home)
    seen |= {"secret_found": proc.containing(pid, SECRET.encode()), "pid": pid, "uid": worker.process.uid}
    seen["image_is_the_receipts"] = seen["image"] == worker.receipt.image_digest
    await end(worker)
    return seen


async def entrusted(stage: Stage) -> dict[str, Any]:
    """Hand a credential over; see it arrive at the socket, from that process, and nowhere else."""
    worker = await stage.launch()
    pid = worker.process.pid
    loop = asyncio.get_running_loop()
    # The self-probe's own connection comes first.
    (await loop.sock_accept(stage.listener))[0].close()
    worker.entrust(b'{"credential": "c0ffee-c0ffee"}\n')
    connection, _ = await loop.sock_accept(stage.listener)
    peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    request = b""
    while b"\r\n\r\n" not in request:
        request += await loop.sock_recv(connection, 4096)
    words = proc.read(pid, "cmdline") + proc.read(pid, "environ")
    files = proc.containing(pid, b"c0ffee")
    connection.close()
    return {
        "request": request.decode(),
        "peer": list(peer[:2]),
        "process": [pid, worker.process.uid],
        "in_words": b"c0ffee" in words,
        "files": files,
        "code": (await worker.wait()).code,
    }


async def end_of_input(stage: Stage) -> dict[str, Any]:
    """Close standard input before any credential was written."""
    worker = await stage.launch()
    worker.entrust(b"")
    ended = await worker.wait()
    return {"code": ended.code, "clean": ended.clean, "alive": worker.alive}


async def side_by_side(stage: Stage) -> list[dict[str, Any]]:
    """Have two workers at once."""
    plan, image = stage.plan(), stage.image()
    workers = await asyncio.gather(stage.launch(plan, image), stage.launch(plan, image))
    seen = [
        {
            "uid": worker.process.uid,
            "user": worker.process.namespace("user"),
            "processes": sum(uid == worker.process.uid for uid in uids.running_uids().values()),
            "held": os.geteuid() != 0 or uids.Pool().take(worker.process.uid) is None,
            "argv": worker.receipt.argv_digest,
        }
        for worker in workers
    ]
    for worker in workers:
        await end(worker)
    return seen


async def killed_from_outside(stage: Stage) -> dict[str, Any]:
    """Have someone else kill a worker's monitor."""
    worker = await stage.launch()
    os.kill(worker.process.monitor, signal.SIGKILL)
    ended = await worker.wait()
    return {"signal": ended.signal, "code": ended.code, "killed": ended.killed, "clean": ended.clean}


# --- refused ---


async def refusal(stage: Stage, changes: str = "", program: str = "", seconds: float = 30) -> dict[str, str]:
    """Launch a program that is not to be trusted; give the refusal."""
    return await _refused(
        stage, image=stage.program(program) if program else stage.image(changes), seconds=seconds
    )


async def no_bubblewrap(stage: Stage) -> dict[str, str]:
    """Launch with a bubblewrap that is gone."""
    plan = stage.plan()
    host = replace(plan.host, bubblewrap=replace(plan.host.bubblewrap, path=f"{stage.folder}/absent"))
    return await _refused(stage, replace(plan, host=host))


async def no_source(stage: Stage) -> dict[str, str]:
    """Launch with a source that went after the plan was made."""
    plan = stage.plan()
    os.unlink(f"{stage.folder}/w")
    return await _refused(stage, plan)


async def another_image(stage: Stage) -> dict[str, str]:
    """Have bubblewrap given another program than the sealed one, which says the sealed one's digest."""
    sealed = stage.image()
    other = stage.image(f"def _digest(path): return {sealed.digest!r}")
    digest, other.digest = other.digest, sealed.digest
    return {**await _refused(stage, image=other), "sealed": sealed.digest, "started": digest}


async def complaint(stage: Stage, said: str) -> dict[str, str]:
    """Launch with a source that goes before bubblewrap looks for it, and whose name tells of another layer."""
    folder = f"{stage.folder}/{said}"
    os.mkdir(folder)
    os.chmod(folder, 0o755)
    plan = stage.plan(extra=f'[filesystem]\nread_only = ["{folder}"]')
    os.rmdir(folder)
    with patch.object(type(plan), "require_sources", lambda self: None):
        return await _refused(stage, plan)


async def crowded(stage: Stage) -> dict[str, str]:
    """Launch by a bubblewrap that may not have a child, in the shape in which its own uid counts and nothing else."""
    return await _refused(stage, _alone(stage))


def _alone(stage: Stage) -> Plan:
    plan, path = stage.plan(), Path(stage.folder, "bwrap")
    path.write_text(f'#!/bin/sh\nexec prlimit --nproc=1 -- {plan.host.bubblewrap.path} "$@"\n')
    path.chmod(0o755)
    bubblewrap = replace(plan.host.bubblewrap, path=str(path), stamp=file_stamp(str(path)))
    return replace(plan, host=replace(plan.host, bubblewrap=bubblewrap))


async def _refused(
    stage: Stage, plan: Plan | None = None, image: Sealed | None = None, seconds: float = 30
) -> dict[str, str]:
    try:
        worker = await stage.launch(plan, image, seconds)
    except LayerError as error:
        return {"layer": error.layer, "expected": error.expected, "observed": error.observed}
    await end(worker)
    raise AssertionError("it was confirmed")


async def cancelled(stage: Stage) -> bool:
    """Cancel a launch whose program says nothing, once it is released."""
    written, add = asyncio.Event(), stage.ledger.add

    def noted(nonce: str, process: Process) -> None:
        add(nonce, process)
        written.set()

    with patch.object(stage.ledger, "add", noted):
        task = asyncio.create_task(stage.launch(image=stage.image("def attempt_all(rows): os.read(0, 1)")))
        await written.wait()
        task.cancel()
        await asyncio.wait([task])
    return task.cancelled()


# --- from inside ---


async def monitor_gone_early(stage: Stage) -> dict[str, str]:
    """Kill bubblewrap when it has forked its child and done nothing more for it; give the refusal."""
    held = launch.Launch._held

    async def after_the_fork(self: launch.Launch, uid: int, gid: int) -> Process:
        monitor = self._pid_of_monitor()
        children = f"/proc/{monitor}/task/{monitor}/children"
        while not await asyncio.to_thread(_read, children):
            pass
        os.kill(monitor, signal.SIGKILL)
        return await held(self, uid, gid)

    with patch.object(launch.Launch, "_held", after_the_fork):
        return await _refused(stage)


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


async def touching(stage: Stage) -> dict[str, Any]:
    """From inside, try every way to touch another process of the daemon's user."""
    arch = seccomp.architecture()
    with _victim() as victim:
        pid = victim.pid
        tries: dict[str, tuple[int | None, ...]] = {
            "kill": (pid, 9), "tkill": (pid, 9), "tgkill": (pid, pid, 9), "rt_sigqueueinfo": (pid, 9, None),
            "rt_tgsigqueueinfo": (pid, pid, 9, None), "pidfd_open": (pid, 0), "ptrace": (16, pid, 0, 0),
            "process_vm_readv": (pid, None, 0, None, 0, 0), "process_vm_writev": (pid, None, 0, None, 0, 0),
            "kcmp": (pid, os.getpid(), 0, 0, 0), "perf_event_open": (None, pid, -1, -1, 0),
            "process_madvise": (-1, None, 0, 0, 0), "prlimit64": (pid, 7, None, None),
            "setpriority": (0, pid, 19), "getpriority": (0, pid), "ioprio_set": (1, pid, 0), "ioprio_get": (1, pid),
            "sched_setscheduler": (pid, 0, None), "sched_getscheduler": (pid,), "sched_setparam": (pid, None),
            "sched_setattr": (pid, None, 0), "sched_setaffinity": (pid, 8, None), "sched_getaffinity": (pid, 8, None),
            "migrate_pages": (pid, 0, None, None), "move_pages": (pid, 0, None, None, None, 0),
            "get_robust_list": (pid, None, None), "setpgid": (pid, 0), "getpgid": (pid,), "getsid": (pid,),
        }  # fmt: skip
        with attempting(*([name, "syscall", seccomp.number(name, arch), *tries[name]] for name in tries)):
            answers = await _answers(stage)
        return {"answers": {name: answers[name] for name in tries}, "victim_lives": victim.poll() is None}


def _victim() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


async def attempts_that_do_not_count(stage: Stage) -> dict[str, list[str]]:
    """Judge a live worker once more, each of its answers in turn left out, or another: give what is still green."""
    answers: dict[str, Any] = {}
    with _kept(answers):
        worker = await stage.launch(stage.plan(extra="[namespaces]\npid = true"))
    process = worker.process
    green: dict[str, list[str]] = {"not made": [], "another errno": [], "a word": []}
    table = layers.table(process.plan, process.shape)
    for layer, each in [(row, each) for row in table for each in row.asked(process.plan)]:
        name = each.name
        others = {key: value for key, value in answers.items() if key != name}
        for how, changed in (
            ("not made", others),
            # EACCES, which an unconfined user gets too; where it is the proof, what comes without the layer (ENOEXEC).
            ("another errno", {**others, name: -8 if each.attempt.expected == -13 else -13}),
            ("a word", {**others, name: "works"}),
        ):
            if all(finding.confirmed for finding in judging.judge(process, layer, changed)):
                green[how].append(name)
    red = [
        layer.name for layer in table if not all(f.confirmed for f in judging.judge(process, layer, answers))
    ]
    await end(worker)
    return {**green, "red with its own answers": red}


async def findings(stage: Stage) -> dict[str, int]:
    """Give how many findings each layer of a confirmed worker rests on."""
    with judged() as found:
        await end(await stage.launch())
    return {name: len(rows) for name, rows in found.items()}


async def _answers(stage: Stage) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    with _kept(answers):
        await end(await stage.launch())
    return answers


def _kept(answers: dict[str, Any]) -> Any:
    """Keep the raw answers of the self-probe."""

    def keep(process: Process, answer: bytes, nonce: str, digest: str) -> tuple[Confirmed, ...]:
        answers.update(json.loads(answer)["results"])
        return confirm(process, answer, nonce, digest)

    return patch("bwrap.launch.confirm", keep)


async def not_seen_to_be_gone(stage: Stage) -> dict[str, Any]:
    """End a worker where nobody can look for what is left of it; give what is still written down of it."""

    async def blind(*_: object) -> None:
        raise OSError(errno.EMFILE, "nothing can be looked at")

    worker = await stage.launch()
    said = None
    with patch.object(supervise, "_clear", blind), patch.object(supervise, "_CLEAR_TRIES", 0):
        worker.kill("test")
        try:
            await worker.wait()
        except OSError as error:
            said = error.errno
    told = {
        "errno": said,
        "named": stage.workers() == [f"start-{worker._launch._nonce}"],
        "held": stage.ledger.holds(worker.process.uid),
    }
    # As the next start would, so that this test leaves nothing.
    if worker._launch._lease is not None:
        worker._launch._lease.release()
    stage.ledger.sweep()
    return told


async def refused_and_not_seen_to_be_gone(stage: Stage) -> dict[str, str]:
    """Refuse a launch whose worker cannot be looked for: the refusal is what is told."""

    async def blind(*_: object) -> None:
        raise OSError(errno.EMFILE, "nothing can be looked at")

    with patch.object(supervise, "_clear", blind), patch.object(supervise, "_CLEAR_TRIES", 0):
        before = launch.Launch._see_end
        seen: list[launch.Launch] = []

        async def noted(self: launch.Launch, process: Process) -> Any:
            seen.append(self)
            return await before(self, process)

        with patch.object(launch.Launch, "_see_end", noted):
            refused = await _refused(stage, image=stage.image("def attempt_all(rows): return {}"))
    for each in seen:
        if each._lease is not None:
            each._lease.release()
    stage.ledger.sweep()
    return refused
