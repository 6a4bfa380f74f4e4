"""A command that nothing confines, run once under strace: what it does and how it ends is what a draft is made from."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import resource
import selectors
import signal
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from bwrap import groups, seccomp, strace, trying
from bwrap.plan import PATH
from bwrap.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bwrap.profile import Profile

PIECE: Final = 1 << 16
"""Bytes that are read at once of what a command writes."""

_LONGEST: Final = 1 << 20
"""Bytes of one line of a trace; a longer one is passed over."""

_CALLS_OFF: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_PATIENCE: Final = 2.0
"""Seconds that a command has to end when it is asked to, and strace when its command was killed."""

_LOOK: Final = 0.05
"""Seconds between two looks at what is left of it."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILL_ON_EXIT: Final = "--kill-on-exit"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: a shell's exit status, and the SHA-256 of what it wrote to standard output."""

    status: int
    output: str


def run_free(tracer: str, words: Sequence[str], over: Profile) -> tuple[Usage, Ended, float]:
    """Run a command as this user under strace, and give what it used, how it ended, and both's processor time.

    The time is in seconds, of the command with all it started and of strace, which cannot be told apart.

    Its output is passed on as it comes. The trace comes through a pipe that strace opens by this process's descriptor
    of it, so that the command is given nothing to hold that it would not have without, and nothing lies on a disk.

    Between this process and strace stands a keeper. What the command starts is a descendant of the keeper for as long
    as it lives, traced or not, and whoever its parent was; when strace ends, when this asks, and when this dies, the
    keeper ends them all. If the keeper is killed, they come to this process, which ends them. Nothing confines them, so
    this cannot hold what other processes start when they are asked to (systemd, at, a container's daemon), what has
    become another user's, whom this one may not signal, nor anything once both this and the keeper are killed.

    For as long as it takes all children of this process are taken for the command's: there must be no others.
    Raises `OSError` for a standard output that is closed, full, or read by nobody.
    """
    import sh  # noqa: PLC0415 - it takes long to import, and no other command needs it

    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed", "standard output")
    trying.fill_standard_descriptors()
    usage = Usage(groups.rules(over, seccomp.architecture()))
    seen = hashlib.sha256()
    options = tracer_options(tracer)
    before = _seconds_of_children()
    running: Any = None
    with ExitStack() as held:
        trace, traced = _pipe(held)
        output, writing = _pipe(held)
        kept, keeping = _pipe(held)
        # A call to end this waits until it is known what there is to end.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _CALLS_OFF)
        held.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        begin = _beginning(keeping.fileno(), mask)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        held.callback(_prctl, _PR_SET_CHILD_SUBREAPER, 0)

        def leave_nothing() -> None:
            if running is not None:
                running.wait()
            _clear()

        try:
            running = sh.Command(tracer)(
                *options, "-o", f"/proc/{os.getpid()}/fd/{traced.fileno()}", "--", *words,
                _in=held.enter_context(open(0, "rb", closefd=False)), _out=writing.fileno(), _err=2,
                _bg=True, _bg_exc=False, _cwd="/", _env={"PATH": PATH}, _encoding="utf-8",
                _ok_code=[*range(-64, 256)], _preexec_fn=begin,
            )  # fmt: skip
            writing.close()
            keeping.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _pass_on(output, trace, traced, kept, seen.update, usage.take, leave_nothing)
        except BaseException:
            for each in (writing, keeping, traced):
                each.close()
            if running is not None:
                _end(running.pid, output, trace, kept)
            leave_nothing()
            raise
        code, seconds = running.exit_code, _seconds_of_children() - before
    status = 128 - code if code < 0 else code
    return usage, Ended(status, seen.hexdigest()), seconds


def tracer_options(tracer: str) -> list[str]:
    """Give strace's options; one that can have the kernel kill what it traces when it ends (since 6.6) is told to."""
    import sh  # noqa: PLC0415

    knows = _KILL_ON_EXIT in str(sh.Command(tracer)("--help", _env={"PATH": PATH}, _cwd="/"))
    return [*strace.OPTIONS, *([_KILL_ON_EXIT] if knows else [])]


