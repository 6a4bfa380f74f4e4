"""The commands against a real daemon: each test has one, with a script for a model or the provider without one."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escape.instance import VERIFY_GOAL
from spl.errors import ExpressionInvalid, RunFinished, RunNotCompleted, RunNotFound, TokenRevoked
from spl.errors import WorkDailyCountExceeded as DailyCount
from tests.end_to_end.daemon import Shape

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from escape.installation import Installation
    from tests.end_to_end.daemon import Daemon

NOTE = {"calls": [{"name": "record_note", "arguments": {"text": "a note"}}]}
DENY = ("config", "add-permission-rule", "--name", "stop-that", "--action", "deny", "--priority", "100",
        "--expression", 'resource == "tool:record_note"')  # fmt: skip


@pytest.fixture
def shape(world_readable: Installation) -> Shape:
    return Shape("hosted", 0, tuple(world_readable.command), world_readable.env)


@pytest.fixture
def home() -> Iterator[Path]:
    """Give a path for a home that is short and outside the checkout."""
    with tempfile.TemporaryDirectory(prefix="spl-") as folder:
        yield Path(folder) / "home"


@pytest.fixture
def served(shape: Shape, home: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """Give a daemon whose model says the replies of the parameter in turn; without one it has no model."""
    flags: tuple[str, ...] = ()
    if replies := getattr(request, "param", None):
        script = home.with_name("script.json")
        script.write_text(json.dumps({"replies": replies}))
        flags = ("--provider", f"script:{script}")
    with shape.daemon(home, *flags) as daemon:
        yield Served(shape, home, daemon)


class Served:
    """A daemon, and the command line as its operator or as someone with a token."""

    def __init__(self, shape: Shape, home: Path, daemon: Daemon) -> None:
        self._shape = shape
        self._home = home
        self.daemon = daemon

    def spl(self, *arguments: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command; with a token over TCP, without one on the operator's socket."""
        if token is None:
            return self._shape.run(*arguments, SPL_HOME=str(self._home))
        url = f"http://127.0.0.1:{self.daemon.port}"
        return self._shape.run(*arguments, SPL_URL=url, SPL_TOKEN=token)

    def told(self, *arguments: str, token: str | None = None) -> Any:
        """Run a command that succeeds, and give its document."""
        ended = self.spl(*arguments, token=token)
        assert (ended.returncode, ended.stderr) == (0, "")
        return json.loads(ended.stdout)


def test_a_member_runs_by_its_token_alone_and_no_longer_once_it_is_taken_away(served: Served) -> None:
    mia = served.told("member", "add", "mia", "--tier", "paid")
    eve = served.told("member", "add", "eve", "--agent", "--scope", "records:read")
    assert [row["label"] for row in served.told("member", "list")["data"]] == ["mia", "eve"]
    assert (mia["actor"], mia["tier"]) == ("did:sync:user:mia", "paid")
    assert (eve["actor"], eve["tier"]) == ("did:sync:agent:eve", "trial")

    row = served.told("run", VERIFY_GOAL, token=mia["token"])
    assert (row["actor"], row["transport"], row["state"]) == (mia["actor"], "sandboxed", "done")
    why = served.told("why", row["thread"], token=mia["token"])
    assert why["asked"]["asked_by"] == mia["actor"]
    assert why["narrowed"] == ["list_dir", "read_file", "search", "write_file"]
    assert len(why["confirmed"]) > 10
    assert (why["notes"], why["outside"]) == (["transport-check"], 0)
    refused = served.spl("why", row["thread"], token=eve["token"])
    assert (refused.returncode, refused.stdout) == (RunNotFound.exit_status, "")

    shown = served.spl("config", "show", token=mia["token"])
    assert (json.loads(shown.stdout)["records"], "the operator's to read" in shown.stderr) == (None, True)
    told = served.told("config", "show")["records"]
    assert [record["body"]["tier"] for record in told] == ["paid", "trial"]

    assert served.told("member", "revoke", "mia")["revoked"] is True
    refused = served.spl("run", VERIFY_GOAL, token=mia["token"])
    assert refused.returncode == TokenRevoked.exit_status
    assert "TOKEN_REVOKED" in refused.stderr
    assert mia["token"] not in refused.stderr


