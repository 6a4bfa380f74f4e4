from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spl.errors import SplError, StoreUnavailable
from spl.records.formats import tables
from spl.records.mark import Mark
from spl.records.schema import Stranger, open_reader, strangers
from spl.records.verification import verify_log
from tests.records.written import KINDS, Written, write

GUARDS = {name: sql for (type_, name), sql in tables().items() if type_ == "trigger"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("written"))


@pytest.fixture
def log(written: Written, tmp_path: Path) -> Path:
    """Give a log at rest in a folder of its own, to be changed."""
    return Path(shutil.copy(written.log, tmp_path / "backup.db"))


def change(log: Path, statement: str, *, guards: bool = True) -> None:
    """Change a log as whoever has its file can, who puts its guards against that back unless told not to."""
    dropped = ";".join(f"DROP TRIGGER {name}" for name in GUARDS)
    put_back = ";".join(GUARDS.values()) if guards else ""
    with closing(sqlite3.connect(log)) as connection:
        connection.executescript(f"{dropped};{statement};{put_back};")


def checks(log: Path) -> list[str]:
    found = verify_log(log)
    assert (found.verdict == "not verified") is bool(found.findings.count)
    return sorted({finding.check for finding in found.findings})


@pytest.mark.claim("V2")
def test_a_real_log_verifies_at_rest_and_nothing_is_left_beside_it(written: Written, log: Path) -> None:
    before = (log.read_bytes(), log.stat().st_mtime_ns)
    found = verify_log(log)
    assert [finding.text for finding in found.findings] == []
    records = sum(map(len, written.runs.values()))
    assert (found.verdict, found.records) == ("internally consistent", records)
    assert (found.threads, found.runs) == (len(KINDS), len(KINDS))
    assert os.listdir(log.parent) == [log.name]
    assert (log.read_bytes(), log.stat().st_mtime_ns) == before


def test_a_log_in_use_verifies_with_what_is_not_in_its_file_yet(log: Path) -> None:
    with closing(sqlite3.connect(log)) as writer, closing(open_reader(str(log))) as reader:
        reader.execute("BEGIN").execute("SELECT 1 FROM records")
        columns = "id, parents, thread, actor, act, kind, body, clock, data_type, judged_by, ordinal"
        writer.execute(f"INSERT INTO records ({columns}) SELECT zeroblob(32), x'', 't', actor, act, NULL, '{{}}', "
                       "1, data_type, NULL, 1 FROM records LIMIT 1")  # fmt: skip
        assert checks(log) == []
        writer.commit()
        assert checks(log) == ["id"]


CHANGES: dict[str, tuple[str, list[str]]] = {
    "a body": ("UPDATE records SET body = replace(body, 'a goal', 'a gaol') WHERE sequence = 1", ["id"]),
    "a body's form": ("UPDATE records SET body = ' ' || body WHERE sequence = 1", ["row"]),
    "a body with a key twice": (
        "UPDATE records SET body = '{\"kind\":1,' || substr(body, 2) WHERE sequence = 2",
        ["chain", "receipt", "row", "shape"],
    ),
    "a body that is no text": (
        "UPDATE records SET body = CAST(x'7b22ff223a317d' AS TEXT) WHERE sequence = 3",
        ["chain", "judgement", "row", "shape", "tally"],
    ),
    "an actor": ("UPDATE records SET actor = 'did:sync:user:eve' WHERE sequence = 3",
                 ["author", "chain", "id", "judgement", "tally"]),
    "a kind's column": ("UPDATE records SET kind = 'a.b.c.v1' WHERE sequence = 3", ["row"]),
    "an ordinal": ("UPDATE records SET ordinal = 9 WHERE sequence = 3", ["row"]),
    "a judge": ("UPDATE records SET judged_by = 'did:sync:user:eve' WHERE sequence = 3", ["judged_by"]),
    "a sequence": ("UPDATE records SET sequence = 9999 WHERE sequence = (SELECT max(sequence) FROM records)",
                   ["sequence"]),
    "an id that is none": ("UPDATE records SET id = CAST(hex(zeroblob(16)) AS TEXT) WHERE sequence = 3",
                           ["chain", "judgement", "shape", "tally"]),
    "a thread": ("UPDATE records SET thread = 'th_else' WHERE sequence = 1",
                 ["chain", "id", "receipt", "row", "tally"]),
    "one record left out": ("DELETE FROM records WHERE sequence = 8", ["row", "sequence"]),
    "a run left out": (
        "DELETE FROM records WHERE thread = (SELECT thread FROM records ORDER BY sequence LIMIT 1)", ["sequence"],
    ),
}  # fmt: skip


