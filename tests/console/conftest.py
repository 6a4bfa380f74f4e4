"""A scripted daemon with event streams, for the console's feeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spl.client import Client
from tests.console import made
from tests.server import Daemon, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator


class Scripted:
    """A daemon whose runs and streams a test decides on; `client` asks it."""

    def __init__(self, daemon: Daemon, address: tuple[str, int]) -> None:
        self.daemon = daemon
        self.client = Client(address, timeout=10)
        self.records, self.engine, self.run = Stream(), Stream(), Stream()
        self.rows: list[made.Json] = []
        daemon.routes |= {
            "GET /v1/engine/health": made.health(),
            "GET /v1/runs": lambda _: {"object": "list", "data": self.rows, "has_more": False},
            "POST /v1/records/query": {"object": "list", "data": [], "has_more": False},
            "GET /v1/rules": {"object": "list", "data": [], "has_more": False},
            "GET /v1/profiles": {"object": "list", "data": [], "has_more": False},
            "GET /v1/watch": self.records,
            "GET /v1/engine/watch": self.engine,
            "GET /v1/threads/th_run_a/watch": self.run,
        }

    def record(self, record: made.Json) -> None:
        """Have a record come."""
        self.records.send("record.created", {"id": "x", "record": record}, record["sequence"])


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    daemon = Daemon()
    scripted = Scripted(daemon, daemon.start(("127.0.0.1", 0)))
    yield scripted
    for stream in (scripted.records, scripted.engine, scripted.run):
        # Each that is still open, and any that is opened meanwhile.
        for _ in range(4):
            stream.end()
    daemon.stop()
