from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spl.errors import InvalidBody, SplError
from spl.kernel import names
from spl.records.canonical import canonical
from spl.records.verification import records_of, verify_thread
from spl.records.verification.findings import TOLD
from spl.records.verification.judgement import ENGINE, KERNEL_TOOLS, SANDBOXED_TOOLS
from spl.records.verification.run import ANCHOR, KERNELS, RUNS
from spl.tools.registry import TOOLS, Domain
from tests.records.written import KINDS, Written, chained_anew, hashed_anew, write

Json = dict[str, Any]
Forge = Callable[[list[Json]], object]
EVE = "did:sync:user:eve"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("written"))


@pytest.fixture
def run(written: Written) -> list[Json]:
    """Give a completed sandboxed run's records, a copy to be forged."""
    return copy.deepcopy(written.runs["completed"])


def checks(records: list[Json], head: str | None = None) -> list[str]:
    """Give what was found, each by the name of its check, once."""
    found = verify_thread(records, head=head)
    assert (found.verdict == "not verified") is bool(found.findings.count)
    return sorted({finding.check for finding in found.findings})


def of(records: list[Json], kind: str, nth: int = 0) -> Json:
    """Give the nth record of a kind."""
    return [each for each in records if each["body"].get("kind") == f"core.work.{kind}.v1"][nth]


def head_of(records: list[Json]) -> str:
    head = verify_thread(records).head
    assert head is not None
    return head


# --- what is real verifies ---


@pytest.mark.claim("V2")
@pytest.mark.parametrize("kind", KINDS)
def test_a_real_run_verifies_however_it_ended_and_is_whole_by_its_head(written: Written, kind: str) -> None:
    records = written.runs[kind]
    found = verify_thread(records)
    assert [finding.text for finding in found.findings] == []
    assert (found.verdict, found.ended, found.head) == (
        "internally consistent",
        True,
        of(records, "loop_outcome")["id"],
    )
    assert found.chain + len(found.outside) == found.records == len(records)
    assert verify_thread(records, head=found.head).verdict == "whole"


def test_what_a_provider_was_paid_for_a_reply_of_no_use_is_no_finding(written: Written) -> None:
    records = written.runs["useless_reply"]
    (turn,) = [each["body"] for each in records if each["body"]["kind"] == names.TURN]
    assert of(records, "loop_outcome")["body"]["spent_usd"] == 2 * turn["cost_usd"] > 0
    assert checks(records) == []


@pytest.mark.claim("V2")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_cut_off_anywhere_fails_against_its_head(written: Written, kind: str) -> None:
    records = written.runs[kind]
    head = head_of(records)
    for length in range(len(records)):
        cut = verify_thread(records[:length], head=head)
        assert "head" in [finding.check for finding in cut.findings]
        assert cut.verdict == "not verified"
        assert not cut.ended


def test_a_run_that_goes_on_is_consistent_as_far_as_it_has_come(run: list[Json]) -> None:
    for record in run[1:]:
        # Between what is written as one there is no moment that anybody can see.
        if record["body"].get("kind") not in (names.ISOLATION, names.TOOL_VERDICT):
            assert checks(run[: run.index(record)]) == []


@pytest.mark.claim("V2")
def test_records_of_others_stand_outside_the_chain_and_are_listed(run: list[Json]) -> None:
    (outside,) = verify_thread(run).outside
    assert outside.wire() == {
        "sequence": outside.sequence, "id": outside.id, "actor": "did:sync:user:mia", "kind": None,
    }  # fmt: skip
    (said,) = [each for each in run if each["sequence"] == outside.sequence]
    said["parents"] = ["0" * 64]
    found = verify_thread(hashed_anew(run))
    assert (found.verdict, found.elsewhere) == ("internally consistent", 1)


