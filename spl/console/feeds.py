"""What reads the daemon's streams, each in a thread of its own, into one queue, for as long as it takes.

A stream that breaks is opened again after a second, then later, up to five; the daemon may say when. What it tells is
read anew each time, so that nothing is missed and nothing counts twice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from spl.client import Client, error_of, segment
from spl.console import events
from spl.console.events import (
    Link,
    Linked,
    Listed,
    OpenedRecord,
    OpenedRefused,
    Recorded,
    Reopened,
    Row,
    Runs,
    Told,
)
from spl.console.wire import ISOLATION, REFUSAL, TOOL_VERDICT, objects, whole
from spl.errors import DaemonUnreachable, NotFound, ScopeDenied, SplError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from spl.client import Event, Json
    from spl.console.actions import Action

MOST_WAITING: Final = 256
"""Events that wait to be taken in; a feed that has more waits with them, and the daemon with its own."""

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 5.0
_RUNS: Final = 200
_VERDICTS: Final = 500
_REFUSALS: Final = 20
_ISOLATION_THREAD: Final = "th_engine_isolation"
_SHORTEST_PAUSE: Final = 0.1
_MOST_ERRANDS: Final = 8


class Done:
    """An action has been done, or was refused."""

    def __init__(self, action: Action, error: SplError | None) -> None:
        self.action, self.error = action, error


class Fault(NamedTuple):
    """A thread ended by an error that nobody foresaw: the console ends with it, and is not blind without saying so."""

    error: Exception


Item = events.Event | Done | Fault


class Inbox:
    """The queue of what has come; `descriptor` can be read while it holds something."""

    def __init__(self) -> None:
        self.descriptor, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: Item) -> bool:
        """Put one in, waiting for room; False once nothing is taken any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < MOST_WAITING)
            if self._closed:
                return False
            self._items.append(item)
            if len(self._items) == 1:
                os.write(self._writing, b"\0")
            return True

    def take(self) -> list[Item]:
        """Take all that there is."""
        with self._changed:
            items, self._items = list(self._items), deque()
            with contextlib.suppress(BlockingIOError):
                os.read(self.descriptor, 4096)
            self._changed.notify_all()
            return items

    def close(self) -> None:
        """Take nothing any more, and give the descriptors back; whoever waits for room is let go."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()
            os.close(self.descriptor)
            os.close(self._writing)


class Feed:
    """One stream, followed in a thread of its own from `start` to `stop`.

    `once` follows it until it ends, and may give after how many seconds to come again; `broken` is told of an error,
    and says whether to come again; `fault` is told of one that nobody foresaw.
    """

    def __init__(
        self,
        name: str,
        once: Callable[[Feed], float | None],
        broken: Callable[[SplError], bool],
        fault: Callable[[Exception], object],
    ) -> None:
        self._once = once
        self._broken = broken
        self._fault = fault
        self._over = threading.Event()
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name=name, daemon=True)

    def start(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End it, whatever it waits for; returns at once."""
        self._over.set()
        with self._lock:
            if self._socket is not None:
                # What waits for more to read is told that there is none; the reader closes it.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def join(self, seconds: float) -> None:
        """Wait until it has ended, or so long."""
        self._thread.join(seconds)

    @property
    def is_over(self) -> bool:
        """Whether it was told to stop."""
        return self._over.is_set()

    def opened(self, sock: socket.socket) -> None:
        """Take notice of the connection that is to be cut off when it is told to stop."""
        with self._lock:
            self._socket = sock
        if self.is_over:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _follow(self) -> None:
        try:
            self._again()
        except Exception as error:  # noqa: BLE001 - it would be told over the screen, by a thread that nobody misses
            self._fault(error)

    def _again(self) -> None:
        pause = _FIRST_PAUSE
        while not self.is_over:
            after: float | None = None
            try:
                after = self._once(self)
                pause = _FIRST_PAUSE
            except SplError as error:
                if self._over.is_set() or not self._broken(error):
                    return
            finally:
                with self._lock:
                    self._socket = None
            self._over.wait(pause if after is None else max(_SHORTEST_PAUSE, min(after, _LONGEST_PAUSE)))
            pause = min(pause * 1.5, _LONGEST_PAUSE)


