"""strace(1) beside a process that is still held: attached before the process goes on, read as it writes.

It runs under the process's own uid and is attached to it rather than its parent, so that who starts, ends and outlives
whom is the same with it and without.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from bwrap.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from bwrap.process import Process

OPTIONS = ("-f", "-s", "0", "-X", "verbose", "-e", "status=successful,failed", "-e", "signal=all")
"""Every process; no data, but paths whole; constants by number and name; and of failed and successful calls alone
each stands on one line."""

_LONGEST = 1 << 20
_ATTACHED = "strace: Process "


def find() -> str | None:
    """Find strace, where the system keeps it."""
    return shutil.which("strace", path="/usr/bin:/bin")


class Strace:
    """One strace, attached to one process with all that it starts; each line it writes goes to `take`."""

    def __init__(self, path: str, process: Process, take: Callable[[str], None]) -> None:
        """Start it; raises `OSError` when it cannot be."""
        self._take = take
        self._kept = b""
        self._loop = asyncio.get_running_loop()
        self._attached: asyncio.Future[str] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._descriptor, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(theirs, True)
        other = process.uid != os.geteuid()
        try:
            self._process = subprocess.Popen(
                ["strace", *OPTIONS, "-p", str(process.pid)],
                executable=path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=theirs,
                env={},
                cwd="/",
                process_group=0,
                user=process.uid if other else None,
                group=process.gid if other else None,
                extra_groups=[] if other else None,
            )
        except BaseException:
            os.close(self._descriptor)
            raise
        finally:
            os.close(theirs)
        self._loop.add_reader(self._descriptor, self._read)

    async def attached(self) -> str:
        """Wait until it is attached; gives why it is not, or nothing."""
        return await self._attached

    async def seen_out(self, seconds: float) -> bool:
        """Wait, after the process's end, until all it wrote is read; gives whether it was in this time."""
        await asyncio.wait([self._ended], timeout=seconds)
        return self._ended.done()

    def close(self) -> None:
        """End it, which lets its process go on, and stop reading; can be called twice."""
        if self._process.returncode is None:
            # With its group: at its start strace tries itself out on children of its own.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            with suppress(ChildProcessError):
                while True:
                    os.waitpid(-self._process.pid, 0)  # those that came to this process as the subreaper
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        try:
            piece = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        *lines, self._kept = (self._kept + piece).split(b"\n")
        if len(self._kept) > _LONGEST:
            self._kept = b""
        for line in lines:
            self._line(line.decode("utf-8", "surrogateescape"))
        if not piece:
            self._loop.remove_reader(self._descriptor)
            self._settle("it ended without a word")
            self._ended.set_result(None)

    def _line(self, text: str) -> None:
        if text.startswith("strace: "):
            # A process's own text never begins a line: strace quotes it.
            self._settle("" if text.startswith(_ATTACHED) else printable(text.removeprefix("strace: ")))
        else:
            self._take(text)

    def _settle(self, reason: str) -> None:
        if not self._attached.done():
            self._attached.set_result(reason)
