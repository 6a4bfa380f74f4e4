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
from typing import IO, TYPE_CHECKING, Any, Final

from bwrap import groups, seccomp, strace, trying
from bwrap.plan import PATH
from bwrap.usage import Usage
from spl.cli.profiles.keeper import CALLS_OFF, LOOK, PATIENCE, beginning, clear, subreap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bwrap.profile import Profile

PIECE: Final = 1 << 16
"""Bytes that are read at once of what a command writes."""

_LONGEST: Final = 1 << 20
"""Bytes of one line of a trace; a longer one is passed over."""

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
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, CALLS_OFF)
        held.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        begin = beginning(keeping.fileno(), mask)
        subreap(True)
        held.callback(subreap, False)

        def leave_nothing() -> None:
            if running is not None:
                running.wait()
            clear()

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
    ignored = [(number, signal.signal(number, signal.SIG_IGN)) for number in CALLS_OFF]
    begun = time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGTERM)
    with selectors.DefaultSelector() as waiting:
        for each in (output, trace, kept):
            waiting.register(each, selectors.EVENT_READ)
        while kept in waiting.get_map():
            if time.monotonic() - begun > 3 * PATIENCE:
                with suppress(ProcessLookupError):
                    os.kill(keeper, signal.SIGKILL)
            for key, _ in waiting.select(LOOK):
                if not os.read(key.fd, PIECE):
                    waiting.unregister(key.fileobj)
    for number, handler in ignored:
        signal.signal(number, handler)


def _write_all(piece: bytes) -> None:
    try:
        while piece:
            piece = piece[os.write(1, piece) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
