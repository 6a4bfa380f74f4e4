"""Any command, run once as a profile confines it: a person's own act, to see what a profile does.

The namespaces, mounts, filter, limits and uid are a worker's. What a worker has beyond that is not here: no layer is
probed, nothing is written down for a later daemon to find, and no credential is ever made.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import stat
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

from bwrap import arguments, elf, lines, supervise, uids
from bwrap import host as hosts
from bwrap.errors import LayerError
from bwrap.host import Shape
from bwrap.impersonation import impersonate
from bwrap.limits import set_limits
from bwrap.mounts import Kind, mounts
from bwrap.pipes import given, read_line, readable
from bwrap.plan import PATH, resolve
from bwrap.process import Process
from bwrap.refusals import Refusals, Refused, limited
from bwrap.sealed import Sealed
from bwrap.seccomp import compile_filter
from bwrap.strace import Strace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bwrap.host import Host
    from bwrap.plan import Places, Plan
    from bwrap.profile import Profile
    from bwrap.seccomp import Filter, Rules
    from bwrap.supervise import Exit

WORKER_SOCKET = "@worker_socket"
"""The token of the one thing that is there only while a daemon runs."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_STATUS_LIMIT = 4096
_TRACE_SECONDS = 1.0
_ABOUT = 0.9
_DEEPEST_SCRIPT = 5  # BINPRM_BUF and search_binary_handler: a script may be run by a script, five deep


@dataclass(frozen=True, slots=True)
class Prepared:
    """A command and the plan it is to run by; `added` is what of the host it shows beyond the profile."""

    plan: Plan
    command: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tried:
    """How a command ended, and what was seen to be refused: None, with the reason, when nothing could be seen.

    `killed` is the limit that ended it, watched or not; what was seen to be refused holds it too.
    """

    exit: Exit
    refused: list[Refused] | None
    unseen: str
    killed: Refused | None = None

    @property
    def status(self) -> int:
        """The exit status as a shell gives it: the command's own, or 128 and the number of the signal."""
        if self.exit.signal is None:
            return self.exit.code or 0
        named = {each.name: each.value for each in signal.Signals}
        return 128 + (named.get(self.exit.signal) or int(self.exit.signal.removeprefix("SIG")))


def prepare(
    profile: Profile,
    host: Host,
    places: Places,
    command: Sequence[str],
    read_only: Sequence[str] = (),
    compiled: Callable[[Rules], Filter] = compile_filter,
) -> Prepared:
    """Resolve a profile for a command, whose first word is the path of a program, to which its file is added.

    So is what the program needs to start, and each path of `read_only`. Raises what `plan.resolve` does, and
    `LayerError` for what the command's uid could not reach.
    """
    program, *words = command
    # A folder's links are followed: only those at the root stand in the sandbox too.
    program = os.path.join(os.path.realpath(os.path.dirname(program)), os.path.basename(program))
    files = [*needs(program), *needs(host.python.env)]
    for path in (*files, *read_only):
        hosts.require_reachable(repr(path), os.path.realpath(path), host.shape, needed=stat.S_IROTH)
    plan = resolve(profile, host, places, compiled)
    wider = dict.fromkeys((*profile.filesystem.read_only, *map(os.path.abspath, read_only), *files))
    shown = mounts(_with(profile, read_only=list(wider)), host.python, places).found
    # No worker's program: the command stands in its place.
    shown = tuple(mount for mount in shown if mount.kind is not Kind.IMAGE)
    return Prepared(
        plan=replace(plan, mounts=shown),
        # bubblewrap adds PWD to the environment, as it does to a worker's.
        command=(host.python.env, "-i", f"PATH={PATH}", program, *words),
        added=tuple(mount.target for mount in shown if mount not in plan.mounts),
    )


def needs(program: str) -> list[str]:
    """Give the files that a program needs to start: itself, a script's interpreters, and the shared objects of each."""
    found: list[str] = []
    pending = [program]
    for _ in range(_DEEPEST_SCRIPT):
        scripts = {path: _interpreters(path) for path in pending}
        found += pending
        found += [each for path in pending if not scripts[path] for each in elf.needs(path)]
        pending = [each for interpreters in scripts.values() for each in interpreters]
    return list(dict.fromkeys(found))


def without_worker_socket(profile: Profile) -> Profile:
    """Give a profile without the worker socket."""
    return _with(profile, sockets=[each for each in profile.filesystem.sockets if each != WORKER_SOCKET])


class Streams(NamedTuple):
    """Descriptors for a command's standard input, output and error; None stands for this process's own."""

    input: int | None = None
    output: int | None = None
    error: int | None = None


