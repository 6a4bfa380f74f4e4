"""A member's whole life on a live daemon, over TCP with a token of its own; and what of it a restart keeps."""

from __future__ import annotations

import http.client
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import (
    ActorNotCovered,
    RunActorNotCovered,
    RunNotFound,
    ScopeDenied,
    SplError,
    TokenRevoked,
    Unauthenticated,
    WorkConcurrencyExceeded,
    WorkDailyCapExceeded,
    WorkDailyCountExceeded,
)
from tests.end_to_end import scripts
from tests.end_to_end.daemon import SECONDS
from tests.end_to_end.test_stop import stopped

if TYPE_CHECKING:
    from pathlib import Path

    from spl.client import Client
    from tests.end_to_end.daemon import Daemon, Shape
    from tests.end_to_end.model import Model

pytestmark = pytest.mark.one_shape

Json = dict[str, Any]

MIA, BEN = "did:sync:user:mia", "did:sync:user:ben"
WITHHELD = ["list_dir", "read_file", "search", "write_file"]
LOOP = "/v1/work/loop"
DONE = scripts.saying("Done.")


def spl(shape: Shape, home: Path, command: str) -> Any:
    """Have the operator run an `spl` command; gives what it printed."""
    done = shape.shell(home, f"spl {command} -o json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def add(shape: Shape, home: Path, label: str) -> str:
    """Add a member as the manual says; gives its token."""
    said = spl(shape, home, f"member add {label} --tier trial")
    assert (said["actor"], said["tier"]) == (f"did:sync:user:{label}", "trial")
    return str(said["token"])


def refused(error: type[SplError], client: Client, method: str, path: str, body: Json | None = None) -> Json:
    """Check that a request is refused by name; gives the error's fields."""
    with pytest.raises(error) as found:
        client.request(method, path, body)
    assert type(found.value) is error
    return found.value.fields


@pytest.mark.claim("T1", "N1", "N2", "N3", "B1")
def test_a_members_run_is_sandboxed_and_narrowed_and_its_own_to_read(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        mia = daemon.client_of(add(shape, home, "mia"))
        row = mia.request("POST", LOOP, {"goal": "Do what you can.", "max_turns": 50, "budget_usd": 9})
        asked = model.asked()
        assert (row["actor"], row["tier"], row["transport"]) == (MIA, "trial", "sandboxed")
        assert (row["narrowed"], row["max_turns"], row["budget_usd"]) == (WITHHELD, 5, 0.25)
        assert set(row["tools"]) == set(asked.tools) == {"record_note", "read_thread", "calculate"}, (
            "its reach is what the model is given"
        )
        assert ", ".join(WITHHELD) in asked.messages[0]["content"]
        asked.answer(scripts.calling({"name": "read_file", "arguments": {"path": "x"}}, scripts.NOTE))
        model.asked().answer(DONE)
        daemon.finish(row["thread"])

        path = f"/v1/runs/{row['thread']}"
        assert mia.request("GET", path) == daemon.request("GET", path)
        assert mia.request("GET", path)["state"] == "done"
        records = mia.request("GET", f"/v1/threads/{row['thread']}/records")["data"]
        assert records[0]["body"]["narrowed"] == WITHHELD
        verdicts = [each["body"] for each in records if each["body"]["kind"] == "core.work.tool_verdict.v1"]
        assert [(each["tool"], each["layer"]) for each in verdicts] == [
            ("read_file", "grant"),
            ("record_note", "allow"),
        ]
        assert [each["thread"] for each in mia.request("GET", "/v1/runs")["data"]] == [row["thread"]]


def test_a_member_is_refused_what_is_anothers(shape: Shape, home: Path, model: Model) -> None:
    with model.daemon(shape, home) as daemon:
        mia, ben = (daemon.client_of(add(shape, home, label)) for label in ("mia", "ben"))
        theirs = [
            daemon.start("The operator's.")["thread"],
            ben.request("POST", LOOP, {"goal": "Ben's."})["thread"],
        ]
        asked = [model.asked(), model.asked()]
        for thread in theirs:
            refused(RunNotFound, mia, "GET", f"/v1/runs/{thread}")
            refused(RunNotFound, mia, "POST", f"/v1/runs/{thread}/events", {"type": "stop"})
            refused(RunNotFound, mia, "POST", f"/v1/work/loop/{thread}/cancel")
            assert mia.request("GET", f"/v1/threads/{thread}/records")["data"] == []
            said = {"thread": thread, "actor": MIA, "act": "KNOW", "body": {"text": "me too"}}
            refused(ActorNotCovered, mia, "POST", "/v1/records", said)
        for path in ("/v1/runs", "/v1/threads", "/v1/records"):
            assert mia.request("GET", path)["data"] == []
        refused(ActorNotCovered, mia, "GET", f"/v1/runs?actor={BEN}")
        refused(RunActorNotCovered, mia, "POST", LOOP, {"goal": "x", "actor": BEN})
        refused(RunActorNotCovered, mia, "POST", f"{LOOP}/preview", {"goal": "x", "actor": BEN})
        refused(ScopeDenied, mia, "POST", "/v1/members", {"label": "eve"})
        for each, thread in zip(asked, theirs, strict=True):
            each.answer(DONE)
            assert daemon.finish(thread)["state"] == "done"


def test_a_tiers_ceilings_refuse_a_members_start_by_name_and_leave_the_others_alone(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        token = add(shape, home, "mia")
        mia, ben = (daemon.client_of(each) for each in (token, add(shape, home, "ben")))
        thread = mia.request("POST", LOOP, {"goal": "x"})["thread"]
        asked = model.asked()
        told = refused(WorkConcurrencyExceeded, mia, "POST", LOOP, {"goal": "x"})
        assert (told["limit"], told["running"]) == (1, 1)
        assert retry_after(daemon, token) == "1"
        # Another's run, and the operator's for themselves, are not counted among them.
        others = [ben.request("POST", LOOP, {"goal": "x"})["thread"], daemon.start("x")["thread"]]
        for each in (asked, model.asked(), model.asked()):
            each.answer({**DONE, "usage": {"input_tokens": 500_000}})
        for each in (thread, *others):
            daemon.finish(each)

        told = refused(WorkDailyCapExceeded, mia, "POST", LOOP, {"goal": "x"})
        assert (told["limit_usd"], told["spent_usd"]) == (0.5, 0.5)
        spl(shape, home, "config set-tier trial --daily-cost-usd 9 --daily-runs 1")
        told = refused(WorkDailyCountExceeded, mia, "POST", LOOP, {"goal": "x"})
        assert (told["limit"], told["started"]) == (1, 1)
        assert 0 < int(retry_after(daemon, token) or 0) <= 86_400
        preview = mia.request("POST", f"{LOOP}/preview", {"goal": "x"})
        assert [each["code"] for each in preview["refusals"]] == ["WORK_DAILY_COUNT_EXCEEDED"]
        # A tier given while it goes on, and the next start is judged by that.
        spl(shape, home, f"config set-actor-tier {MIA} paid")
        row = mia.request("POST", LOOP, {"goal": "x"})
        model.asked().answer(DONE)
        assert (daemon.finish(row["thread"])["state"], row["tier"]) == ("done", "paid")


def retry_after(daemon: Daemon, token: str) -> str | None:
    """Ask for a run that is refused; gives the header that says when to come again."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=SECONDS)
    bearer = {"authorization": f"Bearer {token}"}
    connection.request("POST", LOOP, b'{"goal":"x"}', bearer)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 429
    return answer.getheader("retry-after")


@pytest.mark.claim("T7")
def test_a_member_that_is_revoked_is_dead_at_once_and_its_live_run_is_stopped(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        mia = daemon.client_of(add(shape, home, "mia"))
        daemon.set_transport("sandboxed")
        row = mia.request("POST", LOOP, {"goal": "Go on."})
        worker = daemon.worker_pid(row["thread"])
        asked = model.asked()
        said = spl(shape, home, "member revoke mia")
        assert (said["revoked"], said["stopped"]) == (True, [row["thread"]])
        for method, path in (("GET", "/v1/runs"), ("GET", f"/v1/runs/{row['thread']}"), ("POST", LOOP)):
            refused(TokenRevoked, mia, method, path, {"goal": "x"} if method == "POST" else None)
        asked.answer(scripts.calling(scripts.NOTE))
        assert stopped(daemon, row["thread"], worker)["exit"] == {"code": 0}
        assert daemon.bodies(row["thread"], "core.work.note.v1") == []
        # The label is kept for it: added again, it sees what it had, and the old token stays dead.
        again = daemon.client_of(add(shape, home, "mia"))
        assert [each["thread"] for each in again.request("GET", "/v1/runs")["data"]] == [row["thread"]]
        refused(TokenRevoked, mia, "GET", "/v1/runs")


def test_a_restart_keeps_members_tokens_rules_tiers_and_what_was_used_today(
    shape: Shape, home: Path, model: Model
) -> None:
    asked_for = ("/v1/members", "/v1/tokens", "/v1/rules", "/v1/tiers")
    with model.daemon(shape, home) as daemon:
        tokens = [add(shape, home, label) for label in ("mia", "ben")]
        mia = daemon.client_of(tokens[0])
        for change in (
            "set-tier trial --daily-runs 2 --daily-cost-usd 0.75",
            f"set-actor-tier {BEN} team",
            "add-permission-rule --name quiet --action deny --expression 'resource == \"tool:record_note\"'",
        ):
            spl(shape, home, f"config {change}")
        spl(shape, home, "member revoke ben")
        thread = mia.request("POST", LOOP, {"goal": "x"})["thread"]
        model.asked().answer({**DONE, "usage": {"output_tokens": 500_000}})
        daemon.finish(thread)
        before = [daemon.request("GET", path) for path in asked_for]
        assert daemon.stop() == 0

    with model.daemon(shape, home) as daemon:
        mia, ben = map(daemon.client_of, tokens)
        assert [daemon.request("GET", path) for path in asked_for] == before
        refused(TokenRevoked, ben, "GET", "/v1/runs")
        # What is left of the day's cost is all that a run may have.
        row = mia.request("POST", LOOP, {"goal": "x"})
        assert (row["budget_usd"], row["tier"]) == (0.25, "trial")
        model.asked().answer(scripts.calling(scripts.NOTE))
        asked = model.asked()
        assert "the rule 'quiet' denies it" in asked.shown
        asked.answer(DONE)
        daemon.finish(row["thread"])
        told = refused(WorkDailyCountExceeded, mia, "POST", LOOP, {"goal": "x"})
        assert (told["limit"], told["started"]) == (2, 2)


def test_the_operators_token_is_rotated_under_a_live_daemon_and_stays_so(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        old, client = (home / "token").read_text().strip(), daemon.client
        token = spl(shape, home, "token rotate")["token"]
        assert token != old
        assert (home / "token").read_text().strip() == token
        refused(TokenRevoked, client, "GET", "/v1/runs")
        assert daemon.request("GET", "/v1/runs")["data"] == []
    with shape.daemon(home) as daemon:
        refused(Unauthenticated, daemon.client_of(old), "GET", "/v1/runs")
        assert daemon.request("GET", "/v1/runs")["data"] == []


def test_a_token_is_told_once_and_stands_nowhere_that_others_look(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        secrets = [add(shape, home, "mia")]
        secrets.append(spl(shape, home, "token mint --member mia --scope records:read")["token"])
        (minted,) = [
            each["id"]
            for each in spl(shape, home, "token list")["data"]
            if each["scopes"] == ["records:read"]
        ]
        secrets.append(spl(shape, home, f"token rotate {minted}")["token"])
        client = daemon.client_of(secrets[0])
        thread = client.request("POST", LOOP, {"goal": "x"})["thread"]
        asked = model.asked()
        for path in ("/v1/members", "/v1/no/such", "/v1/runs?actor=x"):
            with pytest.raises(SplError) as error:
                client.request("GET", path)
            assert secrets[0] not in json.dumps(error.value.wire())
        asked.answer(DONE)
        daemon.finish(thread)
        spl(shape, home, "member revoke mia")
        with pytest.raises(TokenRevoked) as revoked:
            client.request("GET", "/v1/runs")
        told = [json.dumps(revoked.value.wire()), *daemon.log.lines, daemon.announcement]
        told += [json.dumps(daemon.request("GET", path, limit=1000)) for path in ("/v1/records",)]
        told += [json.dumps(daemon.request("GET", path)) for path in ("/v1/members", "/v1/tokens")]
        files = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
        operators = (home / "token").read_text().strip()

    assert len(secrets) == len(set(secrets)) == 3
    for secret in secrets:
        assert not [text for text in told if secret in text]
        assert not [text for text in files if os.fsencode(secret) in text]
    # The operator's stands in its own file, and there alone.
    assert len([text for text in files if os.fsencode(operators) in text]) == 1
    assert not [text for text in told if operators in text]
