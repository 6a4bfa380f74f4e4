"""What must hold after a fault, whatever it was: of the log, of the host, and of a daemon that has nothing to do."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spl.records.record import record_id
from tests.end_to_end import leaks
from tests.end_to_end.daemon import children, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.end_to_end.crash.clients import Told
    from tests.end_to_end.daemon import Daemon

Json = dict[str, Any]

ENGINE = "did:sync:system:engine"
_LOOKS = 200
ANCHOR, OUTCOME = "core.work.loop.v1", "core.work.loop_outcome.v1"


@dataclass
class Log:
    """The log as far as it has been read; it is append-only, so what was read stays as it was."""

    sequence: int = 0
    clocks: dict[tuple[str, str], int] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    """By thread of a run: the last record of its chain."""
    outcomes: dict[str, Json] = field(default_factory=dict)
    """By thread of a run: its outcome; empty while it has none."""

    def read_on(self, daemon: Daemon, told: Told) -> None:
        """Read what is new, and hold it against what was told; every run in it must be closed."""
        found: set[str] = set()
        since = self.sequence
        for page in daemon.client.pages("/v1/records", since=since):
            for record in page["data"]:
                self._take(record)
                known = told.records.get(record["id"])
                assert known in (None, record), f"a record is not what it was: {known} then, {record} now"
                found.add(record["id"])
        lost = [
            each for each in told.records.values() if each["sequence"] > since and each["id"] not in found
        ]
        assert not lost, f"{len(lost)} acknowledged records are lost, the first of them {lost[0]}"
        for thread in told.runs:
            assert thread in self.heads, f"an acknowledged run is lost: {told.runs[thread]}"
        still = [thread for thread, outcome in self.outcomes.items() if not outcome]
        assert not still, f"runs without an outcome: {still}"

    def _take(self, record: Json) -> None:
        assert record["sequence"] == self.sequence + 1, f"{record['sequence']} follows {self.sequence}"
        self.sequence = record["sequence"]
        names = ("parents", "thread", "actor", "act", "body", "clock", "data_type")
        id_ = record_id(*(record[name] for name in names))
        assert record["id"] == id_, f"the id of {record} should be {id_}"
        clock = (record["thread"], record["actor"])
        assert record["clock"] > self.clocks.get(clock, 0), f"the clock does not rise with {record}"
        self.clocks[clock] = record["clock"]
        self._follow(record, record["thread"], record["body"].get("kind"))

    def _follow(self, record: Json, thread: str, kind: str | None) -> None:
        if not thread.startswith("th_run_"):
            return
        if thread not in self.heads:
            assert (kind, record["actor"], record["parents"]) == (ANCHOR, ENGINE, []), record
            self.outcomes[thread] = {}
        else:
            assert kind != ANCHOR, f"a second anchor: {record}"
            assert record["parents"] == [self.heads[thread]], f"the chain does not go on with {record}"
            assert not self.outcomes[thread], f"something follows the outcome: {record}"
        if kind == OUTCOME:
            assert record["actor"] == ENGINE, record
            self.outcomes[thread] = record["body"]
        self.heads[thread] = record["id"]


def runs(daemon: Daemon, told: Told) -> None:
    """Check that no run is said to go on, and that those that had ended say the same still."""
    # All of the listing, as the operator sees it.
    assert daemon.request("GET", "/v1/runs", state="running")["data"] == []
    for thread, row in told.ended.items():
        assert daemon.request("GET", f"/v1/runs/{thread}") == row
    told.ended.clear()


def idle(daemon: Daemon, told: Told) -> None:
    """Check a daemon that has nothing to do: all its places are free, its log is fit, its configuration the last."""
    health = daemon.request("GET", "/v1/engine/health")
    loop = health["work_loop"]
    assert loop["admission_available"] == loop["admission_capacity"] > 0, loop
    assert "refused" not in loop, loop
    assert health["store"]["failing"] is None, health["store"]
    assert told.transport in (None, loop["transport"]), (told.transport, loop)


def nothing_left(namespace: str, uids: range, but: set[int], folder: Path) -> None:
    """Check that no process of a daemon is left but those named, and nothing in its folder of workers.

    A process is a daemon's by its mount namespace, or by its uid; one that is being ended is waited for.
    """
    for pid in [*_processes(namespace, uids, but)]:
        wait_until_gone(pid)
    left = {pid: _command(pid) for pid in _processes(namespace, uids, but)}
    assert left == {}, f"processes that are left: {left}"
    workers = folder / "workers"
    entries = [*workers.iterdir()] if workers.exists() else []
    assert not entries, f"entries that are left in the ledger of workers: {entries}"


def no_child(daemon: Daemon) -> None:
    """Check that a daemon has no child, a zombie neither; what ends by itself, as a backup does, is waited for.

    No worker stands by from then on.
    """
    daemon.set_standby(0)
    for pid in children(daemon.process.pid):
        wait_until_gone(pid)
    left: list[int] = []
    for _ in range(_LOOKS):
        left = [*children(daemon.process.pid)]
        if not left:
            break
        daemon.request("GET", "/v1/engine/health")  # which lets it see that the child has ended
    assert left == [], f"children of the daemon that are left: {[*map(_command, left)]}"


def clean(lines: list[str]) -> None:
    """Check that a daemon's log tells of no fault of its own."""
    faults = [
        line for line in lines if "Traceback" in line or '"exception"' in line or "Task exception" in line
    ]
    assert not faults, f"a fault of the daemon's own:\n{faults[0]}"


def _processes(namespace: str, uids: range, but: set[int]) -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        pid = int(name)
        if pid in but:
            continue
        try:
            status = dict(line.split(":", 1) for line in leaks._lines(f"/proc/{pid}/status"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        theirs = False
        # A process that root may not look at, such as the host's first, is none of a daemon's.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            theirs = os.readlink(f"/proc/{pid}/ns/mnt") == namespace
        # One that has ended is whoever's it came to to reap, which is not this project's.
        if (theirs or int(status["Uid"].split()[0]) in uids) and status["State"].split()[0] != "Z":
            yield pid


def _command(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace")


def closed(lines: list[str]) -> Counter[str]:
    """Count what a start says it found: runs that it closed, workers that it killed."""
    found: Counter[str] = Counter()
    for line in lines:
        for what in ("closed runs of an earlier daemon", "killed workers of an earlier daemon"):
            found[what] += what in line
    return found
