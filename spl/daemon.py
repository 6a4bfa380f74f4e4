"""The daemon from start to stop: what is made in which order, and given back in the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from bwrap import cgroup, memory
from bwrap import host as hosts
from bwrap.errors import ConfinementError, LayerError
from bwrap.layers import every_layer
from bwrap.ledger import Ledger
from bwrap.library import Library
from bwrap.plan import Places
from bwrap.uids import Pool
from spl import __version__, garbage, hardening, logs
from spl.api.authentication import Authenticator
from spl.api.engine import Engine
from spl.api.listener import Listener, bind_tcp, bind_unix
from spl.api.operator import OperatorApi
from spl.api.watching import Watching
from spl.api.worker import worker_app
from spl.backups import Backups
from spl.errors import DaemonStopping, HomeUnsafe, HostUnsupported, SplError
from spl.health import ADDRESS, Daemon
from spl.home import HOSTED_RUN, Home, Lock, login
from spl.inference.broker import Broker
from spl.inference.chosen import chosen
from spl.inference.prices import Flat
from spl.kernel.admission import Admission
from spl.kernel.config import MOST_CAPACITY, Config
from spl.kernel.config import PROFILE as DEFAULT_PROFILE
from spl.kernel.credentials import Credentials
from spl.kernel.kernel import Kernel
from spl.kernel.members import Members
from spl.kernel.principals import operator_did
from spl.kernel.usage import Usage
from spl.logs.redaction import keeping_out
from spl.metrics import Metrics
from spl.notify import Notifier
from spl.records.sqlite import SqliteStore
from spl.settings import uid_range
from spl.threads import Unawaited
from spl.transports.image import seal
from spl.transports.plans import Plans
from spl.transports.profiles import Profiles
from spl.transports.sandboxed import Isolation, Sandbox
from spl.transports.starting import LOOK_SECONDS, Transports

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable

    from bwrap.sealed import Sealed
    from spl.api.peer import Peer
    from spl.records.examination import Found
    from spl.settings import Settings

PROFILE = DEFAULT_PROFILE

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What tells the daemon to end."""

_WORKER_BODY_BYTES = 8 << 20
# Of each of the operator's listeners: the event streams there may be, and a third as many for requests beside them.
_MOST_CONNECTIONS = 1024
_MOST_OF_ONE_WORKER = 8
# For a service manager: what may remain to be done at the end, or at the start, beside what has a bound of its own.
_END_SECONDS = 20.0
_WORKERS = "run/workers"

_NOBODY = Notifier()

_log = structlog.get_logger("spl.daemon")


async def trial(settings: Settings) -> tuple[Isolation, int]:
    """Make one worker as a daemon on this host would, in a throw-away home, and let it go; nothing of it stays.

    Gives what it showed and, where it was confirmed, how many such workers the memory or the settings admit at once.
    Must be the main thread's, as `serve` must. Raises `OSError`, and an `SplError` when there can be no such home.
    """
    hardening.protect()
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="spl-"))
        home = Home.open(f"{folder}/home", create=True)
        worker_path, _ = _worker_socket(home, stack)
        ledger = _ledger(settings, home)
        sandbox = _sandbox(settings, _library(home), home, worker_path, ledger)
        isolation = await _trial(sandbox, PROFILE)
        if isinstance(sandbox, LayerError) or isolation.refused is not None:
            return isolation, 0
        each = (await sandbox.plans.plan(PROFILE)).worst_case
        places = Admission(_memory(), lambda: settings.admission_capacity, most=_most_workers(settings))
        return isolation, places.capacity(each)


async def serve(settings: Settings, *, announce: Callable[[str], None], notifier: Notifier = _NOBODY) -> None:
    """Run the daemon until SIGTERM, SIGINT or SIGHUP.

    Runs are then given `drain_seconds` to leave, or until SIGTERM or SIGINT comes again. `announce` is told, once,
    where it listens and which layers it could confirm; it is not of a daemon that was told to stop before. `notifier`
    is told all along how it goes.

    Must be the main thread's: workers die with the thread that started them (PR_SET_PDEATHSIG, prctl(2)).
    Raises an `SplError` when it cannot start; what it took is given back then, and a home it made stays.
    """
    hardening.protect()
    log = logs.configure(settings.log_format)
    stopping, hurried = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    # A profile that takes long to look through must not keep the daemon from ending.
    loop.set_default_executor(Unawaited())
    for number in ENDING:
        loop.add_signal_handler(number, _told, number, stopping, hurried)
    opening = Home(settings.home).opening_seconds()
    notifier.tell("starting", seconds=opening if opening > _END_SECONDS else None)
    async with contextlib.AsyncExitStack() as stack:
        # The last: how it ended is said before the command line says why.
        stack.callback(logs.flush)
        stack.push(_say_fault)
        try:
            daemon = await assemble(settings, stack, stopping, log=log)
        except DaemonStopping:
            pass  # told while it was made
        else:
            if not stopping.is_set():
                logs.flush()
                announce(daemon.announcement())
                notifier.tell(daemon.status(), "READY=1")
                # Only now: nobody waits for the daemon's first answer because of them.
                daemon.transports.stand_by()
                async with (
                    notifier.kept_up(daemon.status, daemon.kernel.store.answers),
                    daemon.backups.kept_up(daemon.kernel.store.count),
                ):
                    await stopping.wait()
                    notifier.tell("stopping", "STOPPING=1", seconds=_ending_seconds(settings))
                    await daemon.transports.drain(settings.drain_seconds, hurried)
        _log.info("stopping")


