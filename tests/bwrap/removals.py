"""Each layer taken away for real, one at a time, while what is claimed and looked for stays the production's."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import subprocess
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bwrap import plan as plans
from bwrap.errors import LayerError
from bwrap.launch import Launch
from bwrap.seccomp import compile_filter
from escape.weakened import allowing_all, stand_in
from tests.bwrap.stage import judged, options, without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bwrap.plan import Plan
    from bwrap.process import Process
    from tests.bwrap.stage import Stage

    Change = Callable[[list[str]], list[str]]
    Removal = Callable[[Stage, ExitStack], Plan | None]


async def remove(stage: Stage, taken: str) -> dict[str, Any]:
    """Launch without one layer; give what was red in which layer, and the layer by whose name it was refused."""
    with ExitStack() as stack:
        found = stack.enter_context(judged())
        plan = REMOVALS[taken](stage, stack) or stage.plan()
        refused = None
        try:
            worker = await stage.launch(plan)
        except LayerError as error:
            refused = error.layer
        else:
            worker.kill("test")
            await worker.wait()
    return {
        "refused": refused,
        "red": {
            layer: {row.how: row.observed for row in rows if not row.confirmed}
            for layer, rows in found.items()
            if not all(row.confirmed for row in rows)
        },
    }


# --- by what bubblewrap is told ---


def _told(change: Callable[[Stage], Change]) -> Removal:
    def removal(stage: Stage, stack: ExitStack) -> None:
        stack.enter_context(options(change(stage)))

    return removal


def _without(*words: str) -> Removal:
    return _told(lambda _: without(*words))


def _replaced(old: tuple[str, ...], new: tuple[str, ...]) -> Removal:
    return _told(lambda _: lambda said: [*without(*old)(said), *new])


def _replaced_in_place(old: tuple[str, ...], new: tuple[str, ...]) -> Removal:
    def change(said: list[str]) -> list[str]:
        at = said.index(old[0])
        return [*said[:at], *new, *said[at + len(old) :]]

    return _told(lambda _: change)


def _added(words: Callable[[Stage], list[str]]) -> Removal:
    """Add a mount, before the root becomes read-only."""

    def change(stage: Stage) -> Change:
        def changed(said: list[str]) -> list[str]:
            at = said.index("--remount-ro")
            return [*said[:at], *words(stage), *said[at:]]

        return changed

    return _told(change)


def _folder(stage: Stage) -> str:
    path = f"{stage.folder}/shared"
    os.mkdir(path)
    os.chmod(path, 0o777)
    return path


def _file(stage: Stage) -> str:
    path = Path(stage.folder, "file")
    path.write_text("")
    return str(path)


def _bare_home(stage: Stage) -> Change:
    """Leave out the file system that hides the home; its folders are then the sandbox's own."""

    def change(said: list[str]) -> list[str]:
        at = said.index(stage.home)
        return without("--remount-ro", stage.home)(said[: at - 5] + said[at + 1 :])

    return change


# --- by what the launch does ---


def _patched(make: Callable[[], Iterator[AbstractContextManager[Any]]]) -> Removal:
    def removal(_: Stage, stack: ExitStack) -> None:
        for context in make():
            stack.enter_context(context)

    return removal


def _unlimited() -> Iterator[AbstractContextManager[Any]]:
    yield patch.object(Launch, "_limit", lambda self, process: None)


def _one_limit_missing() -> Iterator[AbstractContextManager[Any]]:
    prlimit = resource.prlimit

    def but_one(pid: int, which: int, limits: tuple[int, int]) -> None:
        if which != resource.RLIMIT_FSIZE:
            prlimit(pid, which, limits)

    yield patch.object(resource, "prlimit", but_one)


def _environment() -> Iterator[AbstractContextManager[Any]]:
    command = plans.Plan.command.fget  # type: ignore[attr-defined]
    yield patch.object(
        plans.Plan, "command", property(lambda self: tuple(w for w in command(self) if w != "-i"))
    )


def _descriptor() -> Iterator[AbstractContextManager[Any]]:
    started = subprocess.Popen

    def popen(*words: Any, pass_fds: Sequence[int] = (), **named: Any) -> Any:
        reading, writing = os.pipe()
        try:
            return started(*words, pass_fds=[*pass_fds, reading], **named)
        finally:
            os.close(reading)
            os.close(writing)

    yield patch.object(subprocess, "Popen", popen)


def _early_word() -> Iterator[AbstractContextManager[Any]]:
    held = Launch._held

    async def early(self: Launch, uid: int, gid: int) -> Process:
        process = await held(self, uid, gid)
        self._untie()  # or the write would end it at once
        os.write(self._open["stdin"], b"{}\n")
        return process

    yield patch.object(Launch, "_held", early)


def _as_root() -> Iterator[AbstractContextManager[Any]]:
    yield patch.object(Launch, "identity", lambda self: (0, 0))


def _root_in_the_daemons_namespace(stage: Stage, stack: ExitStack) -> None:
    stack.enter_context(options(without("--unshare-user", "--disable-userns")))
    for context in _as_root():
        stack.enter_context(context)


