"""Starting the daemon in the background: a process of its own session that outlives the command.

The child's standard output is a pipe, which it closes once it has announced itself (`let_go`): end-of-file tells
both that the daemon is ready and that it has failed, with nothing to poll.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from spl.errors import DaemonUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Started(NamedTuple):
    """How a start went: what was announced, or the exit status and what was said in the log."""

    announcement: str
    exit_status: int | None
    said: str


def start(command: Sequence[str], log: Path, *, seconds: float) -> Started:
    """Start a command in the background, its errors into `log` (made 0600), and wait for its announcement.

    Raises DaemonUnreachable, the process stopped, if there is none within so many seconds; interrupted, it stops it
    too.
    """
    reading, writing = os.pipe()
    output = os.open(log, _FLAGS, 0o600)
    try:
        before = os.fstat(output).st_size
        with open(reading, "rb", buffering=0) as pipe:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=writing,
                    stderr=output,
                    start_new_session=True,
                )
            finally:
                os.close(writing)
            try:
                announcement = _read_to_end(pipe.fileno(), seconds)
            except BaseException:
                # In a session of its own, it was not interrupted with this one.
                process.terminate()
                process.wait()
                raise
        if announcement is None:
            process.terminate()
            _leave(process)
            raise DaemonUnreachable(
                f"the daemon (pid {process.pid}) was not ready within {seconds:g} seconds and is told to stop"
            )
        if announcement:
            _leave(process)
            return Started(announcement, None, "")
        status = process.wait()
        said = os.pread(output, 64 * 1024, before).decode(errors="replace")
        return Started("", status, said)
    finally:
        os.close(output)


def let_go() -> None:
    """Tell the process that waits in `start` that the announcement is whole; what follows goes to the log."""
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Keep the interpreter from warning of a child that is left to live on."""
    process.returncode = 0


def _read_to_end(descriptor: int, seconds: float) -> str | None:
    """Read up to end-of-file; None if it does not come in time."""
    deadline = time.monotonic() + seconds
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    read = bytearray()
    while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(descriptor, 64 * 1024)
        if not piece:
            return read.decode(errors="replace")
        read += piece
    return None
