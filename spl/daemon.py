"""The daemon from start to stop: what is made in which order, and given back in the other."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from bwrap import host as hosts
from bwrap import profile as profiles
from bwrap.errors import ConfinementError, LayerError
from bwrap.ledger import Ledger
from bwrap.plan import Places, resolve
from bwrap.text import printable
from spl import __version__, hardening
from spl.api.authentication import Authenticator
from spl.api.listener import Listener, bind_tcp, bind_unix
from spl.api.operator import OperatorApi
from spl.api.worker import worker_app
from spl.home import Home, Lock, login
from spl.inference.broker import Broker
from spl.inference.provider import provider_named
from spl.kernel.admission import Admission, from_memory
from spl.kernel.config import Config
from spl.kernel.credentials import Credentials
from spl.kernel.kernel import Kernel
from spl.kernel.principals import operator_did
from spl.records.sqlite import SqliteStore
from spl.transports.image import seal
from spl.transports.sandboxed import Sandbox
from spl.transports.starting import Transports

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable

    from spl.api.peer import Peer
    from spl.settings import Settings

PROFILE = "worker"
ADDRESS = "127.0.0.1"

_HOSTED_RUN = "/run/spl"
_WORKER_BODY_BYTES = 4 << 20
_MOST_CONNECTIONS = 256
_MOST_OF_ONE_WORKER = 8
_NO_PLAN_BYTES = 512 << 20

_log = structlog.get_logger("spl.daemon")


async def serve(settings: Settings, *, announce: Callable[[str], None]) -> None:
    """Run the daemon until SIGTERM, SIGINT or SIGHUP.

    `announce` is told, once, where it listens and which layers it could confirm.

    Must be the main thread's: workers die with the thread that started them (PR_SET_PDEATHSIG, prctl(2)).
    Raises an `SplError` when it cannot start; what it took is given back then, and a home it made stays.
    """
    hardening.protect()
    _configure_log(settings.log_format)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        daemon = await _start(settings, stack)
        announce(daemon.announcement())
        await stopping.wait()
        _log.info("stopping")


@dataclass
class Isolation:
    """What a trial worker showed of this host: the layers that hold, or the one that does not."""

    shape: str
    layers: list[str]
    refused: LayerError | None = None

    def wire(self) -> dict[str, Any]:
        """Give it as health reports it."""
        found: dict[str, Any] = {"shape": self.shape, "layers": self.layers}
        if self.refused is not None:
            found["refused"] = self.refused.wire()
        return found


@dataclass
class _Daemon:
    home: Home
    port: int
    kernel: Kernel
    worker_socket: str
    sandbox: Sandbox | LayerError
    isolation: Isolation
    began: float

    def announcement(self) -> str:
        kernel, isolation = self.kernel, self.isolation
        if isolation.refused is None:
            layers = f"confirmed on a trial worker: {', '.join(isolation.layers)}"
        else:
            layers = f"the trial at start failed, sandboxed starts are refused: {isolation.refused}"
        return "\n".join(
            (
                f"spl {__version__} serves {printable(str(self.home.path))}",
                f"  operator API  http://{ADDRESS}:{self.port} and {printable(str(self.home.operator_socket))}",
                f"  worker doors  {printable(self.worker_socket)}",
                f"  shape         {isolation.shape}",
                f"  layers        {layers}",
                (
                    f"  work loops    operator {kernel.config.transport}, members {kernel.config.member_transport}, "
                    f"{kernel.admission.capacity} sandboxed at once"
                ),
            )
        )

    async def health(self) -> dict[str, Any]:
        kernel = self.kernel
        return {
            "status": "ok",
            "version": __version__,
            "uptime_secs": round(time.monotonic() - self.began, 3),
            "records": await kernel.store.count(),
            "work_loop": {
                "transport": kernel.config.transport,
                "member_transport": kernel.config.member_transport,
                "profile": PROFILE,
                "admission_capacity": kernel.admission.capacity,
                "admission_available": kernel.admission.available,
            },
            "isolation": self.isolation.wire(),
            "store": {"backend": "sqlite"},
            "provider": {"name": kernel.broker.provider.name},
        }


async def _start(settings: Settings, stack: contextlib.AsyncExitStack) -> _Daemon:
    began = time.monotonic()
    broker = Broker(provider_named(settings.provider))
    home, tcp = _take(settings, stack)
    worker_path = _worker_socket(home, stack)
    hosted = hosts.shape() is hosts.Shape.HOSTED
    workers = _bound(worker_path, 0o666 if hosted else 0o600, stack)
    own = _bound(str(home.operator_socket), 0o600, stack)
    token = home.ensure_token(login())
    store = await SqliteStore.open(home.database)
    stack.push_async_callback(store.close)
    ledger = Ledger(str(home.run / "workers"))
    if swept := ledger.sweep():
        _log.warning("killed workers of an earlier daemon", pids=swept)
    sandbox = _sandbox(settings, home, worker_path, ledger)
    operator = operator_did(login())
    kernel = Kernel(
        store,
        await Config.follow(store),
        broker,
        Admission(_capacity(settings, sandbox)),
        Credentials(time.monotonic),
        operator=operator,
        now=lambda: datetime.now(UTC),
    )
    if closed := await kernel.close_orphans():
        _log.warning("closed runs of an earlier daemon", threads=closed)
    transports = Transports(kernel, sandbox, credential_grace=settings.credential_grace_seconds)
    daemon = _Daemon(home, tcp.getsockname()[1], kernel, worker_path, sandbox, Isolation("", []), began)
    api = OperatorApi(kernel, transports, Authenticator(operator, token), daemon.health)
    app = api.app(max_body_bytes=settings.max_body_bytes)
    doors = worker_app(kernel.credentials, max_body_bytes=_WORKER_BODY_BYTES)
    grace = settings.stop_grace_seconds
    await stack.enter_async_context(
        _listening(
            Listener(
                doors,
                workers,
                grace=grace,
                admit=_live(ledger),
                most=max(_MOST_CONNECTIONS, _MOST_OF_ONE_WORKER * kernel.admission.capacity),
                most_each=_MOST_OF_ONE_WORKER,
            )
        )
    )
    daemon.isolation = await _trial(sandbox)
    most = _MOST_CONNECTIONS
    await stack.enter_async_context(_listening(Listener(app, own, grace=grace, admit=_own_user, most=most)))
    await stack.enter_async_context(_listening(Listener(app, tcp, grace=grace, most=most)))
    stack.push_async_callback(transports.stop)
    return daemon


def _take(settings: Settings, stack: contextlib.AsyncExitStack) -> tuple[Home, socket.socket]:
    """Take the home and the port: neither is left changed when the other cannot be had."""
    if os.path.lexists(settings.home):
        home = _lock(Home.open(settings.home, create=True), stack)
        tcp = bind_tcp(ADDRESS, settings.port)
    else:
        tcp = bind_tcp(ADDRESS, settings.port)
        stack.callback(tcp.close)
        home = _lock(Home.open(settings.home, create=True), stack)
    stack.callback(tcp.close)
    return home, tcp


def _lock(home: Home, stack: contextlib.AsyncExitStack) -> Home:
    lock: Lock = home.lock()
    stack.callback(lock.release)
    return home


def _worker_socket(home: Home, stack: contextlib.AsyncExitStack) -> str:
    """Give the path to bind the worker socket at.

    A hosted worker's own uid cannot pass the home, so its socket lies in a folder that others may pass and not list,
    and the home holds a link to it.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(home.worker_socket)
    if hosts.shape() is hosts.Shape.SAME_USER:
        return str(home.worker_socket)
    instance = hashlib.sha256(os.fsencode(home.path)).hexdigest()[:16]
    folder = f"{_HOSTED_RUN}/{instance}"
    os.makedirs(_HOSTED_RUN, mode=0o755, exist_ok=True)
    # Whatever the umask was: a worker's uid must pass both, and cannot list the second.
    os.chmod(_HOSTED_RUN, 0o755)  # noqa: S103
    os.makedirs(folder, mode=0o711, exist_ok=True)
    os.chmod(folder, 0o711)  # noqa: S103
    path = f"{folder}/spl-worker.sock"
    os.symlink(path, home.worker_socket)
    stack.callback(_remove, str(home.worker_socket), folder)
    return path