def _told(number: signal.Signals, stopping: asyncio.Event, hurried: asyncio.Event) -> None:
    # A terminal that goes away sends SIGHUP beside whatever else ends its jobs: nobody has asked twice by that.
    if stopping.is_set() and number is not signal.SIGHUP:
        hurried.set()
    stopping.set()


def _say_fault(kind: object, error: BaseException | None, trace: object) -> None:
    """Log what ends the daemon and was not foreseen; the command line tells a person in one sentence."""
    del kind, trace
    if isinstance(error, Exception) and not isinstance(error, SplError | OSError):
        _log.error("the daemon ends by a fault of its own", exc_info=error)


async def assemble(
    settings: Settings,
    stack: contextlib.AsyncExitStack,
    stopping: asyncio.Event,
    *,
    image: Callable[[hosts.Python], Sealed] = seal,
    log: logs.Recent | None = None,
) -> Daemon:
    """Make the daemon; what `stack` gives back ends it.

    `image` makes the workers' program. The escape suite gives one that means harm, in a process of its own; no setting
    reaches it. Must be the main thread's, as `serve` must.
    """
    began = time.monotonic()
    broker = _broker(settings)
    stack.push_async_callback(broker.provider.close)
    home, tcp = _take(settings, stack)
    groups = _groups()
    backups = Backups(home, settings.backups_kept)
    worker_path, workers = _worker_socket(home, stack)
    own = _bound(str(home.operator_socket), 0o600, stack)
    token = home.ensure_token(login())
    store = await SqliteStore.open(
        home.database,
        served=_has_served(home),
        longest=backups.longest(),
        backups=home.backups,
        progress=lambda: _require_going(stopping),
    )
    stack.push_async_callback(store.close)
    _log_opened(store.found)
    ledger = _ledger(settings, home, groups)
    if swept := ledger.sweep():
        _log.warning("killed workers of an earlier daemon", pids=swept)
    library = _library(home)
    sandbox = _sandbox(settings, library, home, worker_path, ledger, image)
    if isinstance(sandbox, Sandbox):
        await stack.enter_async_context(_stopped_by(stopping, sandbox.plans))
    profiles = Profiles(library, sandbox if isinstance(sandbox, LayerError) else sandbox.plans)
    kernel = await _kernel(settings, home, store, broker, profiles)
    config = kernel.config
    transports = Transports(
        kernel,
        sandbox,
        credential_grace=settings.credential_grace_seconds,
        run_grace=settings.run_grace_seconds,
        standby=lambda: settings.standby_workers if config.standby is None else config.standby,
    )
    daemon = Daemon(home, tcp.getsockname()[1], kernel, worker_path, transports, backups, groups, began)
    authenticator = Authenticator(
        kernel.operator, token, kernel.members, rotated=lambda: home.rotate_token(login())
    )
    metrics = Metrics(
        kernel,
        store,
        transports,
        version=__version__,
        shape=str(hosts.shape()),
        layers=[layer.name for layer in every_layer()],
    )
    watching = await Watching.follow(store, heartbeat=settings.heartbeat_seconds)
    api = OperatorApi(
        kernel,
        transports,
        profiles,
        authenticator,
        watching,
        Engine(daemon.health, transports.workers, logs.Recent() if log is None else log, metrics.exposition),
    )
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
                most=_MOST_OF_ONE_WORKER * MOST_CAPACITY,
                most_each=_MOST_OF_ONE_WORKER,
            )
        )
    )
    transports.isolation = await _trial(sandbox, config.profile)
    if transports.isolation.refused is not None:
        _log.error(
            "sandboxed starts are refused", profile=config.profile, **transports.isolation.refused.wire()
        )
    most = _MOST_CONNECTIONS
    await stack.enter_async_context(_listening(Listener(app, own, grace=grace, admit=_own_user, most=most)))
    await stack.enter_async_context(_listening(Listener(app, tcp, grace=grace, most=most)))
    # After the runs, whose outcomes every watcher is still told, and before the listeners, which wait for its streams.
    stack.callback(watching.stop)
    stack.push_async_callback(transports.stop)
    daemon.capacity = (await transports.room(config.profile, seconds=LOOK_SECONDS)).capacity
    garbage.settle()
    return daemon


