"""Five hundred watchers of one thread of a real daemon: that read, and that do not; for docs/soak.md."""

from __future__ import annotations

import contextlib
import selectors
import socket
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.end_to_end import leaks
from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from tests.end_to_end.daemon import Daemon

THREAD = "th_watched"
LARGE = 900_000
"""Characters of a record that is meant to fill buffers."""


@dataclass
class Figures:
    """What the daemon held, in KiB, and how long it took until all had been told, in seconds."""

    watchers: int
    told: int = 0
    large: int = 0
    last_told_after: list[float] = field(default_factory=list)
    before: int = 0
    idle: int = 0
    stalled: int = 0
    descriptors: tuple[int, int] = (0, 0)


class Watcher:
    """One stream, read as it comes: the sequences it was told, in the order it was told them."""

    def __init__(self, daemon: Daemon) -> None:
        self.socket = socket.create_connection(("127.0.0.1", daemon.port), timeout=SECONDS)
        token = (daemon.home / "token").read_text().strip()
        request = (
            f"GET /v1/threads/{THREAD}/watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        self.socket.sendall(request.encode())
        self.told: list[int] = []
        self._rest = b""

    def take(self) -> None:
        """Read what is there."""
        *lines, self._rest = (self._rest + self.socket.recv(1 << 20)).split(b"\n")
        for line, following in zip(lines, [*lines[1:], b""], strict=True):
            if line.startswith(b"id: ") and following == b"event: record.created":
                self.told.append(int(line[4:]))
        # An id whose event is still to come is looked at again with it.
        if lines and lines[-1].startswith(b"id: "):
            self._rest = lines[-1] + b"\n" + self._rest


def watch(daemon: Daemon, watchers: int, records: int, large: int) -> Figures:
    """Have so many watch while records are written; then as many more that read nothing while large ones are."""
    figures = Figures(watchers, told=records, large=large)
    _write(daemon, "first")
    daemon.set_standby(0)
    before = leaks.holdings(daemon)["descriptors"]
    figures.before = leaks.memory(daemon)
    with _watching(daemon, watchers) as readers, selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.socket, selectors.EVENT_READ, reader)
        sequences = [_until_told(selector, readers, 1)]
        figures.idle = leaks.memory(daemon)
        for number in range(records):
            began = time.perf_counter()
            _write(daemon, number)
            sequences.append(_until_told(selector, readers, number + 2))
            figures.last_told_after.append(time.perf_counter() - began)
        assert all(reader.told == sequences for reader in readers), "a gap, a repeat, or another order"
    with _watching(daemon, watchers):
        for _ in range(large):
            _write(daemon, "x" * LARGE)
            figures.stalled = max(figures.stalled, leaks.memory(daemon))
    after = _closed(daemon, before)
    figures.descriptors = (before.total(), after.total())
    return figures


def told(figures: Figures) -> str:
    """Give the figures as a section of docs/soak.md."""
    times = sorted(1000 * each for each in figures.last_told_after)
    median, most = statistics.median(times), times[-1]
    idle = (figures.idle - figures.before) / figures.watchers
    stalled = (figures.stalled - figures.before) / figures.watchers
    before, after = figures.descriptors
    return (
        f"## Watchers\n\n{figures.watchers} event streams of one thread at once, on the TCP port. {figures.told} "
        "records one after another were told to\neach of them, every one once and in order; then as many streams whose "
        f"reader takes nothing, while {figures.large} records of\n{LARGE // 1000} KB are written.\n\n"
        "| what | figure |\n|---|---|\n"
        f"| from the request that writes a record until the last watcher has it, median and most | {median:.0f} ms, "
        f"{most:.0f} ms |\n"
        f"| memory of the daemon for each that waits | {idle:.0f} KiB |\n"
        f"| memory of the daemon for each that takes nothing | {stalled:.0f} KiB |\n"
        f"| descriptors before, and when all have gone | {before}, {after} |\n"
    )


@contextlib.contextmanager
def _watching(daemon: Daemon, watchers: int) -> Iterator[list[Watcher]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(watchers):
            found.append(Watcher(daemon))
            stack.enter_context(found[-1].socket)
        yield found


def _until_told(selector: selectors.BaseSelector, readers: list[Watcher], records: int) -> int:
    """Read until all have been told so many records; gives the sequence of the last."""
    while any(len(reader.told) < records for reader in readers):
        ready = selector.select(SECONDS)
        assert ready, f"nothing comes, and not all have been told {records} records"
        for key, _ in ready:
            key.data.take()
    return readers[0].told[-1]


def _closed(daemon: Daemon, before: Counter[str]) -> Counter[str]:
    """Wait until the daemon has seen all of them go, for which each request gives it a turn."""
    now = leaks.holdings(daemon)["descriptors"]
    for _ in range(2000):
        if now <= before:
            break
        daemon.request("GET", "/v1/engine/health")
        now = leaks.holdings(daemon)["descriptors"]
    assert now <= before, now - before
    return now


def _write(daemon: Daemon, said: object) -> None:
    record = {"thread": THREAD, "actor": "did:sync:user:op", "act": "KNOW", "body": {"said": said}}
    daemon.request("POST", "/v1/records", record)
