"""`spl backup`, `spl restore` and `spl init --new-log` in a home without a daemon, but for the locks of one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from subprocess import PIPE, Popen, run
from typing import TYPE_CHECKING

import pytest

from spl.backups import Backups
from spl.errors import BackupFailed, HomeInUse, SettingsInvalid, StoreDamaged
from spl.records.backup import listed
from spl.records.examination import examine, look
from spl.records.formats import FORMAT
from tests.cli.conftest import COMMAND
from tests.records.earlier import RECORDS as EARLIER
from tests.records.earlier import lay
from tests.records.logs import read, write

if TYPE_CHECKING:
    from spl.home import Home
    from tests.cli.conftest import Spl

RECORDS = 30


@pytest.fixture
def served(home: Home) -> Home:
    """Give a home with a log of some records."""
    write(home.database, RECORDS)
    return home


def test_a_backup_says_where_it_lies_and_what_it_holds(spl: Spl, served: Home) -> None:
    made = spl("backup", "-o", "json")
    assert made.returncode == 0, made.stderr
    told = json.loads(made.stdout)
    [backup] = listed(served.backups)
    assert (told["path"], told["records"], len(told["sha256"])) == (str(backup.path), RECORDS, 64)
    table = spl("backup", "-o", "table")
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["path", "records", "sha256"]
    assert len(listed(served.backups)) == 2


def test_a_backup_goes_to_a_file_that_is_not_there_yet(spl: Spl, served: Home, tmp_path: Path) -> None:
    to = tmp_path / "mine.db"
    assert json.loads(spl("backup", "--to", str(to)).stdout)["path"] == str(to)
    again = spl("backup", "--to", str(to))
    assert again.returncode == BackupFailed.exit_status
    assert again.stderr.startswith("spl: BACKUP_FAILED: ")
    assert "there is a file of this name" in again.stderr
    assert listed(served.backups) == []


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def test_a_disk_that_has_become_read_only_is_backed_up_elsewhere(
    environ: dict[str, str], served: Home, tmp_path: Path
) -> None:
    to = tmp_path / "away.db"
    command = ["unshare", "-m", "sh", "-c", READ_ONLY, str(served.path), *COMMAND, "backup"]
    made = run([*command, "--to", str(to)], env=environ, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    assert examine(str(to), "it") == RECORDS
    refused = run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert refused.returncode == BackupFailed.exit_status
    assert "Read-only file system" in refused.stderr


def test_a_backup_and_what_was_added_since_come_back(spl: Spl, served: Home) -> None:
    made = json.loads(spl("backup").stdout)
    write(served.database, 5, "later")
    kept = read(served.database)
    os.truncate(served.database, served.database.stat().st_size - 1)
    damaged = spl("serve", "--port", "0")
    assert damaged.returncode == StoreDamaged.exit_status == 42
    assert damaged.stderr.startswith("spl: STORE_DAMAGED: ")
    assert "put a backup in its place with 'spl restore'" in damaged.stderr
    assert json.loads(spl("restore").stdout) == {
        "finished": False,
        "log": str(served.database),
        "backup": made["path"],
        "format": FORMAT,
        "records": RECORDS,
        "salvaged": 0,
        "replaced": str(next(served.backups.glob("replaced-*"))),
        "held": RECORDS + 5,
        "acknowledged": RECORDS + 5,
        "passed_over": [],
    }
    assert read(served.database) == kept[:RECORDS]


def test_a_backup_of_an_earlier_format_comes_back_as_it_is_and_is_said_to_go_forward(
    spl: Spl, served: Home, tmp_path: Path
) -> None:
    lay(tmp_path / "earlier.db")
    told = json.loads(spl("restore", str(tmp_path / "earlier.db"), "-o", "json").stdout)
    assert (told["format"], told["records"]) == (1, EARLIER)
    assert told["next_start"] == f"takes it to format {FORMAT}, after a backup"
    assert look(str(served.database), served=True).format == 1


def test_a_restore_that_was_broken_off_is_finished_by_the_next(spl: Spl, served: Home) -> None:
    made = json.loads(spl("backup").stdout)
    into = served.path / "hub.db-restoring"
    into.mkdir(0o700)
    os.rename(made["path"], into / "new.db")
    write(served.path / "elsewhere.db", 1)
    refused = spl("serve", "--port", "0")
    assert refused.returncode == StoreDamaged.exit_status
    assert "was broken off" in refused.stderr
    told = json.loads(spl("restore").stdout)
    assert (told["finished"], told["records"]) == (True, RECORDS)
    assert look(str(served.database)).records == RECORDS
    assert not into.exists()


HOLDER = """
import sys, time
from spl.home import Home
with Home.open(sys.argv[1], create=False).lock():
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_nothing_is_replaced_under_a_daemon_and_a_backup_is_made(spl: Spl, served: Home) -> None:
    before = served.database.read_bytes()
    command = [sys.executable, "-c", HOLDER, str(served.path)]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        for arguments in (("restore",), ("restore", "--salvage"), ("init", "--new-log")):
            assert spl(*arguments).returncode == HomeInUse.exit_status
        assert spl("backup").returncode == 0
        holder.communicate()
    assert served.database.read_bytes() == before