def _pipe(held: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    return (
        held.enter_context(os.fdopen(reading, "rb", buffering=0)),
        held.enter_context(os.fdopen(writing, "wb", buffering=0)),
    )


def _pass_on(
    output: IO[bytes],
    trace: IO[bytes],
    traced: IO[bytes],
    keeper: IO[bytes],
    seen: Callable[[bytes], object],
    take: Callable[[str], None],
    ended: Callable[[], None],
) -> None:
    """Pass a command's output on to this one's, and read its trace, until both and the keeper have ended.

    `ended` is called once the keeper has, however that came: it may have been killed, and the command be left.
    """
    kept = b""
    with selectors.DefaultSelector() as waiting:
        for each in (output, trace, keeper):
            waiting.register(each, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                # strace has opened its end before the command can write or end; or it never will.
                traced.close()
                piece = os.read(key.fd, PIECE)
                if not piece:
                    waiting.unregister(key.fileobj)
                    if key.fileobj is keeper:
                        ended()
                elif key.fileobj is output:
                    seen(piece)
                    _write_all(piece)
                else:
                    *whole, kept = (kept + piece).split(b"\n")
                    kept = b"" if len(kept) > _LONGEST else kept
                    for line in whole:
                        take(line.decode("utf-8", "surrogateescape"))


def _end(keeper: int, output: IO[bytes], trace: IO[bytes], kept: IO[bytes]) -> None:
    """Have the keeper end all there is, and wait for that; one that does not come to it is killed.

    What strace writes is read meanwhile, or it would stand still, and complain of a pipe that nobody reads. It is not
    hurried by another signal, for it takes no longer than a moment.
    """
    ignored = [(number, signal.signal(number, signal.SIG_IGN)) for number in _CALLS_OFF]
    begun = time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGTERM)
    with selectors.DefaultSelector() as waiting:
        for each in (output, trace, kept):
            waiting.register(each, selectors.EVENT_READ)
        while kept in waiting.get_map():
            if time.monotonic() - begun > 3 * _PATIENCE:
                with suppress(ProcessLookupError):
                    os.kill(keeper, signal.SIGKILL)
            for key, _ in waiting.select(_LOOK):
                if not os.read(key.fd, PIECE):
                    waiting.unregister(key.fileobj)
    for number, handler in ignored:
        signal.signal(number, handler)


def _beginning(keeping: int, mask: set[int | signal.Signals]) -> Callable[[], None]:
    """Give what a child of this process does before it is strace: it becomes the keeper, and strace a child of it.

    `keeping` is the one descriptor that the keeper has, so that its end is seen; `mask` what strace finds blocked.

    A signal at the death of a parent would reach strace alone, which lets go of what it traces; and the command shares
    this one's process group, for it has the terminal, so that there is no group to kill.
    """
    parent = os.getpid()
    ignored = [number for number in _CALLS_OFF if signal.getsignal(number) is signal.SIG_IGN]

    def begin() -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)  # which one that was stopped hears too
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        leader = os.fork()
        if leader != 0:
            status = 255
            try:
                os.setsid()
                os.closerange(0, keeping)
                os.closerange(keeping + 1, os.sysconf("SC_OPEN_MAX"))
                status = _keep(parent, leader)
            finally:
                os._exit(status)
        # Undone, what sh has done to what is in the background: the end of its terminal is the command's again. And
        # no handler of this process's may run in the child.
        for number in _CALLS_OFF:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return begin


def _keep(parent: int, leader: int) -> int:
    """Wait for the end of strace, of a parent, or for its word, and leave nothing; gives strace's exit status."""
    status = None
    while status is None and os.getppid() == parent:
        number = signal.sigwait((signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT))
        if number == signal.SIGTERM:
            status = _ask(leader)
            break
        status = _reap(leader)
    _clear()
    return 255 if status is None else status


def _ask(leader: int) -> int | None:
    """Have all but strace end: as it is asked to, and what is left after a moment by force; strace ends with it.

    strace itself is asked nothing: it would let go of all but its first.
    """
    asked: set[int] = set()
    begun = time.monotonic()
    while (status := _reap(leader)) is None and (taken := time.monotonic() - begun) < 2 * _PATIENCE:
        for pid in _descendants(os.getpid()):
            if pid != leader and (taken > _PATIENCE or pid not in asked):
                asked.add(pid)
                _kill(pid, signal.SIGKILL if taken > _PATIENCE else signal.SIGTERM)
        signal.sigtimedwait((signal.SIGCHLD,), _LOOK)
    return status


def _reap(leader: int) -> int | None:
    """Reap what has ended; gives the exit status of one of them, as a shell has it, if that has."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
            if ended[0] == leader:
                code = os.waitstatus_to_exitcode(ended[1])
                found = 128 - code if code < 0 else code
    return found


def _clear() -> None:
    """Kill the children of this process, then those they leave to it, until there are none that it may signal.

    A child's number is its own until it is reaped, which only this process does: no other can be killed in its place.
    """
    while children := _children(os.getpid()):
        killed = [_kill(pid, signal.SIGKILL) for pid in children]
        if not any(killed):
            return
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for each in found:
        found += _children(each)
    return found


def _children(pid: int) -> list[int]:
    """Give the children of a process, those of each of its threads (proc_pid_task_children(5))."""
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            path = f"/proc/{pid}/task/{thread}/children"
            with suppress(FileNotFoundError, ProcessLookupError), open(path, "rb") as file:
                found += map(int, file.read().split())
    return found


def _kill(pid: int, number: signal.Signals) -> bool:
    """Send a signal; gives whether this process may."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _prctl(option: int, value: int) -> None:
    """Set something of this process (prctl(2)); raises `OSError`."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _write_all(piece: bytes) -> None:
    try:
        while piece:
            piece = piece[os.write(1, piece) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
