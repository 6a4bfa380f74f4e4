"""A command that nothing confines, run once under strace: what it does and how it ends is what a draft is made from."""

from __future__ import annotations

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
from typing import IO, TYPE_CHECKING, Final

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
_DISMISSED: Final = b"."

_PATIENCE: Final = 2.0
"""Seconds that a command has to end when it is asked to."""

_LOOK: Final = 0.05
"""Seconds between two looks at what is left of it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: a shell's exit status, and the SHA-256 of what it wrote to standard output."""

    status: int
    output: str


def run_free(tracer: str, words: Sequence[str], over: Profile) -> tuple[Usage, Ended, float]:
    """Run a command as this user under strace, and give what it used, how it ended, and its processor time in seconds.

    Its output is passed on as it comes. The trace comes through a pipe that strace opens by this process's descriptor
    of it, so that the command is given nothing to hold that it would not have without, and nothing lies on a disk.

    Nothing of it outlives this: what ends this in order ends the command too, and a keeper does where this is killed.
    Raises `OSError` for a standard output that is closed, full, or read by nobody.
    """
    import sh  # noqa: PLC0415 - it takes long to import, and no other command needs it

    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed", "standard output")
    trying.fill_standard_descriptors()
    usage = Usage(groups.rules(over, seccomp.architecture()))
    seen = hashlib.sha256()
    before = _seconds_of_children()
    with ExitStack() as held:
        trace, traced = _pipe(held)
        output, writing = _pipe(held)
        keeper = _keeper(held)

        def begin() -> None:
            # Undone, what sh has done to what is in the background: the end of its terminal is the command's again.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.write(keeper, b"%d" % os.getpid())

        running = sh.Command(tracer)(
            *strace.OPTIONS, "-o", f"/proc/{os.getpid()}/fd/{traced.fileno()}", "--", *words,
            _in=held.enter_context(open(0, "rb", closefd=False)), _out=writing.fileno(), _err=2,
            _bg=True, _bg_exc=False, _cwd="/", _env={"PATH": PATH}, _encoding="utf-8",
            _ok_code=[*range(-64, 256)], _preexec_fn=begin,
        )  # fmt: skip
        writing.close()
        try:
            _pass_on(output, trace, traced, seen.update, usage.take)
        except BaseException:
            _end(running.pid, output, trace, traced)
            running.wait()
            raise
        running.wait()
        os.write(keeper, _DISMISSED)
        code, seconds = running.exit_code, _seconds_of_children() - before
    status = 128 - code if code < 0 else code
    return usage, Ended(status, seen.hexdigest()), seconds


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
    seen: Callable[[bytes], object],
    take: Callable[[str], None],
) -> None:
    """Pass a command's output on to this one's, and read its trace, until both have ended."""
    kept = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(output, selectors.EVENT_READ)
        waiting.register(trace, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                # strace has opened its end before the command can write or end; or it never will.
                traced.close()
                piece = os.read(key.fd, PIECE)
                if not piece:
                    waiting.unregister(key.fileobj)
                elif key.fileobj is output:
                    seen(piece)
                    _write_all(piece)
                else:
                    *whole, kept = (kept + piece).split(b"\n")
                    kept = b"" if len(kept) > _LONGEST else kept
                    for line in whole:
                        take(line.decode("utf-8", "surrogateescape"))


def _end(tracer: int, output: IO[bytes], trace: IO[bytes], traced: IO[bytes]) -> None:
    """End all that strace traces: as it is asked to, and what is left after a moment by force; strace ends with it.

    strace itself is asked nothing: it would let go of all but its first. What it writes is read meanwhile, or it would
    stand still, and complain of a pipe that nobody reads. It is not hurried by another signal, for it takes no longer
    than that moment.
    """
    ignored = [(number, signal.signal(number, signal.SIG_IGN)) for number in _CALLS_OFF]
    asked: set[int] = set()
    traced.close()
    begun = time.monotonic()
    with selectors.DefaultSelector() as waiting:
        for each in (output, trace):
            waiting.register(each, selectors.EVENT_READ)
        while trace in waiting.get_map():
            taken = time.monotonic() - begun
            for pid in _traced_by(tracer):
                if taken > _PATIENCE or pid not in asked:
                    asked.add(pid)
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL if taken > _PATIENCE else signal.SIGTERM)
            if taken > 2 * _PATIENCE:
                with suppress(ProcessLookupError):
                    os.kill(tracer, signal.SIGKILL)
            for key, _ in waiting.select(_LOOK):
                if not os.read(key.fd, PIECE):
                    waiting.unregister(key.fileobj)
    for number, handler in ignored:
        signal.signal(number, handler)


def _keeper(held: ExitStack) -> int:
    """Start what kills all that strace traces when this process is killed, or leaves before strace has ended.

    Gives where to write strace's number, and at last that it is dismissed.

    A signal at the death of a parent (prctl(2)) would reach strace alone, which lets go of what it traces; and the
    command shares this one's process group, for it has the terminal, so that there is no group to kill.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            _keep(reading)
        finally:
            os._exit(0)
    os.close(reading)

    held.callback(os.waitpid, pid, 0)
    held.callback(os.close, writing)
    return writing


def _keep(reading: int) -> None:
    """Wait for the end of a pipe, with nothing else open; unless it was dismissed, kill what strace has left behind."""
    os.setsid()
    for number in _CALLS_OFF:
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, reading)
    os.closerange(reading + 1, os.sysconf("SC_OPEN_MAX"))
    said = b""
    while piece := os.read(reading, 64):
        said += piece
    if said and not said.endswith(_DISMISSED):
        while left := _traced_by(int(said)):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK)


def _traced_by(tracer: int) -> list[int]:
    """Give the processes that one traces, whoever their parents are by now."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
            if f"\nTracerPid:\t{tracer}\n".encode() in file.read():
                found.append(int(pid))
    return found


def _write_all(piece: bytes) -> None:
    try:
        while piece:
            piece = piece[os.write(1, piece) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