@pytest.mark.claim("V2")
@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_in_a_log_is_found(log: Path, name: str) -> None:
    statement, expected = CHANGES[name]
    change(log, statement)
    assert checks(log) == expected


@pytest.mark.claim("V2")
def test_a_log_without_its_guards_is_found_and_its_records_are_read(log: Path) -> None:
    change(log, "SELECT 1", guards=False)
    found = verify_log(log)
    missing = {finding.text.split("'")[3] for finding in found.findings}
    assert missing == {"records_are_not_deleted", "records_are_not_updated"}
    assert found.records > 0


@pytest.mark.claim("V2")
def test_a_log_that_held_more_by_its_mark_is_found(log: Path) -> None:
    found = verify_log(log)
    Mark.open(str(log), found.records).close()
    assert checks(log) == []
    change(log, f"DELETE FROM records WHERE sequence = {found.records}")
    assert checks(log) == ["file"]


@pytest.mark.claim("V2")
def test_a_record_that_is_kept_out_of_the_index_over_threads_is_found(log: Path) -> None:
    whole = tables()["index", "records_thread"]
    for sql in (f"{whole} WHERE sequence <> 3", whole):
        with closing(sqlite3.connect(log, isolation_level=None)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'records_thread'", (sql,))
        if sql != whole:
            change(log, "REINDEX records_thread")
    texts = [finding.text for finding in verify_log(log).findings if finding.check == "file"]
    assert [text for text in texts if "integrity check says" in text]
    assert [text for text in texts if "of them by its threads" in text]


def test_a_log_at_rest_that_is_written_to_meanwhile_is_not_verified(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written_to(connection: sqlite3.Connection) -> list[Stranger]:
        change(log, "UPDATE records SET ordinal = ordinal")
        return strangers(connection)

    monkeypatch.setattr("spl.records.verification.log.strangers", written_to)
    with pytest.raises(StoreUnavailable, match="written to while it was read"):
        verify_log(log)


def test_what_is_none_of_a_logs_tables_is_named_and_no_record_is_read(log: Path) -> None:
    with closing(sqlite3.connect(log)) as connection:
        connection.execute("CREATE INDEX more ON records (hex(body))")
    found = verify_log(log)
    assert ([finding.check for finding in found.findings], found.records) == (["schema"], 0)


def rows(log: Path) -> list[tuple[object, ...]]:
    with closing(open_reader(str(log))) as connection:
        return connection.execute("SELECT * FROM records ORDER BY sequence").fetchall()


@pytest.mark.claim("V2")
def test_a_log_with_a_damaged_page_is_found_or_refused_or_still_holds_every_record(log: Path) -> None:
    whole, records = log.read_bytes(), rows(log)
    noticed = 0
    for page in range(0, len(whole), 4096):
        log.write_bytes(whole[: page + 2000] + b"\xa5" * 200 + whole[page + 2200 :])
        try:
            found = verify_log(log)
        except StoreUnavailable:
            noticed += 1
        else:
            noticed += found.verdict == "not verified"
            assert found.findings.count or rows(log) == records
    assert noticed > len(whole) // 4096 // 2


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"\0" * 200])
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable):
        verify_log(path)
    with closing(sqlite3.connect(tmp_path / "theirs.db")) as connection:
        connection.execute("CREATE TABLE records (id)")
    with pytest.raises(StoreUnavailable, match="some other program"):
        verify_log(tmp_path / "theirs.db")


@pytest.mark.parametrize("name", ["gone.db", "."])
def test_a_log_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SplError, match="cannot be opened"):
        verify_log(tmp_path / name)