def test_a_thread_without_a_run_verifies_and_ends_in_no_head(run: list[Json]) -> None:
    (said,) = [each for each in run if "kind" not in each["body"]]
    found = verify_thread([said])
    assert (found.verdict, found.head, found.begun, found.chain) == ("internally consistent", None, False, 0)
    assert checks([said], head=said["id"]) == ["head"]


def test_the_contract_that_is_read_here_is_the_one_that_the_kernel_writes_by() -> None:
    kernels = {names.LOOP, names.ISOLATION, names.TURN, names.TOOL_CALL, names.TOOL_VERDICT, names.TOOL_RESULT,
               names.OBSERVATION, names.OUTCOME, "core.work.note.v1"}  # fmt: skip
    assert kernels == KERNELS
    assert {names.TOOL_RESULT, names.PLAN, names.REPORT} == RUNS
    assert (names.ENGINE, names.LOOP) == (ENGINE, ANCHOR)
    assert {name for name, tool in TOOLS.items() if tool.domain is Domain.SANDBOXED} == SANDBOXED_TOOLS
    assert {name for name, tool in TOOLS.items() if tool.run is not None} == KERNEL_TOOLS


# --- what is forged is found ---


def edit(kind: str, nth: int = 0, /, **fields: object) -> Forge:
    return lambda run: of(run, kind, nth)["body"].update(fields)


def amend(kind: str, nth: int = 0, /, **fields: object) -> Forge:
    return lambda run: of(run, kind, nth).update(fields)


def drop(kind: str, nth: int = 0) -> Forge:
    return lambda run: run.remove(of(run, kind, nth))


def swap(one: str, other: str) -> Forge:
    def forge(run: list[Json]) -> None:
        first, second = run.index(of(run, one)), run.index(of(run, other))
        run[first], run[second] = run[second], run[first]

    return forge


def add(kind: str, actor: str = ENGINE, *, at: int | None = None, **body: object) -> Forge:
    def forge(run: list[Json]) -> None:
        said = {
            **run[-1],
            "actor": actor,
            "body": {"kind": f"core.work.{kind}.v1", **body},
            "judged_by": None,
        }
        run.insert(len(run) if at is None else at, {**said, "id": f"{len(run):064x}"})

    return forge


def judged(decision: str, call: int = 0) -> Forge:
    return edit("tool_verdict", call, decision=decision)


AS_THEY_STAND: dict[str, tuple[Forge, list[str]]] = {
    "a body is edited": (edit("turn", model="another"), ["id"]),
    "an outsider's body is edited": (lambda run: run[7]["body"].update(text="badly done"), ["id"]),
    "an act is edited": (amend("turn", act="KNOW"), ["id"]),
    "an id is another": (amend("plan", id="0" * 64), ["chain", "id"]),
    "a plan is dropped": (drop("plan"), ["chain"]),
    "an observation is doubled": (lambda run: run.insert(3, run[2]), ["chain", "clock", "id", "sequence", "tally"]),
    "a verdict is dropped": (drop("tool_verdict"), ["chain", "judgement"]),
    "the anchor is dropped": (lambda run: run.pop(0), ["chain", "receipt", "tally"]),
    "two are swapped": (swap("plan", "note"), ["chain", "clock", "sequence"]),
    "a parent is another": (amend("note", parents=["1" * 64]), ["chain", "id"]),
    "a parent is taken away": (amend("note", parents=[]), ["chain", "id"]),
    "a parent is added": (lambda run: of(run, "note")["parents"].append("f" * 64), ["chain", "id"]),
    "parents are out of order": (lambda run: run[7].update(parents=["f" * 64, "e" * 64]), ["id", "shape"]),
    "a clock is doubled": (amend("turn", clock=2), ["clock", "id"]),
    "a sequence goes back": (amend("turn", sequence=1), ["sequence"]),
    "a thread is another": (amend("note", thread="th_else"), ["id", "thread"]),
    "someone judged it": (amend("note", judged_by=EVE), ["judged_by"]),
}  # fmt: skip


