"""The log on a disk that loses its power: what was acknowledged had reached the device by then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.claims import ROOT
from tests.disk import disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.disk import Disk

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="a disk of the test's own needs root")

# Eight callers append, two drafts at a time, and print each id as they are answered. Where a level of SQLite's
# `synchronous` is given, the log is kept by it instead of its own.
ACKNOWLEDGE = """
import asyncio, sys
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore

async def writer(store, number):
    while True:
        drafts = [Draft(f"th_{number}", "did:sync:user:ana", "KNOW", {"pad": "x" * 200}) for _ in range(2)]
        print(*[appended.record.id for appended in await store.append(drafts)], sep="\\n", flush=True)

async def main():
    store = await SqliteStore.open(sys.argv[1])
    if sys.argv[2:]:
        store._writer_connection.execute(f"PRAGMA synchronous = {sys.argv[2]}")
    await asyncio.gather(*(writer(store, number) for number in range(8)))

asyncio.run(main())
"""

# Prints those of the ids on its standard input whose records are there; the log can be appended to as well.
KEPT = """
import asyncio, sys
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(sys.argv[1])
    print(*[id_ for id_ in sys.stdin.read().split() if await store.get(id_) is not None], sep="\\n")
    await store.append([Draft("th_after", "did:sync:user:ana", "KNOW", {})])
    await store.close()

asyncio.run(main())
"""

# Opens the log, appends so many records as far as the kernel's memory, and is killed before it syncs or marks them.
KILLED = """
import asyncio, os, signal, sys
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(sys.argv[1])
    store._writer_connection.execute("PRAGMA synchronous = OFF")
    store._mark.put = lambda sequence: None
    for _ in range(int(sys.argv[2])):
        await store.append([Draft("th_1", "did:sync:user:ana", "KNOW", {})])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""

# A command on the disk begins in another folder than this.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

MOMENTS = (1, 30, 300, 3000)
"""After how many acknowledgements the power goes."""


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Disk]:
    with disk(tmp_path, 64) as made:
        yield made


def acknowledged(drive: Disk, log: Path, least: int, *level: str) -> list[str]:
    """Have records appended until so many are acknowledged, kill who appends, and cut the disk's power.

    Gives the id of every record that was acknowledged. The kill comes first: ext4 says of an fsync(2) that it was shut
    down under that all is well (seen on Linux 6.18), which no loss of power does.
    """
    command = [*drive.prefix, sys.executable, "-c", ACKNOWLEDGE, str(log), *level]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ids = [child.stdout.readline().strip() for _ in range(least)]
        child.kill()
        ids += [line.strip() for line in child.stdout if line.endswith("\n")]
        child.wait()
        drive.cut()
    drive.unmount()
    drive.mount()
    assert all(ids), "it ended by itself"
    return ids


def kept(drive: Disk, log: Path, ids: list[str]) -> list[str]:
    """Give those of the ids whose records are in the log as its next reader finds it."""
    command = [*drive.prefix, sys.executable, "-c", KEPT, str(log)]
    said = "\n".join(ids)
    done = subprocess.run(
        command, env=ENVIRONMENT, input=said, stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    return done.stdout.split()


@pytest.mark.claim("M5", "K3")
def test_no_acknowledged_record_is_lost_when_the_power_goes(drive: Disk) -> None:
    for least in MOMENTS:
        log = drive.path / f"after-{least}.db"
        ids = acknowledged(drive, log, least)
        assert kept(drive, log, ids) == ids, f"after {least} acknowledgements"


@pytest.mark.parametrize("level", ["OFF", "NORMAL"])
def test_a_log_that_is_synced_less_loses_records_by_this_very_test(drive: Disk, level: str) -> None:
    log = drive.path / "log.db"
    ids = acknowledged(drive, log, 300, level)
    assert len(kept(drive, log, ids)) < len(ids)


@pytest.mark.claim("M5")
def test_a_log_is_not_called_damaged_for_what_was_found_at_a_start_and_had_not_reached_the_disk(
    drive: Disk,
) -> None:
    log = drive.path / "log.db"
    drive.sync()
    for appended in (30, 0):
        command = [*drive.prefix, sys.executable, "-c", KILLED, str(log), str(appended)]
        ended = subprocess.run(command, env=ENVIRONMENT, timeout=60)
        assert ended.returncode == -signal.SIGKILL
    drive.cut()
    drive.unmount()
    drive.mount()
    assert kept(drive, log, []) == []
