"""When a start was accepted, and when its worker had its credential, read in the daemon that makes it.

Hooks are put around three of the daemon's steps in the helper's process, and change none of them: a listener that
notes when it took a connection and when its request came to the application, `Worker.entrust`, and `Broker.infer`. Of
starts that are made one at a time: a model call is taken for the last one's.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from spl import daemon as daemons
from spl.api.listener import Listener
from spl.transports.sandboxed import Worker

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from spl.api.peer import Peer
    from spl.health import Daemon

Json = dict[str, Any]

_START: Final = ("POST", "/v1/work/loop")


@dataclass
class Start:
    """One start; each is a time by `time.monotonic_ns`, which is the same clock in every process (clock_gettime(2))."""

    accepted: int
    """Its connection was accepted (accept(2))."""
    asked: int
    """Its request had been read, and the application was called with it."""
    entrusted: int = 0
    """Every layer was confirmed, the receipt durable, and the credential written to the worker."""
    called: int = 0
    """Its run's first model call came to the broker."""


_accepted: ContextVar[int] = ContextVar("accepted")
# The task that makes a start inherits both from the one that serves its connection.
_current: ContextVar[Start] = ContextVar("current")
_starts: list[Start] = []


class _Stamped(Listener):
    """The daemon's listener, which notes when it accepts a connection and when a start has come on it."""

    def __init__(
        self,
        app: Any,
        sock: socket.socket,
        *,
        admit: Callable[[Peer], bool] | None = None,
        **given: Any,
    ) -> None:
        def noted(who: Peer) -> bool:
            # Judged before anything else is done with a connection.
            _accepted.set(time.monotonic_ns())
            return admit is None or admit(who)

        async def stamped(scope: Any, receive: Any, send: Any) -> None:
            if (scope.get("method"), scope.get("path")) == _START:
                _current.set(Start(_accepted.get(), time.monotonic_ns()))
            await app(scope, receive, send)

        super().__init__(stamped, sock, admit=noted, **given)


def prepare() -> None:
    """Have daemons that this process assembles from now on be stamped."""
    entrust = Worker.entrust

    def stamped(worker: Worker, credential: str) -> None:
        entrust(worker, credential)
        start = _current.get(None)
        if start is not None:
            start.entrusted = time.monotonic_ns()
            _starts.append(start)

    # Each does all that it did.
    daemons.Listener = _Stamped  # type: ignore[attr-defined]
    Worker.entrust = stamped  # type: ignore[assignment, method-assign]


def follow(daemon: Daemon) -> None:
    """Have a daemon's model calls be stamped as well."""
    broker = daemon.kernel.broker
    infer = broker.infer

    async def stamped(request: Any, account: Any) -> Any:
        now = time.monotonic_ns()
        if _starts and not _starts[-1].called:
            _starts[-1].called = now
        return await infer(request, account)

    broker.infer = stamped  # type: ignore[method-assign]


def taken() -> list[Json]:
    """Give the starts since this was asked last, in their order."""
    found = [asdict(start) for start in _starts]
    _starts.clear()
    return found