@pytest.mark.claim("V2")
@pytest.mark.parametrize("name", AS_THEY_STAND)
def test_what_was_changed_and_left_as_it_stands_is_found(run: list[Json], name: str) -> None:
    forge, expected = AS_THEY_STAND[name]
    forge(run)
    assert checks(run) == expected


REHASHED: dict[str, tuple[Forge, list[str]]] = {
    "a result without its call": (drop("tool_call"), ["judgement"]),
    "a result without its verdict": (drop("tool_verdict"), ["judgement"]),
    "a result before its verdict": (swap("tool_verdict", "tool_result"), ["judgement"]),
    "a denied call that ran": (judged("deny"), ["judgement", "tally"]),
    "a stopped call that ran": (judged("stop"), ["judgement", "tally"]),
    "a decision that is none": (judged("maybe"), ["judgement", "tally"]),
    "an allowed call out of reach": (judged("allow", 2), ["judgement"]),
    "a tool taken out of reach": (edit("loop", forbidden_tools=["record_note"]), ["judgement"]),
    "arguments that nobody asked for": (edit("tool_call", arguments={"text": "another"}), ["judgement"]),
    "arguments that are equal to Python alone": (edit("tool_call", arguments={"text": True}), ["judgement"]),
    "a call of no reply": (edit("tool_call", call_id="c9"), ["judgement"]),
    "a result of another tool": (edit("tool_result", tool="search"), ["judgement"]),
    "a result that fulfills nothing": (edit("tool_result", fulfills="0" * 64), ["judgement", "tally"]),
    "a status that is none": (edit("tool_result", status="fine"), ["judgement", "tally"]),
    "a note of no call": (edit("note", fulfills=None), ["judgement"]),
    "a kernel's tool run by the run": (amend("tool_result", actor="did:sync:user:mia"), ["judgement", "tally"]),
    "a run's tool run by the kernel": (amend("tool_result", 1, actor=ENGINE), ["judgement"]),
    "a result by another": (amend("tool_result", 1, actor=EVE), ["author", "chain", "tally"]),
    "a turn by the run": (amend("turn", actor="did:sync:user:mia"), ["author", "chain", "judgement", "tally"]),
    "a plan by the kernel": (amend("plan", actor=ENGINE), ["author", "chain"]),
    "a kind that is none": (edit("plan", kind="core.work.wish.v1"), ["author", "chain"]),
    "a run for the kernel": (edit("loop", actor=ENGINE), ["anchor"]),
    "a transport that is none": (edit("loop", transport="by hand"), ["anchor", "receipt", "tally"]),
    "tools that are no list": (edit("loop", tools="all"), ["anchor"]),
    "a receipt of another profile": (edit("isolation", profile_digest="e" * 64), ["receipt"]),
    "a receipt of no layers": (edit("isolation", layers=[]), ["receipt"]),
    "a layer that was not confirmed": (edit("isolation", layers=[{"layer": "x", "confirmed": 1}]), ["receipt"]),
    "no receipt": (drop("isolation"), ["receipt"]),
    "a receipt that comes late": (swap("isolation", "turn"), ["receipt"]),
    "another receipt": (lambda run: run.insert(3, {**run[1], "id": "3" * 64}), ["receipt"]),
    "a receipt in process": (edit("loop", transport="in_process", profile_digest=None),
                             ["receipt", "tally"]),
    "another anchor": (lambda run: run.insert(3, {**run[0], "id": "3" * 64}), ["chain"]),
    "a plan after the outcome": (add("plan", "did:sync:user:mia"), ["chain"]),
    "another outcome": (lambda run: run.append({**run[-1], "id": "3" * 64}), ["chain"]),
    "a refusal on a run's thread": (add("refusal", at=5), ["author", "chain"]),
    "a turn that is left out": (drop("turn", 1), ["judgement", "tally"]),
    "a turn by another number": (edit("turn", 1, turn=7), ["tally"]),
    "a turn that cost more": (edit("turn", cost_usd=1), ["tally"]),
    "a turn that cost no number": (edit("turn", cost_usd="0"), ["tally"]),
    "a turn without a reply": (edit("turn", 2, reply=None), ["judgement"]),
    "an allow of a reply cut off": (lambda run: of(run, "turn")["body"]["reply"].update(stop_reason="length"),
                                    ["judgement"]),
    "other turns": (edit("loop_outcome", turns=4), ["tally"]),
    "turns that are true": (edit("loop_outcome", turns=True), ["tally"]),
    "another count of successes": (edit("loop_outcome", tool_calls_ok=3), ["tally"]),
    "another count of failures": (edit("loop_outcome", tool_calls_failed=0), ["tally"]),
    "other costs": (edit("loop_outcome", spent_usd=0.5), ["tally"]),
    "costs below nothing": (edit("loop_outcome", spent_usd=-1), ["tally"]),
    "other evidence": (edit("loop_outcome", evidence="worker"), ["tally"]),
    "another transport": (edit("loop_outcome", transport="in_process"), ["tally"]),
    "another state": (edit("loop_outcome", state="stopped"), ["tally"]),
    "no success": (edit("loop_outcome", success=1), ["tally"]),
    "an outcome that is none": (edit("loop_outcome", outcome="victory"), ["tally"]),
    "stopped by someone": (edit("loop_outcome", stopped_by=EVE), ["tally"]),
}  # fmt: skip


