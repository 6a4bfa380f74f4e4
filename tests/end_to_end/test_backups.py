"""A daemon's log damaged, restored, and backed up at a start."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spl.errors import StoreDamaged
from spl.records.backup import listed
from spl.records.formats import FORMAT
from spl.records.schema import format_of
from tests.end_to_end.daemon import Shape, wait_until_gone
from tests.records.earlier import RECORDS, lay, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.daemon import Daemon, Json


def note(daemon: Daemon, text: str) -> Json:
    """Have a record acknowledged."""
    body = {"kind": "acme.note.text.v1", "text": text}
    said = {"thread": "th_notes", "actor": "did:sync:user:ana", "act": "KNOW", "body": body}
    return daemon.request("POST", "/v1/records", said)


def records(daemon: Daemon) -> list[Json]:
    """Give every record there is."""
    listing: list[Json] = daemon.request("GET", "/v1/records", limit=1000)["data"]
    return listing


def store(daemon: Daemon) -> Json:
    """Give what health says of the log."""
    said: Json = daemon.request("GET", "/v1/engine/health")["store"]
    return said


@pytest.mark.claim("M5")
@pytest.mark.one_shape
def test_a_damaged_log_is_refused_and_comes_back_with_all_that_was_acknowledged(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home) as daemon:
        note(daemon, "first")
        assert store(daemon) == {"backend": "sqlite", "failing": None, "backup": None, "damaged": None}
    with shape.daemon(home) as daemon:
        made = json.loads(daemon.log.wait_for("made a backup"))
        assert store(daemon)["backup"] == {
            "path": made["path"],
            "records": 1,
            "at": listed(home / "backups")[0].at.isoformat().replace("+00:00", "Z"),
        }
        note(daemon, "second")
        acknowledged = records(daemon)
        assert daemon.stop() == 0
    os.truncate(home / "hub.db", (home / "hub.db").stat().st_size - 1)
    refused = shape.run("serve", "--home", str(home), "--port", "0")
    assert refused.returncode == StoreDamaged.exit_status
    assert str(home / "hub.db") in refused.stderr
    assert "put a backup in its place with 'spl restore'" in refused.stderr
    restored = shape.run("restore", "--salvage", "--home", str(home), "-o", "json")
    assert restored.returncode == 0, restored.stderr
    told = json.loads(restored.stdout)
    assert (told["backup"], told["records"], told["salvaged"]) == (made["path"], 2, 1)
    with shape.daemon(home) as daemon:
        assert records(daemon) == acknowledged
        note(daemon, "one more")


@pytest.mark.claim("M5")
@pytest.mark.one_shape
def test_a_home_of_an_earlier_release_is_served_with_its_runs_and_keeps_the_way_back(
    shape: Shape, home: Path
) -> None:
    assert shape.run("init", "--home", str(home)).returncode == 0
    lay(home / "hub.db")
    for name in ("hub.db", "hub.db-mark"):
        os.chown(home / name, shape.uid, shape.uid)
    kept = rows(home / "hub.db")
    with held(home / "backups"):
        begun = shape.begin("serve", "--home", str(home), "--port", "0")
        assert begun.stderr is not None
        assert "the log is of an earlier format" in begun.stderr.readline()
        begun.terminate()
        begun.communicate(timeout=30)
        # It is told to stop while it waits for the folder of backups, and has changed nothing.
        assert (begun.returncode, format_of(str(home / "hub.db")), listed(home / "backups")) == (0, 1, [])
    with shape.daemon(home, SPL_BACKUPS_KEPT="1") as daemon:
        # Of a run that was broken off it wrote the outcome: the backup at its start is another one.
        made = json.loads(daemon.log.wait_for('"made a backup"'))
        line = json.loads(daemon.log.wait_for("was taken to this format"))
        assert (line["format"], line["records"]) == (FORMAT, RECORDS)
        assert {backup.path for backup in listed(home / "backups")} == {
            Path(made["path"]),
            Path(line["path"]),
        }
        runs = daemon.request("GET", "/v1/runs")["data"]
        assert sorted(run["outcome"] for run in runs) == ["cancelled", "completed", "completed", "failed"]
        assert [record["id"] for record in records(daemon)[:RECORDS]] == [row[1].hex() for row in kept]
        assert daemon.stop() == 0
    assert rows(Path(line["path"])) == kept
    verified = shape.run("verify", line["path"], "-o", "json")
    assert (verified.returncode, json.loads(verified.stdout)["records"]) == (0, RECORDS)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Have whoever makes a backup in a folder wait."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def child_of(daemon: Daemon) -> int:
    """Give the pid of the process that makes the backup, once it waits for the folder."""
    pid = daemon.process.pid
    while True:
        assert daemon.process.poll() is None
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = map(int, file.read().split())
        for child in children:
            with contextlib.suppress(OSError):
                if str(daemon.home / "backups") in open_in(child):
                    return child


def open_in(pid: int) -> list[str]:
    """Give what a process has open."""
    return [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]


def test_the_backup_at_a_start_holds_no_secret_and_ends_with_the_daemon(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        note(daemon, "one more")
    with held(home / "backups"), shape.daemon(home, SPL_PROBE_SECONDS="20") as daemon:
        child = child_of(daemon)
        pidfd = os.pidfd_open(child)
        with open(f"/proc/{child}/environ", "rb") as file:
            names = {each.partition(b"=")[0].decode() for each in file.read().split(b"\0") if each}
        assert os.getpriority(os.PRIO_PROCESS, child) == 19
        assert [each for each in open_in(child) if each.startswith(("socket:", "anon_inode:"))] == []
        assert names <= {"PATH", "PYTHONPATH", "LANG", "LC_ALL", "LC_CTYPE"}
        if shape.name == "hosted":
            assert daemon.stop() == 0
        else:
            daemon.process.kill()
        wait_until_gone(child, pidfd)
        os.close(pidfd)
    assert listed(home / "backups") == []


def test_a_log_that_the_backup_at_a_start_finds_damaged_is_said_and_no_backup_is_lost(
    same_user: Shape, home: Path
) -> None:
    with same_user.daemon(home, SPL_BACKUPS_KEPT="1") as daemon:
        # More than a look at the opening reads.
        for n in range(120):
            note(daemon, f"number {n}")
    with same_user.daemon(home, SPL_BACKUPS_KEPT="1") as daemon:
        daemon.log.wait_for("made a backup")
        note(daemon, "one more")
    content = (home / "hub.db").read_bytes()
    assert content.count(b'"number 7"') == 1
    damaged = content.replace(b'"number 7"', b'"number 1"')
    with open(home / "hub.db", "r+b") as file:
        file.write(damaged)
    with same_user.daemon(home, SPL_BACKUPS_KEPT="1") as daemon:
        line = json.loads(daemon.log.wait_for("no backup could be made"))
        assert line["level"] == "error"
        assert "record 8 has another id than its content gives" in store(daemon)["damaged"]
        assert [backup.records for backup in listed(home / "backups")] == [120]