def test_tokens_are_minted_rotated_and_revoked_and_stand_in_no_listing(served: Served) -> None:
    first = served.told("member", "add", "mia")
    minted = served.told("token", "mint", "--member", "mia", "--scope", "records:read")
    assert minted["scopes"] == ["records:read"]
    rotated = served.told("token", "rotate", minted["id"])
    assert rotated["scopes"] == ["records:read"]
    assert served.told("runs", "list", token=rotated["token"])["data"] == []
    assert served.spl("runs", "list", token=minted["token"]).returncode == TokenRevoked.exit_status
    assert served.told("token", "revoke", rotated["id"])["revoked"] is True
    assert served.spl("runs", "list", token=rotated["token"]).returncode == TokenRevoked.exit_status
    listed = served.told("token", "list")
    assert [row["id"] for row in listed["data"]] == ["operator", first["token_id"]]
    assert "spl_local" not in json.dumps(listed)


def test_the_operators_token_is_rotated_while_the_daemon_runs_and_while_it_does_not(
    served: Served, shape: Shape, home: Path
) -> None:
    def shown() -> str:
        return served.spl("token", "show").stdout.strip()

    def rotated() -> str:
        return str(served.told("token", "rotate")["token"])

    first, second = shown(), rotated()
    assert second == shown() != first
    assert served.spl("status", token=first).returncode != 0
    assert served.told("status", token=second)["work_loop"]
    assert served.daemon.stop() == 0
    third = rotated()
    assert third == shown() != second
    with shape.daemon(home) as daemon:
        again = Served(shape, home, daemon)
        assert again.told("status", token=third)["work_loop"]
        assert again.spl("status", token=second).returncode != 0


@pytest.mark.parametrize("served", [[NOTE, {"text": "Done."}]], indirect=True)
def test_a_rule_as_the_manual_writes_it_denies_until_it_is_disabled_and_why_names_it(served: Served) -> None:
    rule = served.told(*DENY)
    assert (rule["name"], rule["priority"], rule["enabled"], rule["hits"]) == ("stop-that", 100, True, 0)
    refused = served.spl("run", "a goal")
    assert refused.returncode == RunNotCompleted.exit_status
    (call,) = served.told("why", json.loads(refused.stdout)["thread"])["calls"]
    assert call["verdict"] == {
        "decision": "deny", "layer": "rule", "rule": "stop-that", "reason": "the rule 'stop-that' denies it",
    }  # fmt: skip
    assert call["result"] is None
    assert [each["hits"] for each in served.told("config", "list-rules")["data"]] == [1]

    assert served.told("config", "disable-permission-rule", "stop-that")["enabled"] is False
    done = served.told("run", "a goal")
    assert served.told("why", done["thread"])["calls"][0]["result"]["status"] == "ok"
    assert served.told("config", "enable-permission-rule", "stop-that")["enabled"] is True
    assert served.told("config", "remove-permission-rule", "--name", "stop-that")["removed"] is True
    assert served.told("config", "list-rules")["data"] == []
    assert served.told("run", "a goal")["state"] == "done"


def test_an_expression_that_does_not_compile_is_refused_with_its_place_and_not_written(
    served: Served,
) -> None:
    refused = served.spl(*DENY[:-1], "resource == ")
    assert (refused.returncode, refused.stdout) == (ExpressionInvalid.exit_status, "")
    said, line, caret = refused.stderr.splitlines()
    assert "at line 1, column " in said
    assert (line, caret.strip()) == ("resource == ", "^")
    assert served.told("config", "list-rules")["data"] == []
    assert served.told("config", "show")["records"] == []


def test_tiers_are_changed_live_and_a_preview_says_what_a_start_would_be(served: Served) -> None:
    def preview(*options: str) -> Any:
        return served.told("run", "--preview", "g", "--actor", "did:sync:user:mia", *options)

    first = preview()
    assert (first["transport"], first["tier"], first["ceilings"]["max_turns"]) == ("sandboxed", "trial", 5)
    assert (
        served.told("config", "set-tier", "paid", "--max-turns", "7", "--daily-runs", "0")["daily_runs"] == 0
    )
    assert served.told("config", "set-actor-tier", "did:sync:user:mia", "paid")["tier"] == "paid"
    refused = served.spl("run", "--preview", "g", "--actor", "did:sync:user:mia")
    told = json.loads(refused.stdout)
    assert (told["tier"], told["ceilings"]["max_turns"], told["would_start"]) == ("paid", 7, False)
    assert refused.returncode == DailyCount.exit_status
    assert refused.stderr.startswith("spl: WORK_DAILY_COUNT_EXCEEDED: ")
    assert served.told("config", "set-tier", "paid", "--reset", "daily-runs")["daily_runs"] == 200
    assert preview("--max-turns", "3")["ceilings"]["max_turns"] == 3
    assert served.told("config", "unset-actor-tier", "did:sync:user:mia")["tier"] is None
    assert preview()["tier"] == "trial"
    assert [len(served.told("runs", "list")["data"]), len(served.told("config", "show")["records"])] == [0, 3]