def _swapped(stage: Stage, stack: ExitStack) -> Plan:
    """Have a folder that is shown become another after it was looked at, and before bubblewrap looks its path up."""
    shown, other = f"{stage.folder}/shown", f"{stage.folder}/other"
    for folder in (shown, other):
        os.mkdir(folder)
        os.chmod(folder, 0o755)
    plan = stage.plan(extra=f'[filesystem]\nread_only = ["{shown}"]')
    require = plans.Plan.require_sources

    def swapping(self: Plan) -> None:
        require(self)
        os.rename(shown, f"{stage.folder}/gone")
        os.rename(other, shown)

    stack.enter_context(patch.object(plans.Plan, "require_sources", swapping))
    return plan


# --- by what the profile claims, and what the program does of itself ---

OWN_PROC = '[namespaces]\npid = true\n[filesystem]\nproc = "own"\n'


def _claimed(extra: str, removal: Removal) -> Removal:
    """Take away what only a profile with some more lines claims."""

    def claimed(stage: Stage, stack: ExitStack) -> Plan:
        removal(stage, stack)
        return stage.plan(extra=extra)

    return claimed


def _program(changes: str) -> Removal:
    def removal(stage: Stage, stack: ExitStack) -> None:
        stack.enter_context(patch.object(stage, "image", lambda: type(stage).image(stage, changes)))

    return removal


def _answering(landlock: int) -> Removal:
    """Have the program leave out its own restriction, and say this of it."""
    return _program(
        f"import sys\nsys.modules['spl.worker.probe']._OPERATIONS['landlock'] = lambda *_: {landlock}"
    )


# --- by what stands in bubblewrap's place ---


def _nothing(stage: Stage, stack: ExitStack) -> Plan:
    # Unconfined, it makes the segment and the queue it attempts to make: they go again.
    for name, remove in (("shm", "shmctl"), ("msg", "msgctl")):
        stack.callback(_remove_ipc, name, remove, _ipc(name))
    return stand_in(stage.plan())


def _ipc(name: str) -> set[int]:
    rows = Path(f"/proc/sysvipc/{name}").read_text().splitlines()[1:]
    return {int(row.split()[1]) for row in rows if row.split()[0] == "0"}


def _remove_ipc(name: str, remove: str, before: set[int]) -> None:
    for identifier in _ipc(name) - before:
        getattr(ctypes.CDLL(None), remove)(identifier, 0, None)


def _allowing_sockets(stage: Stage, _: ExitStack) -> Plan:
    plan = stage.plan()
    rules = plan.filter.rules
    when = {call: condition for call, condition in rules.when.items() if call != "socket"}
    loose = compile_filter(replace(rules, allow=rules.allow | {"socket"}, when=when))
    return replace(plan, filter=replace(plan.filter, program=loose.program))


REMOVALS: dict[str, Removal] = {
    "nothing is confined": _nothing,
    "the daemon's user namespace, as root": _root_in_the_daemons_namespace,
    "uid 0 outside": _patched(_as_root),
    "the daemon's network": _without("--unshare-net"),
    "a filter that allows sockets": _allowing_sockets,
    "a writable home": _told(lambda stage: without("--remount-ro", stage.home)),
    "no file system over the home": _told(_bare_home),
    "a file in the home": _added(lambda stage: ["--ro-bind", _file(stage), f"{stage.home}/file"]),
    "a writable root": _without("--remount-ro", "/"),
    "a writable host folder": _added(lambda stage: ["--bind", _folder(stage), "/shared"]),
    "a read-only host folder": _added(lambda stage: ["--ro-bind", _folder(stage), "/shared"]),
    "a folder with devices": _added(lambda stage: ["--dev-bind", "/dev/null", "/shared"]),
    "a source that was looked at": _swapped,
    "the daemon's IPC": _without("--unshare-ipc"),
    "the daemon's host name": _without("--unshare-uts"),
    "the daemon's control groups": _without("--unshare-cgroup"),
    "no filter": _without("--seccomp", "{filter}"),
    "a filter that allows all": lambda stage, _: allowing_all(stage.plan()),
    "no restriction of its own": _answering(0),
    "a kernel that has no Landlock, by the worker's word": _answering(-errno.ENOSYS),
    "a profile without the calls of Landlock": lambda stage, _: stage.plan(
        extra='[syscalls]\nallow = ["!@landlock"]'
    ),
    "the daemon's process ids": _claimed("[namespaces]\npid = true", _without("--unshare-pid", "--as-pid-1")),
    "the host's /proc": _claimed(
        OWN_PROC, _replaced_in_place(("--proc", "/proc"), ("--ro-bind", "/proc", "/proc"))
    ),
    "a writable /proc": _claimed(OWN_PROC, _without("--remount-ro", "/proc")),
    "capabilities kept": _replaced(("--cap-drop", "ALL"), ("--cap-add", "ALL")),
    "no limits": _patched(_unlimited),
    "one limit missing": _patched(_one_limit_missing),
    "bubblewrap's environment": _patched(_environment),
    "one descriptor more": _patched(_descriptor),
    "the daemon's session": _without("--new-session"),
    "no death with the parent": _without("--die-with-parent"),
    "a word on standard input too soon": _patched(_early_word),
}