def test_what_reads_or_replaces_a_log_is_for_a_home_of_this_machine(spl: Spl, served: Home) -> None:
    for command in (("backup",), ("restore",), ("init", "--new-log")):
        refused = spl(*command, SPL_URL="http://127.0.0.1:1")
        assert refused.returncode == SettingsInvalid.exit_status
        assert "give --home" in refused.stderr


def test_what_is_no_backup_is_refused_in_a_sentence(spl: Spl, served: Home, tmp_path: Path) -> None:
    (tmp_path / "evil\x1b[31m").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "cut.db").write_bytes(served.database.read_bytes()[:-1])
    expected = {
        "cut.db": StoreDamaged,
        "evil\x1b[31m": BackupFailed,
        "fifo": BackupFailed,
        "none": BackupFailed,
    }
    before = served.database.read_bytes()
    for name, error in expected.items():
        refused = spl("restore", str(tmp_path / name))
        assert (refused.returncode, refused.stdout) == (error.exit_status, ""), name
        assert refused.stderr.startswith(f"spl: {error.code}: ")
        assert "\x1b" not in refused.stderr
        assert "name another backup" in refused.stderr
    refused = spl("restore")
    assert refused.returncode == BackupFailed.exit_status
    assert "there is no backup" in refused.stderr
    assert "--salvage" in refused.stderr
    assert served.database.read_bytes() == before
    assert list(served.backups.iterdir()) == []


def test_an_empty_log_needs_its_flag_typed(spl: Spl, served: Home) -> None:
    (served.run / "workers").mkdir()
    served.database.unlink()
    gone = spl("serve", "--port", "0")
    assert gone.returncode == StoreDamaged.exit_status
    assert "'spl init --new-log' begins with an empty log" in gone.stderr
    assert not served.database.exists()
    assert spl("init").returncode == 0
    assert not served.database.exists()
    assert "replaced" in json.loads(spl("init", "--new-log").stdout)
    assert look(str(served.database), served=True).records == 0


def test_the_backups_of_a_log_that_is_moved_away_go_with_it(spl: Spl, served: Home) -> None:
    made = [json.loads(spl("backup").stdout) for _ in range(2)]

    away = Path(json.loads(spl("init", "--new-log").stdout)["replaced"])

    assert listed(served.backups) == []
    assert {str(backup.path) for backup in listed(away)} == {
        str(away / Path(each["path"]).name) for each in made
    }
    assert json.loads(spl("restore", str(away / "hub.db")).stdout)["records"] == RECORDS


def test_a_start_backs_up_no_log_without_records(spl: Spl, served: Home) -> None:
    spl("backup")
    before = listed(served.backups)

    async def none() -> int:
        return 0

    asyncio.run(Backups(served, 3)._make(none))

    assert listed(served.backups) == before


def test_a_backup_that_a_daemon_started_ends_with_it(environ: dict[str, str], served: Home) -> None:
    # Its parent is this process and not the one it is told to end with.
    command = [*COMMAND, "backup", "--started-by", "1", "--keep", "1"]
    with Popen(command, env=environ, stdout=PIPE, stderr=PIPE) as orphan:
        assert orphan.wait(60) == -signal.SIGKILL
    assert listed(served.backups) == []


def test_what_is_kept_is_the_newest(spl: Spl, served: Home) -> None:
    old = [json.loads(spl("backup").stdout)["path"] for _ in range(2)]
    made = json.loads(spl("backup", "--started-by", str(os.getpid()), "--keep", "2").stdout)
    assert made["removed"] == [old[0]]
    assert {str(backup.path) for backup in listed(served.backups)} == {old[1], made["path"]}