@pytest.mark.parametrize(
    "served",
    [[{"calls": [{"name": "record_note", "arguments": {"text": f"{at}"}}]} for at in range(20_000)]],
    indirect=True,
)
def test_a_run_that_would_go_on_for_long_is_stopped_and_why_says_by_whom(served: Served) -> None:
    thread = served.daemon.start("g")["thread"]
    assert served.told("runs", "stop", thread) == {"object": "event", "type": "stop", "thread": thread}
    assert served.daemon.finish(thread)["state"] == "stopped"
    why = served.told("why", thread)
    assert (why["stopped_by"], why["ended"]["outcome"]) == (why["asked"]["actor"], "cancelled")
    assert served.spl("runs", "stop", thread).returncode == RunFinished.exit_status


@pytest.mark.parametrize(
    "served",
    [[*[{"calls": [{"name": "calculate", "arguments": {"expression": "6*7"}}]}] * 3, {"text": "Done."}]],
    indirect=True,
)
def test_an_observation_stands_under_the_call_that_it_was_shown_beside(served: Served) -> None:
    thread = served.told("run", "g")["thread"]
    calls = served.told("why", thread)["calls"]
    assert [[seen["rule"] for seen in call["observations"]] for call in calls] == [[], [], ["repeated_call"]]
    assert [call["result"]["output"] for call in calls] == ["42"] * 3
    lines = served.spl("why", thread, "-o", "table").stdout.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("call 3"))
    assert [line.split()[0] for line in lines[at : at + 4]] == ["call", "verdict", "result", "observed"]


@pytest.mark.parametrize("served", [[NOTE, {"text": "Done."}]], indirect=True)
def test_a_run_is_streamed_as_the_log_has_it_and_ends_with_the_row_that_the_daemon_has(
    served: Served,
) -> None:
    ended = served.spl("run", "g", "--budget-usd", "2", "-o", "stream-json")
    assert (ended.returncode, ended.stderr) == (0, "")
    *records, row = map(json.loads, ended.stdout.splitlines())
    shown = served.told("runs", "show", row["thread"])
    assert json.dumps(row, sort_keys=True) == json.dumps(shown, sort_keys=True)
    assert records == served.told("thread", "records", row["thread"])["data"]
    tailed = served.spl("runs", "tail", row["thread"], "-o", "table").stdout.splitlines()
    assert [line.split()[0] for line in tailed] == [
        "run", "turn", "call", "verdict", "note", "result", "turn", "ended",
    ]  # fmt: skip


LONG = [{"calls": [{"name": "record_note", "arguments": {"text": f"{at}"}}]} for at in range(20_000)]


@pytest.fixture
def going(served: Served, shape: Shape, home: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a command that waits for a run which goes on for long, when its first steps have come."""
    process = shape.begin("run", "g", "-o", "stream-json", SPL_HOME=str(home))
    assert process.stdout is not None
    with process:
        while json.loads(process.stdout.readline())["body"]["kind"] != "core.work.note.v1":
            pass
        yield process
        process.kill()


@pytest.mark.parametrize("served", [LONG], indirect=True)
def test_an_interrupt_of_the_command_that_waits_for_a_run_stops_the_run(
    served: Served, going: subprocess.Popen[str]
) -> None:
    going.send_signal(signal.SIGINT)
    stdout, stderr = going.communicate(timeout=30)
    row = json.loads(stdout.splitlines()[-1])
    assert (going.returncode, row["state"], row["outcome"]) == (130, "stopped", "cancelled")
    assert stderr == f"spl: run: stopping {row['thread']}; interrupt again to leave it\n"
    assert served.told("why", row["thread"])["stopped_by"] == row["actor"]


@pytest.mark.parametrize("served", [LONG], indirect=True)
def test_a_run_whose_daemon_is_killed_ends_as_the_next_daemon_closes_it(
    served: Served, going: subprocess.Popen[str], shape: Shape, home: Path
) -> None:
    served.daemon.process.kill()
    with shape.daemon(home):
        stdout, stderr = going.communicate(timeout=30)
    row = json.loads(stdout.splitlines()[-1])
    assert (row["state"], row["outcome"]) == ("stopped_short", "failed")
    assert going.returncode == RunNotCompleted.exit_status
    assert "the stream has broken off; waiting for the daemon" in stderr
