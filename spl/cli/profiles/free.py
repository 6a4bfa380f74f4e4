"""A command that nothing confines, run once under strace: what it does and how it ends is what a draft is made from."""

from __future__ import annotations

import hashlib
import os
import resource
import selectors
import signal
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bwrap import groups, seccomp, strace
from bwrap.plan import PATH
from bwrap.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bwrap.profile import Profile

PIECE: Final = 1 << 16
"""Bytes that are read at once of what a command writes."""

_LONGEST: Final = 1 << 20
"""Bytes of one line of a trace; a longer one is passed over."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: a shell's exit status, and the SHA-256 of what it wrote to standard output."""

    status: int
    output: str


def run_free(tracer: str, words: Sequence[str], over: Profile) -> tuple[Usage, Ended, float]:
    """Run a command as this user under strace, and give what it used, how it ended, and its processor time in seconds.

    Its output is passed on as it comes. The trace comes through a pipe of a name, so that the command is given nothing
    to hold that it would not have without.
    """
    import sh  # noqa: PLC0415 - it takes long to import, and no other command needs it

    usage = Usage(groups.rules(over, seccomp.architecture()))
    seen = hashlib.sha256()
    before = _seconds_of_children()
    with tempfile.TemporaryDirectory(prefix="spl-trace-") as folder, ExitStack() as held:
        fifo = f"{folder}/trace"
        os.mkfifo(fifo, 0o600)
        trace = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        held.callback(os.close, trace)
        held.callback(os.close, reading)
        given = held.enter_context(open(0, "rb", closefd=False))
        running = sh.Command(tracer)(
            *strace.OPTIONS, "-o", fifo, "--", *words,
            _in=given, _out=writing, _err=2, _bg=True, _bg_exc=False, _cwd="/", _env={"PATH": PATH}, _encoding="utf-8",
            _ok_code=[*range(-64, 256)], _preexec_fn=_as_started_by_a_person,
        )  # fmt: skip
        os.close(writing)
        try:
            _pass_on(reading, trace, seen.update, usage.take)
        except BaseException:
            # Nobody reads any more, so that strace waits for nobody; it passes the signal on to what it started.
            held.close()
            with suppress(ProcessLookupError):
                running.terminate()
            running.wait()
            raise
        running.wait()
        code = running.exit_code
    status = 128 - code if code < 0 else code
    return usage, Ended(status, seen.hexdigest()), _seconds_of_children() - before


def _as_started_by_a_person() -> None:
    """Undo, in the child, that sh(1) has what is in the background ignore the end of its terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _pass_on(output: int, trace: int, seen: Callable[[bytes], object], take: Callable[[str], None]) -> None:
    """Pass a command's output on to this one's, and read its trace, until both have ended."""
    kept = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(output, selectors.EVENT_READ)
        waiting.register(trace, selectors.EVENT_READ)
        while waiting.get_map():
            # Once the output has ended, a trace that nobody has opened never will be.
            ready = waiting.select(None if output in waiting.get_map() else 0)
            if not ready and output not in waiting.get_map() and not kept:
                ready = waiting.select(1.0)
                if not ready:
                    return
            for key, _ in ready:
                piece = os.read(key.fd, PIECE)
                if not piece:
                    waiting.unregister(key.fd)
                elif key.fd == output:
                    seen(piece)
                    _write_all(piece)
                else:
                    *whole, kept = (kept + piece).split(b"\n")
                    kept = b"" if len(kept) > _LONGEST else kept
                    for line in whole:
                        take(line.decode("utf-8", "surrogateescape"))


def _write_all(piece: bytes) -> None:
    while piece:
        piece = piece[os.write(1, piece) :]


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