def _bound(path: str, mode: int, stack: contextlib.AsyncExitStack) -> socket.socket:
    sock = bind_unix(path, mode)
    stack.callback(_unbind, sock, path)
    return sock


def _unbind(sock: socket.socket, path: str) -> None:
    sock.close()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _remove(link: str, folder: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(link)
        os.rmdir(folder)


def _sandbox(settings: Settings, home: Home, worker_path: str, ledger: Ledger) -> Sandbox | LayerError:
    """Prepare what workers are made from; a host that cannot confine serves all the same, and refuses by layer."""
    try:
        host = hosts.examine()
        profile = profiles.load(PROFILE)
        plan = resolve(profile, host, Places(str(home.path), worker_path))
        return Sandbox(plan, seal(host.python), ledger, settings.probe_seconds)
    except LayerError as error:
        found = error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        found = LayerError(
            "sandbox",
            expected="to examine this host and seal the worker's program",
            observed=f"{type(error).__name__}: {error}",
            remedy="mend what the message names",
        )
    except ConfinementError as error:
        found = LayerError(
            "syscalls",
            expected="a filter for this host",
            observed=str(error),
            remedy="mend what the message names",
        )
    _log.error("no worker can be confined on this host", error=str(found))
    return found


async def _trial(sandbox: Sandbox | LayerError) -> Isolation:
    """Make one worker and let it go, to say at the start which layers hold here."""
    shape = str(hosts.shape())
    if isinstance(sandbox, LayerError):
        return Isolation(shape, [], sandbox)
    try:
        worker = await sandbox.make()
    except LayerError as error:
        _log.error("a trial worker could not be confirmed", error=str(error))
        return Isolation(shape, [], error)
    worker.confined.kill("trial")
    await worker.confined.wait()
    return Isolation(shape, [each.layer for each in worker.confined.receipt.layers])


def _capacity(settings: Settings, sandbox: Sandbox | LayerError) -> int:
    if settings.admission_capacity is not None:
        return settings.admission_capacity
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    each = _NO_PLAN_BYTES if isinstance(sandbox, LayerError) else sandbox.plan.limits.address_space
    return from_memory(total, each)


def _own_user(peer: Peer) -> bool:
    return peer.uid == os.geteuid()


def _live(ledger: Ledger) -> Callable[[Peer], bool]:
    return lambda peer: peer.uid == os.geteuid() or (peer.uid is not None and ledger.holds(peer.uid))


@contextlib.asynccontextmanager
async def _listening(listener: Listener) -> AsyncIterator[None]:
    await listener.start()
    try:
        yield
    finally:
        await listener.stop()


def _configure_log(form: str) -> None:
    as_json = form == "json" or (form == "auto" and not _terminal())
    # Strings as their repr: what a run or a peer brings in must not steer the terminal.
    console = structlog.dev.ConsoleRenderer(repr_native_str=True)
    renderer: Any = structlog.processors.JSONRenderer() if as_json else console
    shared: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = logging.StreamHandler(sys.stderr) if sys.stderr is not None else logging.NullHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    # asyncio warns of each write to a peer that is gone: a hostile worker could fill the disk with it.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def _terminal() -> bool:
    # None when the daemon was started with standard error closed.
    return sys.stderr is not None and sys.stderr.isatty()
