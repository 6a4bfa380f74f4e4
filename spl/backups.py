"""The backup that a daemon makes at its start, in a process of its own, and what health says of backups."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import structlog

from spl.errors import StoreDamaged, StoreUnavailable
from spl.records.backup import listed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from spl.home import Home
    from spl.records.backup import Backup

_PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SQLITE_TMPDIR")
_LONGEST_WORD: Final = 2000

_log = structlog.get_logger("spl.backups")


class Backups:
    """The backups in a home, of which its daemon keeps so many."""

    def __init__(self, home: Home, kept: int) -> None:
        self._home = home
        self._kept = kept
        self._damaged: str | None = None

    def longest(self) -> Backup | None:
        """Give the backup that says it has the most records."""
        return max(listed(self._home.backups), key=lambda backup: backup.records, default=None)

    async def wire(self) -> dict[str, Any]:
        """Give what health says: the newest backup, and what the last one found wrong with the log."""
        newest: Backup | None = None
        with suppress(OSError):
            # In a thread: the folder may hold any number of files, on a disk that makes one wait.
            newest = next(iter(await asyncio.to_thread(listed, self._home.backups)), None)
        told = newest and {
            "path": str(newest.path),
            "records": newest.records,
            "at": newest.at.isoformat().replace("+00:00", "Z"),
        }
        return {"backup": told, "damaged": self._damaged}

    @asynccontextmanager
    async def kept_up(self, count: Callable[[], Awaitable[int]]) -> AsyncIterator[None]:
        """Make a backup beside what goes on meanwhile, if the log has another number of records than the newest.

        An empty log has nothing to lose, and its backup would be the newest of whatever was there before. One that is
        still being made at the end is killed; the next one clears away what it leaves. Must be the main thread's: it is
        also killed when the thread that started it ends.
        """
        task = asyncio.create_task(self._make(count))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _make(self, count: Callable[[], Awaitable[int]]) -> None:
        try:
            newest = next(iter(listed(self._home.backups)), None)
            if not self._kept or await count() in (0, newest and newest.records):
                return
            status, said, complained = await _run(self._command())
        except (OSError, StoreUnavailable) as error:
            _log.error("no backup could be made at the start", error=str(error))
            return
        if status == 0:
            made = json.loads(said)
            _log.info("made a backup", path=made["path"], records=made["records"], removed=made["removed"])
            return
        # The sentence for people; the line after it is the same as JSON.
        reason = complained.decode(errors="replace").partition("\n")[0][:_LONGEST_WORD]
        if status == StoreDamaged.exit_status:
            self._damaged = reason
        _log.error("no backup could be made at the start", error=reason, exit=status)

    def _command(self) -> list[str]:
        # -P: a folder called spl where the daemon was started must not be taken for the package.
        return [
            *(sys.executable, "-P", "-m", "spl.cli.main", "backup", "--home", str(self._home.path)),
            *("--output", "json", "--started-by", str(os.getpid()), "--keep", str(self._kept)),
        ]


async def _run(command: list[str]) -> tuple[int, bytes, bytes]:
    """Run a command that says little to its end; gives its status and what it said. Killed when this is cancelled."""
    process = _start(command)
    ended = asyncio.ensure_future(asyncio.to_thread(process.communicate))
    try:
        said, complained = await asyncio.shield(ended)
    finally:
        if not ended.done():
            process.kill()
            await ended
    return process.returncode, said, complained


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a command with nothing of this process's but what a Python needs to find its packages."""
    environ = {
        name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("PYTHON")
    }
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
        cwd="/",
        # A group of its own: Ctrl-C at the daemon's terminal is the daemon's to handle.
        process_group=0,
    )