@pytest.mark.claim("V2")
@pytest.mark.parametrize("name", REHASHED)
def test_what_was_forged_and_chained_anew_is_found_where_it_does_not_add_up(
    run: list[Json], name: str
) -> None:
    forge, expected = REHASHED[name]
    forge(run)
    assert checks(chained_anew(run)) == expected


def doubled(kind: str, nth: int = 0) -> Forge:
    def forge(run: list[Json]) -> None:
        at = run.index(of(run, kind, nth))
        run.insert(at + 1, {**copy.deepcopy(run[at]), "id": "3" * 64})

    return forge


def observed_early(run: list[Json]) -> None:
    call = of(run, "tool_call")
    beside = {"fulfills": call["id"], "call_id": "c1", "tool": "record_note"}
    add("observation", at=run.index(call) + 1, **beside)(run)


def without_digest(run: list[Json]) -> None:
    for kind in ("loop", "isolation"):
        of(run, kind)["body"]["profile_digest"] = None


SENTENCES: dict[str, tuple[Forge, str]] = {
    "a record before the anchor": (lambda run: run.insert(0, run.pop(7)), "on the thread before the run's anchor"),
    "a transport that is none": (edit("loop", transport="by hand"), "the transport is 'by hand', which is none"),
    "no digest": (without_digest, "a sandboxed run has the digest of a profile"),
    "an observation before the verdict": (observed_early, "beside a call that has no verdict yet"),
    "a note before its verdict": (swap("note", "tool_verdict"), "has no verdict that allows it"),
    "a call without a verdict": (drop("tool_verdict", 2), "has no verdict before this"),
    "two calls of one id": (lambda run: of(run, "turn")["body"]["reply"]["calls"].append({"id": "c1"}),
                            "has the id 'c1', which is none or one twice"),
    "a call that is none": (edit("tool_call", call_id=7), "it names no call and tool"),
    "a call made twice": (doubled("tool_call"), "the call 'c1' of this reply is on record already"),
    "a decision that is none": (judged("maybe"), "its decision is 'maybe'"),
    "two verdicts": (doubled("tool_verdict"), "the call that it judges has a verdict already"),
    "a denied call that ran": (judged("deny"), "has the verdict 'deny', and only an allowed one runs"),
    "two results": (doubled("tool_result"), "the call that it is the result of has a result already"),
}  # fmt: skip