class Feeds:
    """All that is read of one daemon, from entering to leaving."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.inbox = Inbox()
        self._records = Feed(
            "records", self._read_records, lambda error: self._gone("records", error), self._fault
        )
        self._engine = Feed(
            "engine", self._read_engine, lambda error: self._gone("engine", error), self._fault
        )
        self._run: Feed | None = None
        self._asked: set[str] = set()

    def __enter__(self) -> Self:
        self._records.start()
        self._engine.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.inbox.close()
        for feed in (self._records, self._engine, self._run):
            if feed is not None:
                feed.stop()

    def open(self, thread: str) -> None:
        """Follow a run's thread, and the one before no more."""
        self.shut()
        put = self.inbox.put

        def once(feed: Feed) -> float | None:
            put(Reopened(thread))
            path = f"/v1/threads/{segment(thread)}/watch"
            for event in self._client.watch(path, opened=feed.opened):
                if event.name == "record.created":
                    put(OpenedRecord(thread, _record_of(event)))
                elif (after := _ended(event)) is not None:
                    return after
            return None

        def broken(error: SplError) -> bool:
            if not isinstance(error, DaemonUnreachable):
                put(OpenedRefused(thread, f"{error.code}: {error.message}"))
            return not isinstance(error, NotFound | ScopeDenied)

        self._run = Feed("run", once, broken, self._fault).start()

    def shut(self) -> None:
        """Follow no run's thread."""
        if self._run is not None:
            self._run.stop()
            self._run = None

    def ask(self, what: str) -> bool:
        """Read `rules`, `profiles` or the `health` anew; False while it, or too much else, is being read already."""
        client, put = self._client, self.inbox.put
        if what == "health":
            return self._errand(what, lambda: put(Told("overview", _health(client))))
        return self._errand(what, lambda: put(listed(client, what)))

    def row(self, thread: str) -> bool:
        """Read one run's row; False while it, or too much else, is being read already."""
        path = f"/v1/runs/{segment(thread)}"
        return self._errand(thread, lambda: self.inbox.put(Row(self._client.request("GET", path))))

    def perform(self, action: Action) -> None:
        """Do what was confirmed, and say what became of it."""

        def do() -> None:
            try:
                self._client.request(*action.request())
            except SplError as error:
                self.inbox.put(Done(action, error))
            except Exception as error:  # noqa: BLE001 - as a feed's
                self._fault(error)
            else:
                self.inbox.put(Done(action, None))

        threading.Thread(target=do, name="action", daemon=True).start()

    def _errand(self, name: str, do: Callable[[], object]) -> bool:
        if name in self._asked or len(self._asked) >= _MOST_ERRANDS:
            return False
        self._asked.add(name)

        def run() -> None:
            # A daemon that does not answer is told of by the streams, which come again.
            try:
                with contextlib.suppress(SplError):
                    do()
            except Exception as error:  # noqa: BLE001 - as a feed's
                self._fault(error)
            finally:
                self._asked.discard(name)

        threading.Thread(target=run, name="errand", daemon=True).start()
        return True

    def _read_records(self, feed: Feed) -> float | None:
        put = self.inbox.put
        health, runs = overview(self._client)
        position = whole(health.get("records"))
        if position is None:
            raise DaemonUnreachable(
                f"what answers at {self._client.name} is no daemon: it does not say how many records it has"
            )
        put(Told("overview", health))
        put(runs)
        put(listed(self._client, "profiles"))
        path = "/v1/watch"
        for each in self._client.watch(path, position=position, opened=feed.opened):
            if each.name == "record.created":
                put(Recorded(_record_of(each)))
            elif each.name == "heartbeat":
                put(Linked("records", Link("open")))
            elif (after := _ended(each)) is not None:
                put(Linked("records", Link("gone", "the daemon stops")))
                return after
        put(Linked("records", Link("gone", "the stream ended")))
        return None

    def _read_engine(self, feed: Feed) -> float | None:
        put = self.inbox.put
        is_open = False
        for event in self._client.watch("/v1/engine/watch", opened=feed.opened):
            if not is_open:
                is_open = put(Linked("engine", Link("open")))
            if event.name.startswith("engine."):
                put(Told(event.name.removeprefix("engine."), event.data))
            elif (after := _ended(event)) is not None:
                put(Linked("engine", Link("gone", "the daemon stops")))
                return after
        put(Linked("engine", Link("gone", "the stream ended")))
        return None

    def _gone(self, stream: str, error: SplError) -> bool:
        if stream == "engine" and isinstance(error, ScopeDenied | NotFound):
            # It is not for this bearer, and will not be: the health is read with the runs.
            self.inbox.put(Linked("engine", Link("refused", f"{error.code}: {error.message}")))
            return False
        if isinstance(error, DaemonUnreachable):
            self.inbox.put(Linked(stream, Link("gone", error.message)))
        else:
            said = f"{error.code}: {error.message}; {error.fields.get('remedy', error.remedy)}"
            self.inbox.put(Linked(stream, Link("failing", said)))
        return True

    def _fault(self, error: Exception) -> None:
        self.inbox.put(Fault(error))


def overview(client: Client) -> tuple[Json, Runs]:
    """Read the engine's health, and then the runs with what was said of them last.

    The health's `records` is the position from which to read on. Raises what `Client.request` raises.
    """
    # Before the runs: what is written meanwhile is told by the stream, and counted once.
    health = _health(client)
    newest = {"order": "newest", "limit": _RUNS}
    listing = client.request("GET", "/v1/runs", query=newest)
    # One that goes on may be older than all of those; read last, it is the newest word of each.
    going = client.request("GET", "/v1/runs", query={**newest, "state": "running"})
    return health, Runs(
        [*_rows(going), *_rows(listing)],
        _newest(client, TOOL_VERDICT, _VERDICTS),
        _newest(client, REFUSAL, _REFUSALS, thread=_ISOLATION_THREAD),
        _newest(client, ISOLATION, 1),
        listing.get("has_more") is True,
    )


def _health(client: Client) -> Json:
    return client.request("GET", "/v1/engine/health")


def listed(client: Client, what: str) -> Listed:
    """Read `rules` or `profiles`; raises what `Client.request` raises, but for a bearer that may not."""
    try:
        return Listed(what, _rows(client.request("GET", f"/v1/{what}")))
    except ScopeDenied:
        return Listed(what, None)


def _newest(client: Client, kind: str, limit: int, **more: str) -> list[Json]:
    asked = {"filter": {"body.kind": kind}, "sort": {"sequence": -1}, "limit": limit, **more}
    try:
        return _rows(client.request("POST", "/v1/records/query", asked))
    except DaemonUnreachable:
        raise
    except SplError:
        # A bearer without `records:read`, or a log too long to look through: they come with the stream.
        return []


def _rows(listing: Json) -> list[Json]:
    return objects(listing.get("data"))


def _record_of(event: Event) -> Json:
    record = event.data.get("record")
    return record if isinstance(record, dict) else {}


def _ended(event: Event) -> float | None:
    """Give after how many seconds to come again, where an event ends its stream; raises the error that does."""
    if event.name == "server_shutdown":
        after = event.data.get("retry_after_ms")
        return _FIRST_PAUSE if (after := whole(after)) is None else after / 1000
    if event.name == "error":
        raise error_of(event.data)
    return None
