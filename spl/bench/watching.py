"""A watcher: how long it takes from a record's append until the event stream of a watcher tells of it."""

from __future__ import annotations

import queue
import socket
import statistics
import threading
import time
from typing import TYPE_CHECKING

from spl.bench.apparatus import MS
from spl.bench.processes import SECONDS, WATCHED
from spl.bench.rows import Measured
from spl.errors import HostRefused, SplError

if TYPE_CHECKING:
    from spl.bench.apparatus import Apparatus
    from spl.client import Client


def measure(bench: Apparatus) -> dict[str, Measured]:
    """Measure the events of one watcher, each beside the durable append that it tells of."""
    helper = bench.cold
    watcher = _Watcher(helper.client)
    appended, told = [], []
    try:
        for done in bench.times("a watcher", bench.size.samples + 1):
            times = helper.ask("tell")
            at = watcher.next()
            # Before the first it is told all that the log holds.
            if done:
                appended.append((times["durable"] - times["began"]) / MS)
                told.append((at - times["began"]) / MS)
    finally:
        watcher.close()
    return {"watcher": Measured.of(told, floor=statistics.median(appended))}


class _Watcher:
    """A client that follows the watched thread, and when each event came."""

    def __init__(self, client: Client) -> None:
        self._came: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._sockets: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, args=(client,), daemon=True)
        self._thread.start()

    def next(self) -> int:
        """Give when the next event came, by `time.monotonic_ns`. Raises `HostRefused`."""
        try:
            at = self._came.get(timeout=SECONDS)
        except queue.Empty:
            at = None
        if at is None:
            raise HostRefused("a watcher of the daemon that is measured was not told of a record")
        return at

    def close(self) -> None:
        """End the stream."""
        sock = self._sockets.get(timeout=SECONDS)
        sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(SECONDS)

    def _follow(self, client: Client) -> None:
        try:
            for event in client.watch("/v1/watch", opened=self._sockets.put):
                if event.data.get("record", {}).get("thread") == WATCHED:
                    self._came.put(time.monotonic_ns())
        except SplError:
            pass
        self._came.put(None)