@pytest.mark.claim("V2")
@pytest.mark.parametrize("name", SENTENCES)
def test_each_thing_that_does_not_add_up_has_its_sentence(run: list[Json], name: str) -> None:
    forge, sentence = SENTENCES[name]
    forge(run)
    found = verify_thread(chained_anew(run))
    assert [finding for finding in found.findings if sentence in finding.text]


@pytest.mark.claim("V2")
def test_a_forgery_that_adds_up_is_consistent_and_fails_against_the_head(run: list[Json]) -> None:
    head = head_of(run)
    assert verify_thread(run, head=head).verdict == "whole"
    of(run, "loop")["body"]["goal"] = "another goal"
    of(run, "note")["body"]["text"] = "another note"
    of(run, "tool_result", 1)["body"]["output"] = "3"
    forged = hashed_anew(run)
    assert verify_thread(forged).verdict == "internally consistent"
    assert checks(forged, head=head) == ["head"]


def test_a_head_that_is_no_id_is_refused() -> None:
    with pytest.raises(InvalidBody, match="no record's id"):
        verify_thread([], head="HEAD")


def test_findings_beyond_the_first_are_counted(run: list[Json]) -> None:
    found = verify_thread([{**run[0], "object": "x"}] * (TOLD + 7))
    assert (len(found.findings.told), found.findings.count) == (TOLD, TOLD + 7)


# --- what is no export, or hostile ---


@pytest.mark.parametrize(
    "export",
    [
        b"", b"[]", b"null", b'"list"', b"{", b"\xff\xfe", b'{"object":"list","data":[],"has_more":false}',
        b'{"object":"list","data":{},"has_more":false}', b'{"object":"list","data":[1]}',
        b'{"object":"list","data":[{}],"has_more":1}', b'{"object":"list","data":[NaN],"has_more":false}',
        b'{"object":"list","data":[{"id":1,"id":2}],"has_more":false}', b"[" * 100_000,
        b'{"object":"list","data":[' + b"9" * 400 + b'],"has_more":false}', b'{"object":"list","data":["\\ud800"]}',
    ],
)  # fmt: skip
def test_what_is_no_listing_is_refused_in_a_sentence(export: bytes) -> None:
    with pytest.raises(InvalidBody) as found:
        records_of(export)
    assert len(found.value.message) < 300


@pytest.mark.claim("V2")
def test_a_listing_that_more_follows_is_not_whole(run: list[Json]) -> None:
    with pytest.raises(InvalidBody, match="not whole"):
        records_of(json.dumps({"object": "list", "data": run, "has_more": True}))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(("core.work.turn.v1", ENGINE, "0" * 64, "allow", 10**400, -1)),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5) | st.just("kind"), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def content(records: list[Json]) -> list[bytes]:
    """Give what a head speaks for: all that is in the ids of the run's records."""
    kept = ("parents", "thread", "actor", "act", "body", "clock", "data_type", "id")
    return [
        canonical({name: each[name] for name in kept})
        for each in records
        if str(each["body"].get("kind")).startswith("core.work.")
    ]


@pytest.mark.claim("V2")
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_a_record_is_whole_and_none_is_a_fault(written: Written, data: st.DataObject) -> None:
    records: list[Any] = copy.deepcopy(written.runs["completed"])
    original, head = content(records), head_of(records)
    record = data.draw(st.sampled_from(records))
    where = data.draw(st.sampled_from((record, record["body"])))
    if data.draw(st.booleans()):
        where[data.draw(st.sampled_from(sorted(where)))] = data.draw(VALUES)
    else:
        records[records.index(record)] = data.draw(VALUES)
    if data.draw(st.booleans()):
        # What cannot be hashed stays as it stands.
        with contextlib.suppress(SplError, TypeError, KeyError, AttributeError, ValueError):
            records = hashed_anew(records)
    found = verify_thread(records, head=head)
    if found.verdict == "whole":
        assert content(records) == original
    assert json.loads(json.dumps(found.wire()))["found"] == found.findings.count
