"""Start one confined process and confirm every layer of it, or leave nothing.

Held before its exec, limited, released to its self-probe, looked at from outside: only then is there a `Confined`
with a receipt. Whatever is not as claimed ends in a `LayerError` and a dead process.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import secrets
import select
import subprocess
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from bwrap import arguments, doctor, layers, supervise, uids
from bwrap.confined import Confined
from bwrap.errors import LayerError
from bwrap.host import Shape
from bwrap.impersonation import impersonate
from bwrap.limits import resource_limits, set_limits
from bwrap.pipes import Tail, given, read_line, readable
from bwrap.process import Process
from bwrap.receipt import Receipt, confirm
from bwrap.sealed import Sealed

if TYPE_CHECKING:
    from bwrap.cgroup import Group
    from bwrap.findings import Asked
    from bwrap.ledger import Ledger
    from bwrap.plan import Plan
    from bwrap.receipt import Confirmed
    from bwrap.supervise import Exit

_STATUS_LIMIT = 4096
_READY_LIMIT = 65536
_DISBAND_SECONDS = 5.0

# What bubblewrap says when it cannot set a layer up, and which layer that is. A source first: its path may hold any
# word.
_COMPLAINTS = (
    (r"source path", "mounts"),
    (r"seccomp", "syscalls"),
    (r"user ?ns|user namespace|uid map|new namespace|max_user_namespaces", "user_namespace"),
    (r"loopback|RTM_|network", "network"),
    (r"capab|prctl", "capabilities"),
    (r"mount|mkdir|create|symlink|remount|pivot", "mounts"),
)
_COMPLAINING = "bwrap: "


async def launch(plan: Plan, image: Sealed, ledger: Ledger, *, seconds: float) -> Confined:
    """Start a process for a plan and confirm its layers within `seconds`.

    The command is given a nonce and the list of attempts as arguments, and answers with one line of JSON on
    standard output (`ready`, `image`, `results`). Must be called on a thread that lives as long as the daemon:
    the kernel sends the death-of-parent signal when the spawning thread ends (PR_SET_PDEATHSIG, prctl(2)).
    Raises `LayerError` naming the layer.
    """
    return await Launch(plan, image, ledger).within(seconds)


class Launch:
    """The descriptors and processes of one start, so that each way out gives all of them back.

    Its public steps are those that the escape suite takes a layer out of, to see that its absence is noticed; a daemon
    has no way to such a one: it calls `launch`.
    """

    def __init__(self, plan: Plan, image: Sealed, ledger: Ledger) -> None:
        self._plan, self._image, self._ledger = plan, image, ledger
        self._shape = plan.host.shape
        self._nonce = secrets.token_hex(16)
        self._monitor: subprocess.Popen[bytes] | None = None
        self._lease: uids.Lease | None = None
        self._group: Group | None = None
        self._joining: asyncio.Task[None] | None = None
        self._tail: Tail | None = None
        self._open: dict[str, int] = {}
        self._began = False
        self.ended: asyncio.Task[Exit] | None = None

    async def within(self, seconds: float) -> Confined:
        """Start, and confirm in time; what was started is gone when this raises. See `launch`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._run()
        except TimeoutError:
            await self.abandon()
            raise LayerError(
                "sandbox",
                expected=f"a worker that is ready within {seconds:g} s",
                observed=self.said() or "no answer",
                remedy="look at the host's load, or allow more time in the settings",
            ) from None
        except OSError as error:
            await self.abandon()
            raise LayerError(
                "sandbox",
                expected="descriptors, memory and processes for one more worker",
                observed=error.strerror or str(error),
                remedy="end some runs, free space in the home, or raise the daemon's limits (RLIMIT_NOFILE, "
                "RLIMIT_NPROC)",
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            await self.abandon()
            raise LayerError(
                "sandbox",
                expected="answers that can be read from bubblewrap and the worker",
                observed=f"{type(error).__name__}: {error}",
                remedy="report this, with the version of bubblewrap",
            ) from error
        except BaseException:
            await self.abandon()
            raise

    def options(self) -> tuple[str, ...]:
        """Give bubblewrap's options, descriptors by name."""
        return arguments.arguments(self._plan)

    def command(self) -> tuple[str, ...]:
        """Give the confined command up to its own arguments."""
        return self._plan.command

    def descriptors(self, theirs: ExitStack) -> dict[str, int]:
        """Give what bubblewrap is given beside its standard streams, by the names in its options."""
        return {
            arguments.FILTER: given(theirs, Sealed.once("spl-filter", self._plan.filter.program)),
            arguments.IMAGE: given(theirs, self._image.open()),
            arguments.STATUS: _both_ways(theirs, self._pipe(theirs, "status", ours_reads=True)),
            arguments.BLOCK: self._pipe(theirs, "block", ours_reads=False),
        }

    def identity(self) -> tuple[int, int]:
        """Give the uid and gid, outside its namespaces, that the process is to have; hosted, one that is leased."""
        if self._shape is Shape.SAME_USER:
            return os.geteuid(), os.getegid()
        self._lease = self._ledger.lease()
        return self._lease.uid, self._lease.uid

    def limits(self) -> dict[str, int]:
        """Give the limits to set, by the names of getrlimit(2)."""
        return resource_limits(self._plan.limits)

    def attempts(self) -> list[Asked]:
        """Give what the process must attempt before it is ready."""
        return layers.attempts(self._plan, self._shape)

    def confirm(self, process: Process, answer: bytes) -> tuple[Confirmed, ...]:
        """Hold every layer against what it was to be; raises `LayerError`."""
        return confirm(process, answer, self._nonce, self._image.digest)

    async def _run(self) -> Confined:
        self._plan.host.bubblewrap.require_unchanged()
        self._plan.require_sources()
        options = self.options()
        uid, gid = self.identity()
        self._ledger.begin(self._nonce, None if self._lease is None else uid)
        self._group = self._ledger.groups.make(self._nonce, self._plan)
        self._spawn(options, uid, gid)
        await self._join(self._pid_of_monitor())
        self._close("hold")
        process = await self._held(uid, gid)
        self._limit(process)
        await self._join(process.monitor, process.pid)
        self._ledger.add(self._nonce, process)
        self.ended = asyncio.create_task(self._see_end(process))
        self._close("block")  # at this end of file bubblewrap lets its child go on to its exec
        answer = await self._ready()
        try:
            confirmed = self.confirm(process, answer)
        except LayerError:
            # Of a process that ended while it was looked at, no layer can be read: say what happened first.
            self.require_alive()
            raise
        receipt = Receipt(
            process=process,
            start_time=supervise.started(process.pid),
            argv_digest=arguments.digest(options, self.command()),
            filter_digest=self._plan.filter.digest,
            image_digest=self._image.digest,
            layers=confirmed,
        )
        self.require_alive()
        return Confined(process, receipt, self)

    def require_alive(self) -> None:
        """Raise `LayerError` of a process that has ended."""
        if not self.alive():
            raise self._refusal("a worker that lives")

    async def wait(self) -> Exit:
        """Wait until nothing of it is left; gives how it ended."""
        if self.ended is None:
            raise RuntimeError("nothing was started")
        return await asyncio.shield(self.ended)

    def alive(self) -> bool:
        """Say whether the process lives, by its pidfd."""
        if "process" not in self._open:
            return False
        poll = select.poll()
        poll.register(self._open["process"], select.POLLIN)
        return not poll.poll(0)

    def said(self) -> str:
        """Give the end of what it, or bubblewrap, wrote to standard error."""
        return self._tail.text if self._tail else ""

    def write_input(self, line: bytes) -> None:
        """Write to its standard input, once, and close that."""
        if "stdin" in self._open:
            with suppress(BrokenPipeError):
                os.write(self._open["stdin"], line)
            self._close("stdin")

    def kill(self) -> None:
        """Kill the process and its monitor, and in a group of their own whatever else is in it."""
        # Out of descriptors, say, of which these two need no more: `_disband` kills in it again, and raises.
        with suppress(OSError):
            if self._group is not None:
                self._group.kill()
        for name in ("process", "monitor"):
            if name in self._open:
                supervise.kill(self._open[name])

    async def abandon(self) -> None:
        """Kill what was started and wait until it is gone, even when the caller is being cancelled."""
        self.kill()
        # Waited for, not awaited: what goes wrong with its end must not stand in the place of why it was abandoned.
        ended: asyncio.Task[Any] = self.ended or asyncio.create_task(self._clear())
        await asyncio.wait([ended])

    async def _clear(self) -> None:
        """Wait for a monitor that never came to a worker, and give everything back."""
        try:
            if self._joining is not None:
                # Until that has come back, their numbers must mean them.
                await asyncio.gather(self._joining, return_exceptions=True)
            if self._monitor is not None:
                self._monitor.kill()
                if "monitor" in self._open:
                    await readable(self._open["monitor"])
                self._monitor.wait()
                self._close_all()  # to look for what is left takes some, and there may be no more to be had
                # A monitor that went before it could set its child up leaves it waiting for ever: it has not been
                # told to die with anyone yet.
                uid = os.geteuid() if self._lease is None else self._lease.uid
                await supervise.patiently(partial(supervise.reap_adopted, uid))
            await supervise.patiently(self._disband)
        except BaseException:
            self._close_all()  # and nothing else is given back: the next start's sweep looks for what is left
            raise
        self._give_back()

    def _spawn(self, options: tuple[str, ...], uid: int, gid: int) -> None:
        with ExitStack() as theirs:
            descriptors = self.descriptors(theirs)
            listed = arguments.packed(arguments.numbered(options, descriptors))
            listed_at = given(theirs, Sealed.once("spl-arguments", listed))
            stdin = self._pipe(theirs, "stdin", ours_reads=False)
            stdout = self._pipe(theirs, "stdout", ours_reads=True)
            stderr = self._pipe(theirs, "stderr", ours_reads=True)
            self._tail = Tail(self._open.pop("stderr"))
            # bubblewrap reads its arguments to their end before it forks: by then it is in the group, and its child is
            # born there.
            hold = [] if self._group is None else [self._pipe(theirs, "hold", ours_reads=False)]
            command = [
                *(self._plan.host.bubblewrap.path, "--args", str(listed_at)),
                *(word for each in hold for word in ("--args", str(each))),
                "--",
                *(*self.command(), self._nonce, self._specification()),
            ]

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    close_fds=True,
                    pass_fds=[*descriptors.values(), listed_at, *hold],
                    env={},
                    cwd="/",
                    # A group of its own: Ctrl-C at the daemon's terminal is the daemon's to handle.
                    process_group=0,
                )

            try:
                self._monitor = impersonate(uid, gid, start)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM):
                    raise  # `launch` says what there is too little of
                # EINVAL: a uid that the daemon's own user namespace does not map (user_namespaces(7)).
                hosted = self._shape is Shape.HOSTED
                denied = error.errno in (errno.EPERM, errno.EACCES, errno.EINVAL)
                raise LayerError(
                    "separate_user" if hosted and denied else "sandbox",
                    expected=f"bubblewrap to start as uid {uid}",
                    observed=f"{error.strerror or error}: {error.filename or self._plan.host.bubblewrap.path}",
                    remedy="let the daemon change its uid (CAP_SETUID, CAP_SETGID) to one that its container maps"
                    if hosted and denied
                    else "install bubblewrap, and start the daemon again",
                ) from None
            self._open["monitor"] = os.pidfd_open(self._monitor.pid)
            self._tie(stdin)

    def _tie(self, stdin: int) -> None:
        """Tie bubblewrap and its child to this process until bubblewrap has done so itself; see `supervise.tie`.

        An init of a pid namespace would be spared and left behind by its monitor, so there the sweep must do.
        """
        if not self._plan.namespaces.pid:
            self._open["tie"] = os.dup(stdin)
            supervise.tie(stdin, self._pid_of_monitor())

    def _untie(self) -> None:
        if "tie" in self._open:
            supervise.untie(self._open["tie"])
            self._close("tie")

    async def _join(self, *pids: int) -> None:
        """See to it that just these are in the group; what the child starts once it is let go is then in it too.

        In a thread: to move one takes the kernel some milliseconds, in which others are to be answered.
        """
        if self._group is not None:
            self._joining = asyncio.create_task(asyncio.to_thread(self._group.enter, pids))
            try:
                await asyncio.shield(self._joining)
            except ProcessLookupError:
                raise self._refusal("a process that lives until it is released") from None
            except RuntimeError as error:
                # What Python says where the system lets it have no thread (pthread_create(3), EAGAIN).
                raise OSError(errno.EAGAIN, str(error)) from None

    async def _held(self, uid: int, gid: int) -> Process:
        """Learn the process's pid while it is held, and make sure that it is the monitor's child."""
        line = await read_line(self._open["status"], _STATUS_LIMIT)
        if not line:
            raise self._refusal("bubblewrap to set the sandbox up")
        pid = int(json.loads(line)["child-pid"])
        process = Process(self._plan, self._shape, pid, self._pid_of_monitor(), uid, gid, self._group)
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            raise self._refusal("a process that lives until it is released") from None
        # Read after the pidfd is open: had the number been taken over by then, its parent would be another. Kept only
        # then, since whatever is kept is killed when a launch is abandoned.
        if supervise.parent(process.pid) != process.monitor:
            os.close(pidfd)
            raise self._refusal("a process that lives until it is released")
        self._open["process"] = pidfd
        return process

    def _limit(self, process: Process) -> None:
        """Limit the held process, as whoever it is outside: root may lack CAP_SYS_RESOURCE over another uid."""
        limit = partial(set_limits, process.pid, self.limits(), layers.remedy("limits"))
        try:
            impersonate(process.uid, process.gid, limit)
        except LayerError as error:
            # Of a process that has ended no limit can be set: say what happened first.
            self.require_alive()
            raise self._explained(error) from None

    async def _disband(self) -> str | None:
        """Remove the group once nothing lives in it; gives for want of which memory the kernel killed in it, if any.

        Raises `OSError`, also when something lives after five seconds.
        """
        group, starved = self._group, None
        if group is None:
            return None
        if self._monitor is not None:
            async with asyncio.timeout(_DISBAND_SECONDS):
                await group.empty()
                if self._plan.may_fork:
                    await supervise.clear_group(group.place.path)
            starved = group.starved()
        group.remove()
        return starved

    async def _ready(self) -> bytes:
        try:
            line = await read_line(self._open["stdout"], _READY_LIMIT)
        except ValueError as error:
            raise LayerError(
                "image",
                expected="one line",
                observed=str(error),
                remedy="report this: another program answered",
            ) from None
        # An exit before `ready`, even with 0, is a process that confirmed nothing.
        if not line:
            raise self._refusal("the worker's self-probe")
        self._began = True
        self._close("stdout")
        self._untie()
        return line

    async def _see_end(self, process: Process) -> Exit:
        if self._monitor is None:
            raise RuntimeError("no monitor was started")
        try:
            ended = await supervise.reap(self._monitor, self._open["monitor"], self._open["process"], process)
            ended = ended.because(await supervise.patiently(self._disband))
        except BaseException:
            # Nobody saw that nothing is left: it stays in the ledger, and its uid leased, for the next start's sweep.
            self.kill()
            self._close_all()
            raise
        self._note_beginning()
        self._give_back()
        return ended

    def _give_back(self) -> None:
        self._ledger.end(self._nonce)
        self._close_all()
        if self._lease is not None:
            self._lease.release()

    def _close_all(self) -> None:
        for name in list(self._open):
            self._close(name)
        if self._tail is not None:
            self._tail.close()

    def _close(self, name: str) -> None:
        if name in self._open:
            os.close(self._open.pop(name))

    def _pid_of_monitor(self) -> int:
        if self._monitor is None:
            raise RuntimeError("no monitor was started")
        return self._monitor.pid

    def _pipe(self, theirs: ExitStack, name: str, *, ours_reads: bool) -> int:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._open[name] = reading if ours_reads else writing
        os.set_blocking(self._open[name], False)
        return given(theirs, writing if ours_reads else reading)

    def _specification(self) -> str:
        """Say in JSON what the program is to connect to and to attempt."""
        rows = ",".join(each.row for each in self.attempts())
        return f'{{"socket":{json.dumps(self._plan.places.socket_inside)},"attempts":[{rows}]}}'

    def _note_beginning(self) -> None:
        """Note whether the program was executed: bubblewrap tells the exit status of what was, and of nothing else."""
        if "status" in self._open:
            with suppress(BlockingIOError):
                self._began = self._began or b'"exit-code"' in os.read(self._open["status"], _STATUS_LIMIT)

    def _refusal(self, expected: str) -> LayerError:
        """Say which layer bubblewrap could not set up, or what the program said when it ended by itself.

        Once the program was executed, what is on standard error is its own word, and no layer goes by that.
        """
        if self._tail is not None:
            self._tail.take()
        self._note_beginning()
        lines = self.said().splitlines()
        if self._began:
            return LayerError(
                "sandbox",
                expected=expected,
                observed=lines[-1] if lines else "it ended without a word",
                remedy="the worker's program ended by itself: what it said, if it did, is what it lacked",
            )
        complaints = [line for line in lines if line.startswith(_COMPLAINING)]
        said = complaints[-1] if complaints else ""
        layer = next(
            (name for pattern, name in _COMPLAINTS if re.search(pattern, said, re.IGNORECASE)), "sandbox"
        )
        return self._explained(
            LayerError(
                layer,
                expected=expected,
                observed=said or (lines[-1] if lines else "it ended without a word"),
                remedy=layers.remedy(layer),
            )
        )

    def _explained(self, error: LayerError) -> LayerError:
        """Give the refusal that names what it is on this host that failed a layer, where that can be told."""
        return doctor.explain(error, doctor.Machine(self._shape, self._plan))


def _both_ways(theirs: ExitStack, writing: int) -> int:
    """Give a pipe's writing end as one that could read too: whoever has it writes on when every reader is gone.

    bubblewrap says its child's pid before it lets the child go on. Killed by SIGPIPE in between, because the daemon had
    died, it would leave a child that waits for ever.
    """
    return given(theirs, os.open(f"/proc/self/fd/{writing}", os.O_RDWR | os.O_CLOEXEC))