def _ending_seconds(settings: Settings) -> float:
    """Give the most seconds that the end may take by the settings; a worker that is being made is waited for."""
    most = max(settings.drain_seconds, settings.probe_seconds)
    return most + settings.run_grace_seconds + settings.stop_grace_seconds + _END_SECONDS


def _broker(settings: Settings) -> Broker:
    """Take the provider of the settings, with its key if it has one; the home need not be there yet."""
    provider = chosen(
        settings.provider,
        url=settings.provider_url,
        model=settings.model,
        key=keeping_out(Home(settings.home).read_key),
        seconds=settings.provider_seconds,
    )
    broker = Broker(
        provider,
        {name: Flat.of(price.input, price.output, price.cached) for name, price in settings.prices.items()},
        most_output_tokens=settings.max_output_tokens,
    )
    if broker.price(provider.default_model) is None:
        _log.warning(
            "the model has no price: runs with a budget are refused, and so is every sandboxed one",
            provider=provider.name,
            model=provider.default_model,
        )
    return broker


async def _kernel(
    settings: Settings, home: Home, store: SqliteStore, broker: Broker, profiles: Profiles
) -> Kernel:
    """Make the kernel over a log: all that stands there is in force, and no run is left open, when this returns."""
    operator = operator_did(login())
    config = await Config.follow(store, _now)
    kernel = Kernel(
        store,
        config,
        broker,
        Admission(
            _memory(),
            lambda: settings.admission_capacity if config.capacity is None else config.capacity,
            most=_most_workers(settings),
        ),
        Credentials(time.monotonic),
        Usage(_now),
        await Members.follow(store, operator=operator, now=_now),
        operator=operator,
        data=home.data,
        host_tools=hosts.shape() is hosts.Shape.SAME_USER,
        check_profile=profiles.check,
        now=_now,
    )
    if closed := await kernel.close_orphans():
        _log.warning("closed runs of an earlier daemon", threads=closed)
    # Only now has every run in the log its outcome, which says what it cost.
    await kernel.usage.read(store)
    return kernel


def _has_served(home: Home) -> bool:
    """Tell whether a daemon has run in a home: one without its log knows no more whom and what to refuse."""
    # The ledger of workers is made once the log has been opened.
    return os.path.lexists(home.path / _WORKERS)


def _require_going(stopping: asyncio.Event) -> None:
    """Raise DaemonStopping once the daemon is told to stop: it may be killed at any moment of a migration."""
    if stopping.is_set():
        raise DaemonStopping("the daemon is told to stop before its log is open")


def _log_opened(found: Found) -> None:
    if found.unfolded:
        _log.warning(
            "the log was not closed: its write-ahead log is taken in",
            records=found.records,
            bytes=found.unfolded,
        )
    else:
        _log.info("the log is open", records=found.records)


def _take(settings: Settings, stack: contextlib.AsyncExitStack) -> tuple[Home, socket.socket]:
    """Take the home and the port: neither is left changed when the other cannot be had."""
    if os.path.lexists(settings.home):
        home = _lock(Home.open(settings.home, create=True), stack)
        tcp = bind_tcp(ADDRESS, settings.port)
        stack.callback(tcp.close)
    else:
        tcp = bind_tcp(ADDRESS, settings.port)
        stack.callback(tcp.close)
        home = _lock(Home.open(settings.home, create=True), stack)
    return home, tcp


def _lock(home: Home, stack: contextlib.AsyncExitStack) -> Home:
    lock: Lock = home.lock()
    stack.callback(lock.release)
    return home


def _worker_socket(home: Home, stack: contextlib.AsyncExitStack) -> tuple[str, socket.socket]:
    """Bind the worker socket; gives its path and the socket.

    A hosted worker's own uid cannot pass the home, so its socket lies in a folder that others may pass and not list,
    and the home holds a link to it.
    """
    # Of an earlier daemon, maybe of the other shape; what is no link, nor a socket, is somebody's, and stays.
    if home.worker_socket.is_symlink() or home.worker_socket.is_socket():
        os.unlink(home.worker_socket)
    hosted = hosts.shape() is hosts.Shape.HOSTED
    path = home.bound_worker_socket(hosted=hosted)
    if not hosted:
        return path, _bound(path, 0o600, stack)
    folder = os.path.dirname(path)
    os.makedirs(HOSTED_RUN, mode=0o755, exist_ok=True)
    # Whatever the umask is: a worker's uid must pass both, and cannot list the second.
    os.chmod(HOSTED_RUN, 0o755)  # noqa: S103
    os.makedirs(folder, mode=0o711, exist_ok=True)
    os.chmod(folder, 0o711)  # noqa: S103
    stack.callback(_remove, folder)
    try:
        os.symlink(path, home.worker_socket)
    except FileExistsError:
        raise HomeUnsafe(
            f"no socket can be made at {str(home.worker_socket)!r}: what is there is not a socket",
            remedy="take it away from there",
        ) from None
    stack.callback(_unlink, home.worker_socket)
    return path, _bound(path, 0o666, stack)


