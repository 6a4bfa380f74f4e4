"""Word to the service manager that started the daemon: ready, busy, alive, stopping. See sd_notify(3).

By hand over its socket, a datagram each: of the libraries for it, those that are kept up bind to libsystemd and are
built with a C compiler, and the others have had no release for years.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping

_MOST_SECONDS: Final = 10.0
"""After which it is told again what goes on, also by whom no watchdog asks."""


class Notifier:
    """Tells the manager at a socket's path, `@` first where that is abstract (unix(7)); without one it tells nobody.

    `watchdog` is the seconds within which the manager wants to hear that the daemon lives, if it does. What cannot be
    told is not: no method raises, and none waits for the manager. What it has no room for now goes with the next word.
    """

    def __init__(self, path: str | None = None, watchdog: float | None = None) -> None:
        self._path = f"\0{path[1:]}" if path is not None and path.startswith("@") else path
        self._seconds = min(_MOST_SECONDS, (watchdog or _MOST_SECONDS * 2) / 2)
        self._untold: tuple[str, ...] = ()
        self._socket: socket.socket | None = None
        if path is not None:
            # Made now: a daemon that has run out of descriptors still lives, and says so.
            with contextlib.suppress(OSError):
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    @classmethod
    def take(cls, environ: MutableMapping[str, str] = os.environ) -> Notifier:
        """Make the one that this process was started with, and leave nothing of that to what it starts itself."""
        path, microseconds, pid = (
            environ.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
        )
        # See sd_watchdog_enabled(3): a pid that is not ours means another of this service's processes.
        ours = pid in ("", str(os.getpid())) and microseconds.isdecimal() and float(microseconds) > 0
        # Other kinds of addresses (AF_VSOCK) are a virtual machine's first process's.
        return cls(path if path[:1] in ("/", "@") else None, float(microseconds) / 1e6 if ours else None)

    def close(self) -> None:
        """Tell nobody any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def tell(self, status: str, *states: str, seconds: float | None = None) -> None:
        """Tell what is going on, in one line for a person, and what that means (`READY=1` and its like).

        With `seconds`, the manager waits at least so long for what it waits for now, whatever its own bound.
        """
        if self._socket is None or self._path is None:
            return
        due = tuple(dict.fromkeys((*self._untold, *states)))
        said = [*due, f"STATUS={status}"]
        if seconds is not None:
            said.append(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")
        self._untold = ()
        try:
            self._socket.sendto("\n".join(said).encode(errors="replace"), self._path)
        except BlockingIOError:
            # Its queue is full, as it may be while a host starts: a READY=1 that is lost would be waited for in vain.
            self._untold = due
        except OSError:
            pass

    @contextlib.asynccontextmanager
    async def kept_up(
        self, status: Callable[[], str], lives: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Tell what is going on, and that it does, again and again; each time only once `lives` has returned."""
        task = asyncio.create_task(self._keep_up(status, lives))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_up(self, status: Callable[[], str], lives: Callable[[], Awaitable[None]]) -> None:
        while self._socket is not None:
            await lives()
            self.tell(status(), "WATCHDOG=1")
            await asyncio.sleep(self._seconds)
