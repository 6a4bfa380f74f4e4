from __future__ import annotations

import copy
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import HostRefused, InvalidBody, NotFound, NotVerified, StoreDamaged
from tests.cli.conftest import COMMAND
from tests.records.written import Written, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Spl
    from tests.server import Daemon, Request

Json = dict[str, Any]

KEEP = "whoever can rewrite all of it could have made it so; keep the head and give --head"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("written"), "completed", "stopped")


@pytest.fixture
def run(written: Written) -> list[Json]:
    return copy.deepcopy(written.runs["completed"])


def listing(records: list[Json], *, more: bool = False) -> str:
    return json.dumps({"object": "list", "data": records, "has_more": more})


def holds(daemon: Daemon, records: list[Json], *, most: int) -> None:
    """Have the daemon give these records, so many at the most a page."""

    def page(request: Request) -> Any:
        left = [each for each in records if each["sequence"] > int(request.query.get("since", 0))]
        return {"object": "list", "data": left[:most], "has_more": len(left) > most}

    daemon.routes[f"GET /v1/threads/{records[0]['thread']}/records"] = page


@pytest.mark.claim("V2")
@pytest.mark.parametrize("most", [1000, 3])
def test_a_thread_is_read_of_the_daemon_and_verified(
    spl: Spl, daemon: Daemon, run: list[Json], most: int
) -> None:
    holds(daemon, run, most=most)
    thread, head = run[0]["thread"], run[-1]["id"]
    ended = spl("verify", thread)
    assert (ended.returncode, ended.stderr) == (0, "")
    (outside,) = [each for each in run if "kind" not in each["body"]]
    assert json.loads(ended.stdout) == {
        "object": "verification",
        "source": "thread",
        "name": thread,
        "thread": thread,
        "records": len(run),
        "chain": len(run) - 1,
        "outside": [
            {"sequence": outside["sequence"], "id": outside["id"], "actor": outside["actor"], "kind": None}
        ],
        "elsewhere": 0,
        "head": head,
        "ended": True,
        "verdict": "internally consistent",
        "found": 0,
        "findings": [],
    }
    assert json.loads(spl("verify", thread, "--head", head).stdout)["verdict"] == "whole"


@pytest.mark.claim("V2")
def test_an_export_is_verified_without_a_daemon(spl: Spl, run: list[Json], tmp_path: Path) -> None:
    export = tmp_path / "export.json"
    export.write_text(listing(run))
    table = spl("verify", str(export), "-o", "table").stdout
    assert [line.rstrip() for line in table.splitlines() if not line.startswith("outside")] == [
        f"verified  the export {export}",
        f"thread    {run[0]['thread']}",
        f"records   {len(run)}, of which {len(run) - 1} are the run's and 1 stand outside its chain",
        "run       ended",
        f"head      {run[-1]['id']}",
        f"verdict   internally consistent: {KEEP}",
    ]
    assert "untampered" not in table
    whole = spl("verify", str(export), "--head", run[-1]["id"], "-o", "table").stdout
    assert "verdict   whole: it ends in the head given\n" in whole
    read = subprocess.run(
        [*COMMAND, "verify", "-"], input=listing(run), text=True, capture_output=True, timeout=60
    )
    assert (read.returncode, json.loads(read.stdout)["name"]) == (0, "-")


@pytest.mark.claim("V2")
def test_a_run_that_goes_on_is_said_to(spl: Spl, run: list[Json], tmp_path: Path) -> None:
    export = tmp_path / "export.json"
    export.write_text(listing(run[:-1]))
    table = spl("verify", str(export), "-o", "table", "--head", run[-2]["id"])
    assert (table.returncode, "going on: no outcome is on record" in table.stdout) == (0, True)
    assert spl("verify", str(export), "--head", run[-1]["id"]).returncode == NotVerified.exit_status