async def run(
    prepared: Prepared,
    *,
    strace: str | None = None,
    pool: uids.Pool | None = None,
    streams: Streams = Streams(),  # noqa: B008 - it cannot be changed
) -> Tried:
    """Run a command to its end on these streams, and leave nothing of it.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to it. What is refused is watched with `strace`, if its path is
    given. Must be called on the main thread: the command dies with the thread that started it (PR_SET_PDEATHSIG,
    prctl(2)). Raises `LayerError` when it could not be started.
    """
    fill_standard_descriptors()
    with ExitStack() as held:
        uid, gid = os.geteuid(), os.getegid()
        if prepared.plan.host.shape is Shape.HOSTED:
            lease = (pool or uids.Pool()).lease()
            held.callback(lease.release)
            uid = gid = lease.uid
        started = _Started(prepared, uid, gid, streams, held)
        try:
            return await started.through(strace)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(started.abandon()))
            raise


class _Started:
    """A bubblewrap that holds its child back; every descriptor is closed with `held`."""

    def __init__(self, prepared: Prepared, uid: int, gid: int, streams: Streams, held: ExitStack) -> None:
        self._plan, self._held, self._streams = prepared.plan, held, streams
        self._command = prepared.command
        self._uid, self._gid = uid, gid
        self._process: Process | None = None
        self._trace: Strace | None = None
        self._pidfd = -1
        with ExitStack() as theirs:
            self._status, status = self._pipe(theirs, ours="rb")
            self._block, block = self._pipe(theirs, ours="wb")
            descriptors = {
                arguments.FILTER: given(theirs, Sealed.once("spl-filter", self._plan.filter.program)),
                arguments.STATUS: status,
                arguments.BLOCK: block,
            }
            options = arguments.numbered(arguments.arguments(self._plan), descriptors)
            listed = given(theirs, Sealed.once("spl-arguments", arguments.packed(options)))
            self._monitor = self._spawn(
                [self._plan.host.bubblewrap.path, "--args", str(listed), "--", *prepared.command],
                pass_fds=[*descriptors.values(), listed],
            )
            held.callback(self._monitor.kill)  # nothing is sent to one that was waited for
            # A pipe that nobody reads, so that the tie can stand until the end: bubblewrap arms its child's own death
            # signal some moments after it was let go.
            life, alive = os.pipe2(os.O_CLOEXEC)
            held.callback(os.close, alive)
            held.callback(os.close, life)
            held.callback(supervise.untie, life)
            if not self._plan.namespaces.pid:
                supervise.tie(life, self._monitor.pid)
        self._monitor_pidfd = os.pidfd_open(self._monitor.pid)
        held.callback(os.close, self._monitor_pidfd)

    async def through(self, strace: str | None) -> Tried:
        """Limit it, let it go on, and see it to its end."""
        process = self._process = await self._held_back()
        self._limit(process)
        seen = Refusals(self._plan, self._command)
        unseen = await self._watched(process, strace, seen)
        with _passing_on(process, self._pidfd):
            self._block.close()  # at this end of file bubblewrap lets its child go on to its exec
            await readable(self._monitor_pidfd)
            if self._trace is not None:
                if not await self._trace.seen_out(_TRACE_SECONDS):
                    unseen = "strace did not come to its end"
                elif not seen.begun:
                    unseen = "the command was not seen to start"
                # Before anyone reaps what has the command's uid: its number is to be its own until then.
                self._trace.close()
            before = _seconds_of_children()
            ended = await supervise.reap(self._monitor, self._monitor_pidfd, self._pidfd, process)
            killed = self._out_of_time(ended, _seconds_of_children() - before)
        refused = [*([killed] if killed else []), *seen.found()]
        return Tried(ended, None if unseen else refused, unseen, killed)

    def _out_of_time(self, ended: Exit, seconds: float) -> Refused | None:
        """Tell whether the limit of processor time ended it: the kernel then sends SIGKILL, and nothing that says why.

        The limit counts ticks (getrlimit(2)) and the usage is exact, so that one is only about the other.
        """
        limit = self._plan.limits.cpu_time
        if ended.signal != "SIGKILL" or seconds < _ABOUT * limit:
            return None
        what = limited(self._plan.limits, "processor time", "cpu_time")
        return Refused("limits", what, ended.signal, 1, lines.raised(self._plan.limits, "cpu_time"))

    async def abandon(self) -> None:
        """Kill what was started and wait until it is gone."""
        if self._trace is not None:
            self._trace.close()
        if self._process is not None:
            supervise.kill(self._pidfd)
        self._monitor.kill()
        await readable(self._monitor_pidfd)
        if self._process is not None:
            await supervise.reap(self._monitor, self._monitor_pidfd, self._pidfd, self._process)
            return
        self._monitor.wait()
        await supervise.reap_adopted(self._uid)

    def _spawn(self, command: list[str], *, pass_fds: list[int]) -> subprocess.Popen[bytes]:

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                stdin=self._streams.input,
                stdout=self._streams.output,
                stderr=self._streams.error,
                pass_fds=pass_fds,
                env={},
                cwd="/",
                process_group=0,
            )

        try:
            return impersonate(self._uid, self._gid, start)
        except OSError as error:
            raise LayerError(
                "separate_user" if self._plan.host.shape is Shape.HOSTED else "sandbox",
                expected=f"bubblewrap to start as uid {self._uid}",
                observed=f"{error.strerror or error}: {error.filename or self._plan.host.bubblewrap.path}",
                remedy="'spl doctor' says what this host lacks",
            ) from None

    async def _held_back(self) -> Process:
        """Learn the command's pid while it is held, and make sure that it is the monitor's child."""
        pid = _child_pid(await read_line(self._status.fileno(), _STATUS_LIMIT))
        process = Process(self._plan, self._plan.host.shape, pid, self._monitor.pid, self._uid, self._gid)
        parent = 0
        if pid:
            with suppress(ProcessLookupError, FileNotFoundError):
                self._pidfd = os.pidfd_open(pid)
                self._held.callback(os.close, self._pidfd)
                # Read after the pidfd is open: had the number been taken over by then, its parent would be another.
                parent = int(process.stat(4))
        if parent != self._monitor.pid:
            raise LayerError(
                "sandbox",
                expected="bubblewrap to hold a child of its own in a sandbox",
                observed="none; what it said stands above",
                remedy="'spl doctor' says what this host lacks",
            )
        return process

    def _limit(self, process: Process) -> None:
        """Limit the held process, as whoever it is outside."""
        limit = partial(
            set_limits,
            process.pid,
            process.limits(),
            "raise this user's own limit (ulimit -H), or write a lower one into the profile",
        )
        impersonate(process.uid, process.gid, limit)

    async def _watched(self, process: Process, strace: str | None, seen: Refusals) -> str:
        """Attach strace; gives why nothing can be seen, or nothing."""
        if strace is None:
            return "it was not watched"
        try:
            self._trace = Strace(strace, process, seen.take)
        except OSError as error:
            return f"strace cannot be started: {error.strerror}"
        if reason := await self._trace.attached():
            self._trace.close()
            self._trace = None
            return f"strace cannot be attached: {reason}"
        return ""

    def _pipe(self, theirs: ExitStack, ours: str) -> tuple[IO[bytes], int]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        mine, other = (reading, writing) if ours == "rb" else (writing, reading)
        given(theirs, other)
        os.set_blocking(mine, False)
        return self._held.enter_context(os.fdopen(mine, ours, buffering=0)), other