def _bound(path: str, mode: int, stack: contextlib.AsyncExitStack) -> socket.socket:
    sock = bind_unix(path, mode)
    stack.callback(_unbind, sock, path)
    return sock


def _unbind(sock: socket.socket, path: str) -> None:
    sock.close()
    _unlink(path)


def _unlink(path: str | os.PathLike[str]) -> None:
    # Gone already, or the disk is read-only: the next daemon replaces it.
    with contextlib.suppress(OSError):
        os.unlink(path)


def _remove(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _library(home: Home) -> Library:
    """Take the shipped profiles as they are now, and a home's own as they will be when they are asked for."""
    try:
        return Library(own=home.profiles)
    except (ConfinementError, OSError) as error:
        raise HostUnsupported(f"the profiles that were installed cannot be read: {error}") from None


def _most_workers(settings: Settings) -> int | None:
    """Give how many workers this host can have at once whatever its memory: hosted, each has a uid of its own."""
    first, last = uid_range(settings.worker_uids)
    return last - first + 1 if hosts.shape() is hosts.Shape.HOSTED else None


def _groups() -> cgroup.Groups:
    """Divide the cgroup that is delegated to this process, if one is."""
    groups = cgroup.take()
    if groups.lacking:
        _log.warning("the delegated cgroup cannot be used in full", error=groups.reason)
    return groups


def _ledger(settings: Settings, home: Home, groups: cgroup.Groups | None = None) -> Ledger:
    return Ledger(str(home.path / _WORKERS), Pool(*uid_range(settings.worker_uids)), groups)


def _sandbox(
    settings: Settings,
    library: Library,
    home: Home,
    worker_path: str,
    ledger: Ledger,
    image: Callable[[hosts.Python], Sealed] = seal,
) -> Sandbox | LayerError:
    """Prepare what workers are made from; a host that cannot confine serves all the same, and refuses by layer."""
    try:
        host = hosts.examine()
        plans = Plans(library, host, Places(str(home.path), worker_path))
        return Sandbox(plans, image(host.python), ledger, settings.probe_seconds)
    except LayerError as error:
        found = error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        found = LayerError(
            "sandbox",
            expected="to examine this host and seal the worker's program",
            observed=f"{type(error).__name__}: {error}",
            remedy="mend what the message names",
        )
    return found


async def _trial(sandbox: Sandbox | LayerError, profile: str) -> Isolation:
    """Make one worker and let it go, to say at the start which layers of a profile hold here."""
    if isinstance(sandbox, LayerError):
        return Isolation([], sandbox, profile)
    try:
        worker = await sandbox.make(await sandbox.plans.plan(profile))
    except LayerError as error:
        return Isolation([], sandbox.plans.told(profile, error), profile)
    await worker.confined.stop("trial")
    return Isolation.of(worker)


def _memory() -> int:
    """Give the bytes of memory that were to be had when the daemon started; none when the kernel does not say."""
    try:
        return memory.available()
    except (OSError, ValueError) as error:
        _log.error("sandboxed runs need a capacity that is set: the memory cannot be told", error=str(error))
        return 0


def _now() -> datetime:
    return datetime.now(UTC)


def _own_user(peer: Peer) -> bool:
    return peer.uid == os.geteuid()


def _live(ledger: Ledger) -> Callable[[Peer], bool]:
    return lambda peer: peer.uid == os.geteuid() or (peer.uid is not None and ledger.holds(peer.uid))


@contextlib.asynccontextmanager
async def _stopped_by(stopping: asyncio.Event, plans: Plans) -> AsyncIterator[None]:
    """Have nobody wait for a plan once the daemon is told to stop."""

    async def stop() -> None:
        await stopping.wait()
        plans.stop()

    task = asyncio.create_task(stop())
    try:
        yield
    finally:
        task.cancel()


@contextlib.asynccontextmanager
async def _listening(listener: Listener) -> AsyncIterator[None]:
    await listener.start()
    try:
        yield
    finally:
        await listener.stop()