@pytest.mark.claim("V2")
def test_a_finding_is_told_with_its_record_and_the_command_fails(
    spl: Spl, run: list[Json], tmp_path: Path
) -> None:
    run[2]["body"]["model"] = "another"
    export = tmp_path / "export.json"
    export.write_text(listing(run))
    ended = spl("verify", str(export))
    assert ended.returncode == NotVerified.exit_status
    document = json.loads(ended.stdout)
    (finding,) = document["findings"]
    assert (finding["sequence"], finding["id"], finding["check"]) == (run[2]["sequence"], run[2]["id"], "id")
    assert (document["verdict"], document["found"]) == ("not verified", 1)
    assert ended.stderr.startswith("spl: NOT_VERIFIED: the export ")
    assert f"finding   id: {finding['text']}" in spl("verify", str(export), "-o", "table").stdout


def test_hostile_words_cannot_reach_the_terminal(spl: Spl, run: list[Json], tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\nverdict   whole"
    for record, name in zip(run, ("act", "actor", "thread", "clock", "data_type", "id", evil), strict=False):
        record[name] = evil
    run[8]["body"] = {**run[8]["body"], "decision": evil, "tool": evil, "fulfills": evil}
    export = tmp_path / "export.json"
    export.write_text(listing(run))
    for output in ("table", "json"):
        ended = spl("verify", str(export), "-o", output)
        assert ended.returncode == NotVerified.exit_status
        assert not set(ended.stdout + ended.stderr) & {"\x1b", "\x07"}
        assert "\nverdict   whole" not in ended.stdout


@pytest.mark.claim("V2")
def test_a_log_is_verified_whole_by_whole_and_has_no_head(spl: Spl, written: Written) -> None:
    ended = spl("verify", str(written.log))
    records = sum(map(len, written.runs.values()))
    assert (ended.returncode, json.loads(ended.stdout)) == (0, {
        "object": "verification", "source": "log", "name": str(written.log), "records": records, "threads": 2,
        "runs": 2, "elsewhere": 0, "verdict": "internally consistent", "found": 0, "findings": [],
    })  # fmt: skip
    assert f"{records}, on 2 threads, of 2 runs" in spl("verify", str(written.log), "-o", "table").stdout
    assert spl("verify", str(written.log), "--head", "0" * 64).returncode == InvalidBody.exit_status


def test_what_is_the_path_of_something_is_taken_as_a_file(
    spl: Spl, daemon: Daemon, run: list[Json], environ: dict[str, str], tmp_path: Path
) -> None:
    holds(daemon, run, most=1000)
    thread = run[0]["thread"]
    (tmp_path / thread).write_text(listing(run[:2]))
    ended = subprocess.run(
        [*COMMAND, "verify", thread],
        cwd=tmp_path,
        env={**environ},
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert [json.loads(ended.stdout)[name] for name in ("source", "records")] == ["export", 2]
    assert daemon.requests == []


def test_what_cannot_be_verified_is_refused_in_a_sentence(
    spl: Spl, daemon: Daemon, run: list[Json], tmp_path: Path
) -> None:
    daemon.routes["GET /v1/threads/th_none/records"] = {"object": "list", "data": [], "has_more": False}
    files = {
        "more": (listing(run, more=True).encode(), InvalidBody),
        "nothing": (b"", InvalidBody),
        "bytes": (b"\xff\x00", InvalidBody),
        "database": (b"SQLite format 3\0" + bytes(84), StoreDamaged),
    }
    for name, (content, error) in files.items():
        path = tmp_path / name
        path.write_bytes(content)
        ended = spl("verify", str(path))
        assert (ended.stdout, ended.returncode) == ("", error.exit_status)
        assert ended.stderr.startswith(f"spl: {error.code}: "), ended.stderr
    for name, kind in ((str(tmp_path), HostRefused), ("th_none", NotFound), ("th_gone", NotFound)):
        ended = spl("verify", name)
        assert (ended.stdout, ended.returncode) == ("", kind.exit_status), ended.stderr


def test_a_path_at_which_nothing_is_is_named(spl: Spl) -> None:
    refused = spl("verify", "/nonexistent/x")
    assert refused.returncode == NotFound.exit_status
    assert "there is no file '/nonexistent/x'" in refused.stderr