@contextmanager
def _passing_on(process: Process, pidfd: int) -> Iterator[None]:
    """Pass signals on to a command; it is in a session of its own, where no terminal's would reach it."""

    def pass_on(number: int) -> None:
        with suppress(ProcessLookupError, FileNotFoundError):
            # The kernel spares an init what it does not handle, SIGKILL apart (pid_namespaces(7)): what the signal
            # would have done to another process is done to it.
            spared = process.plan.namespaces.pid and not _handles(process, number)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL if spared else number)

    loop = asyncio.get_running_loop()
    # One that was ignored when this started (nohup(1)) stays so.
    passed = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in passed:
        loop.add_signal_handler(number, pass_on, number)
    try:
        yield
    finally:
        for number in passed:
            loop.remove_signal_handler(number)


def _seconds_of_children() -> float:
    """Give the processor time of all that this process has waited for, with what each of those had waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _child_pid(line: bytes) -> int:
    """Read a line of bubblewrap's status; 0 for anything else."""
    try:
        return max(0, int(json.loads(line)["child-pid"]))
    except (ValueError, KeyError, TypeError):
        return 0


def _handles(process: Process, number: int) -> bool:
    caught, ignored = (int(process.status(name), 16) for name in ("SigCgt", "SigIgn"))
    return bool((caught | ignored) >> (number - 1) & 1)


def _interpreters(path: str) -> list[str]:
    """Give what runs a script by its first line (execve(2)), and what env(1) is told to run there; else nothing."""
    with open(path, "rb") as file:
        first = file.read(256).split(b"\n", 1)[0]
    if not first.startswith(b"#!"):
        return []
    words = os.fsdecode(first[2:]).split()
    found = words[:1]
    if found and os.path.basename(found[0]) == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
        if named is not None:
            found.append(os.path.join(PATH, named))
    return [each for each in found if os.path.isfile(each)]


def _with(profile: Profile, **files: list[str]) -> Profile:
    """Give a profile with other lists of files."""
    return profile.model_copy(update={"filesystem": profile.filesystem.model_copy(update=files)})


def fill_standard_descriptors() -> None:
    """Open what is closed of 0, 1 and 2 on /dev/null, so that nothing of this module's takes their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
