from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import (
    CallAlreadyRun,
    CallNotAllowed,
    CallNotInReply,
    InvalidBody,
    KindReserved,
)
from spl.kernel import names
from tests.kernel.doors import BOTH, SUM, at_the_doors, own_result, refused
from tests.kernel.instance import (
    MEMBER,
    NOTE,
    Instance,
    call,
    calls,
    chained,
    propose,
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from spl.kernel.runs import Run

# --- propose ---


@pytest.mark.claim("K7")
def test_a_call_that_is_not_in_the_last_reply_cannot_be_proposed(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await refused(here, run, "propose", {"call_id": "c1"}, CallNotInReply)
        await turn(run)
        for invented in ("c2", "", "C1", "c1 "):
            await refused(here, run, "propose", {"call_id": invented}, CallNotInReply)
            await refused(here, run, "call", {"call_id": invented}, CallNotInReply)

    at_the_doors(tmp_path, NOTE, talk=talk)


@pytest.mark.claim("K7")
def test_a_call_of_an_earlier_reply_is_gone_even_if_it_was_allowed(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        assert (await propose(run))["decision"] == "allow"
        await run.door("call", {"call_id": "c1"})
        await turn(run)
        await refused(here, run, "propose", {"call_id": "c1"}, CallNotInReply)
        await refused(here, run, "call", {"call_id": "c1"}, CallNotInReply)

    at_the_doors(tmp_path, NOTE, calls(call("record_note", "c9", text="x")), talk=talk)


@pytest.mark.claim("K7")
def test_an_id_used_again_in_a_later_reply_is_another_call_to_be_judged_anew(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        assert (await propose(run))["decision"] == "allow"
        await run.door("call", {"call_id": "c1"})
        await turn(run)
        await refused(here, run, "call", {"call_id": "c1"}, CallNotAllowed)
        assert (await propose(run))["layer"] == "grant"
        await refused(here, run, "call", {"call_id": "c1"}, CallNotAllowed)

    at_the_doors(tmp_path, NOTE, calls(call("bash", "c1", command="id")), talk=talk)


@pytest.mark.claim("K7")
def test_proposing_again_gives_the_first_verdict_and_writes_nothing(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        first = await propose(run)
        count = await here.store.count()
        assert await propose(run) == first
        await run.door("call", {"call_id": "c1"})
        count += 2
        assert await propose(run) == first
        assert await here.store.count() == count

    at_the_doors(tmp_path, NOTE, talk=talk)


@pytest.mark.claim("K7")
def test_name_and_arguments_come_from_the_reply_whatever_else_is_said(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        said = {"call_id": "c1", "name": "bash", "arguments": {"text": "forged"}}
        for door in ("propose", "call"):
            try:
                await run.door(door, said)
            except InvalidBody:
                await run.door(door, {"call_id": "c1"})
        assert (await here.bodies(run.terms.thread, names.TOOL_CALL))[0]["arguments"] == {"text": "a note"}
        assert [body["text"] for body in await here.bodies(run.terms.thread, "core.work.note.v1")] == [
            "a note"
        ]

    at_the_doors(tmp_path, NOTE, talk=talk)


@pytest.mark.claim("K2")
@pytest.mark.parametrize(
    ("reply", "asked", "layer"),
    [
        (NOTE, {}, "allow"),
        (NOTE, {"forbidden_tools": ("record_note",)}, "clamp"),
        (NOTE, {"tools": ("calculate",)}, "grant"),
        (NOTE, {"tools": ()}, "grant"),
        (calls(call("bash", command="id")), {}, "grant"),
        ({**NOTE, "stop_reason": "length"}, {}, "truncated"),
    ],
)
def test_the_verdict_and_its_record_name_the_layer(
    tmp_path: Path, reply: dict[str, Any], asked: dict[str, Any], layer: str
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        verdict = await propose(run)
        assert (verdict["layer"], verdict["decision"] == "allow") == (layer, layer == "allow")
        assert bool(verdict["text"]) is (layer != "allow")
        called, judged = (await here.on(run.terms.thread))[3:5]
        assert judged.body == {
            "kind": names.TOOL_VERDICT,
            "fulfills": called.id,
            "call_id": "c1",
            "tool": called.body["tool"],
            **{name: verdict[name] for name in ("decision", "layer", "rule", "reason")},
        }
        assert (called.kind, called.actor, judged.actor) == (names.TOOL_CALL, names.ENGINE, names.ENGINE)

    at_the_doors(tmp_path, reply, talk=talk, asked=asked)


@pytest.mark.claim("K3")
def test_the_verdict_is_on_disk_when_its_answer_comes(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await propose(run)
        # Another connection, with nothing awaited in between: it sees what is committed and no more.
        with closing(sqlite3.connect(tmp_path / "hub.db")) as other:
            rows = other.execute("SELECT body FROM records WHERE kind = ?", (names.TOOL_VERDICT,)).fetchall()
        assert [json.loads(body)["decision"] for (body,) in rows] == ["allow"]

    at_the_doors(tmp_path, NOTE, talk=talk)


@pytest.mark.claim("K3")
def test_no_answer_comes_while_the_verdict_is_being_written(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        reached, released = here.store.hold(names.TOOL_VERDICT)
        answer = asyncio.create_task(propose(run))
        await reached.wait()
        assert await here.bodies(run.terms.thread, names.TOOL_VERDICT) == []
        assert not answer.done()
        released.set()
        assert (await answer)["decision"] == "allow"

    at_the_doors(tmp_path, NOTE, talk=talk)


# --- call and record ---


def test_an_allowed_call_runs_and_its_result_fulfills_it(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        proposed = await propose(run)
        answer = await run.door("call", {"call_id": "c1"})
        assert answer == {"status": "ok", "output": "The note is recorded.", "observations": []}
        note, result = (await here.on(run.terms.thread))[-2:]
        assert note.body == {"kind": "core.work.note.v1", "text": "a note", "fulfills": proposed["fulfills"]}
        assert (result.body["fulfills"], result.body["status"]) == (proposed["fulfills"], "ok")
        assert (run.tally.ok, run.tally.failed, run.tally.ok_in_kernel) == (1, 0, 1)

    at_the_doors(tmp_path, NOTE, talk=talk)


@pytest.mark.claim("K1", "K7")
def test_a_call_without_a_verdict_does_not_run(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await refused(here, run, "call", {"call_id": "c1"}, CallNotAllowed)
        await refused(here, run, "record", own_result("c2"), CallNotAllowed)

    at_the_doors(tmp_path, BOTH, talk=talk)


@pytest.mark.claim("K1")
def test_a_denied_call_does_not_run_at_either_door(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        for call_id in ("c1", "c2"):
            assert (await propose(run, call_id))["decision"] == "deny"
        await refused(here, run, "call", {"call_id": "c1"}, CallNotAllowed)
        await refused(here, run, "record", own_result("c2"), CallNotAllowed)
        assert (run.tally.failed, run.tally.denied) == (2, 2)

    at_the_doors(tmp_path, BOTH, talk=talk, asked={"forbidden_tools": ("record_note", "calculate")})


@pytest.mark.claim("K7")
def test_a_call_runs_once(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        for call_id in ("c1", "c2"):
            await propose(run, call_id)
        await run.door("call", {"call_id": "c1"})
        await run.door("record", own_result("c2"))
        await refused(here, run, "call", {"call_id": "c1"}, CallAlreadyRun)
        await refused(here, run, "record", own_result("c2"), CallAlreadyRun)
        assert (run.tally.ok, run.tally.failed) == (2, 0)

    at_the_doors(tmp_path, BOTH, talk=talk)


@pytest.mark.claim("K7")
def test_of_calls_at_the_same_moment_one_runs(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await propose(run)
        tries = [run.door("call", {"call_id": "c1"}) for _ in range(5)]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(answer, dict) for answer in answers) == 1
        assert sum(isinstance(answer, CallAlreadyRun) for answer in answers) == 4
        assert len(await here.bodies(run.terms.thread, "core.work.note.v1")) == 1
        assert run.tally.ok == 1

    at_the_doors(tmp_path, NOTE, talk=talk)


@pytest.mark.claim("K7")
def test_of_proposals_at_the_same_moment_one_is_judged(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        answers = await asyncio.gather(*(propose(run) for _ in range(5)))
        assert [answer["decision"] for answer in answers] == ["allow"] * 5
        assert len({answer["fulfills"] for answer in answers}) == 1
        assert (await here.kinds(run.terms.thread))[3:] == ["tool_call", "tool_verdict"]

    at_the_doors(tmp_path, NOTE, talk=talk)


def test_a_tool_runs_on_its_own_side_of_the_doors_only(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        for call_id in ("c1", "c2"):
            await propose(run, call_id)
        await refused(here, run, "call", {"call_id": "c2"}, CallNotAllowed)
        await refused(here, run, "record", own_result("c1"), CallNotAllowed)
        # Having knocked at the wrong door costs neither its run.
        await run.door("call", {"call_id": "c1"})
        await run.door("record", own_result("c2"))

    at_the_doors(tmp_path, BOTH, talk=talk)


@pytest.mark.claim("K5")
def test_a_run_authors_its_own_kinds_on_its_own_thread_as_its_actor(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        proposed = await propose(run)
        for payload in (
            {"kind": names.PLAN, "body": {"steps": ["one"]}},
            own_result(),
            {"kind": names.REPORT, "body": {"text": "done", "kind": names.REPORT}},
        ):
            await run.door("record", payload)
        plan, result, report = (await here.on(run.terms.thread))[-3:]
        assert plan.body == {"kind": names.PLAN, "steps": ["one"]}
        assert (result.body["fulfills"], result.body["tool"]) == (proposed["fulfills"], "calculate")
        assert report.kind == names.REPORT
        assert {record.actor for record in (plan, result, report)} == {MEMBER}
        assert chained(await here.on(run.terms.thread))

    at_the_doors(tmp_path, SUM, talk=talk)


@pytest.mark.claim("K5")
@pytest.mark.parametrize(
    "kind",
    [
        names.LOOP,
        names.ISOLATION,
        names.TURN,
        names.TOOL_CALL,
        names.TOOL_VERDICT,
        names.OUTCOME,
        names.REFUSAL,
        names.CONFIG,
        "core.work.note.v1",
        "core.work.observation.v1",
        "core.work.plan.v2",
        "core.engine.tier.v1",
        "my.own.kind.v1",
        "",
    ],
)
def test_a_run_may_not_write_any_other_kind(tmp_path: Path, kind: str) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await propose(run)
        body = {"call_id": "c1", "status": "ok", "output": "2", "decision": "allow"}
        await refused(here, run, "record", {"kind": kind, "body": body}, KindReserved)
        forged = {"kind": names.PLAN, "body": {"kind": kind}}
        await refused(here, run, "record", forged, InvalidBody)

    at_the_doors(tmp_path, SUM, talk=talk)


@pytest.mark.claim("K5")
@pytest.mark.parametrize("field", ["thread", "actor", "act", "parents", "clock"])
def test_a_run_names_neither_thread_nor_author_of_what_it_writes(tmp_path: Path, field: str) -> None:
    async def talk(here: Instance, run: Run) -> None:
        payload = {"kind": names.PLAN, "body": {}, field: "th_other"}
        assert field in await refused(here, run, "record", payload, InvalidBody)

    at_the_doors(tmp_path, talk=talk)


def test_a_long_output_is_cut_and_says_so(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await propose(run)
        await run.door("record", own_result(output="x" * 70_000))
        (body,) = await here.bodies(run.terms.thread, names.TOOL_RESULT)
        assert (len(body["output"]), body["truncated"]) == (65536, True)

    at_the_doors(tmp_path, SUM, talk=talk)
