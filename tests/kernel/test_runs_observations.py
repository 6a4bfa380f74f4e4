"""Observations as they come through the doors: what is on record, what the model is shown, and in which batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import CallNotAllowed, StoreUnavailable
from spl.kernel import names
from spl.records.record import Draft
from tests.kernel.doors import CLEAN, at_the_doors, own_result, refused
from tests.kernel.instance import (
    MEMBER,
    MIA,
    NOTE,
    OPERATOR,
    Instance,
    call,
    calls,
    carry_out,
    chained,
    propose,
    says,
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from spl.kernel.runs import Run

DENIED = calls(call("bash", command="id"))
UNKNOWN = calls(call("launch_rocket", to="the moon"))
SUM = calls(call("calculate", expression="1+1"))
READ = calls(call("read_thread", thread="th_nothing"))


async def observed(here: Instance, run: Run) -> list[dict[str, Any]]:
    return await here.bodies(run.terms.thread, names.OBSERVATION)


async def batch(here: Instance, run: Run, since: int) -> list[str]:
    """Give the kinds written on the thread after so many of its records."""
    return (await here.kinds(run.terms.thread))[since:]


@pytest.mark.claim("O1", "O4")
def test_the_third_identical_call_is_observed_beside_its_result_in_the_very_words_the_model_is_shown(
    tmp_path: Path,
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(2):
            await carry_out(run)
        assert await observed(here, run) == []
        await turn(run)
        proposed = await propose(run)
        before = len(await here.on(run.terms.thread))
        answer = await run.door("call", {"call_id": "c1"})
        assert await batch(here, run, before) == ["note", "tool_result", "observation"]
        (body,) = await observed(here, run)
        assert body == {
            "kind": names.OBSERVATION,
            "fulfills": proposed["fulfills"],
            "call_id": "c1",
            "tool": "record_note",
            "rule": "repeated_call",
            "text": answer["observations"][0],
        }
        assert len(answer["observations"]) == 1
        # Beside the tool's own result, not in its place.
        assert (answer["status"], answer["output"]) == ("ok", "The note is recorded.")
        records = await here.on(run.terms.thread)
        assert {record.actor for record in records if record.kind == names.OBSERVATION} == {names.ENGINE}
        assert chained(records)

    at_the_doors(tmp_path, *[NOTE] * 3, talk=talk)


@pytest.mark.claim("O1", "O4", "O6")
@pytest.mark.parametrize("actor", [OPERATOR, MEMBER], ids=["in process", "sandboxed"])
def test_the_third_identical_denied_call_is_observed_in_the_batch_of_its_verdict(
    tmp_path: Path, actor: str
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(2):
            await carry_out(run)
        await turn(run)
        before = len(await here.on(run.terms.thread))
        verdict = await propose(run)
        assert await batch(here, run, before) == ["tool_call", "tool_verdict", "observation"]
        (body,) = await observed(here, run)
        assert [body["text"]] == verdict["observations"]
        assert (body["rule"], body["fulfills"]) == ("repeated_call", verdict["fulfills"])
        assert verdict["decision"] == "deny"
        # Proposing again shows the same and counts nothing.
        assert await propose(run) == verdict
        assert len(run._history) == 3

    at_the_doors(tmp_path, *[UNKNOWN] * 3, talk=talk, asked={"actor": actor})


@pytest.mark.claim("O1", "O4")
def test_the_third_identical_call_of_a_tool_that_the_loop_runs_is_observed(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        shown = []
        for _ in range(3):
            await turn(run)
            await propose(run)
            shown.append((await run.door("record", own_result()))["observations"])
        (body,) = await observed(here, run)
        assert shown == [[], [], [body["text"]]]
        assert (await here.kinds(run.terms.thread))[-2:] == ["tool_result", "observation"]
        records = await here.on(run.terms.thread)
        assert records[-1].actor == names.ENGINE
        assert chained(records)

    at_the_doors(tmp_path, *[SUM] * 3, talk=talk)


@pytest.mark.claim("O1")
def test_other_arguments_or_another_tool_in_between_begin_the_count_anew(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(6):
            await carry_out(run)
        assert await observed(here, run) == []

    other = calls(call("record_note", text="another"))
    script = (NOTE, NOTE, other, NOTE, NOTE, DENIED)
    at_the_doors(tmp_path, *script, talk=talk, asked={"actor": OPERATOR, "tools": ("record_note",)})


@pytest.mark.claim("O1")
def test_arguments_in_another_order_are_the_same_arguments_however_long(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(3):
            await turn(run)
            await propose(run)
        assert [body["rule"] for body in await observed(here, run)] == ["repeated_call"]

    long = "x" * 9000
    made: list[dict[str, Any]] = [{"a": long, "b": 1}, {"b": 1, "a": long}, {"b": 1.0, "a": long}]
    at_the_doors(tmp_path, *[calls(call("bash", **each)) for each in made], talk=talk)


@pytest.mark.claim("O1")
def test_long_arguments_that_differ_in_one_character_are_not_the_same(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(3):
            await carry_out(run)
        assert await observed(here, run) == []

    made = [calls(call("bash", command="x" * 9000 + end)) for end in "abc"]
    at_the_doors(tmp_path, *made, talk=talk)


@pytest.mark.claim("O2", "O4")
def test_a_second_read_of_a_thread_that_comes_back_empty_is_observed_instead_of_told_again(
    tmp_path: Path,
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await carry_out(run)
        assert await observed(here, run) == []
        await turn(run)
        await propose(run)
        answer = await run.door("call", {"call_id": "c1"})
        (body,) = await observed(here, run)
        assert (body["rule"], [body["text"]]) == ("empty_reread", answer["observations"])
        assert "You have already looked" in body["text"]
        assert answer["output"] == "(nothing that this run's actor may read)"

    since = calls(call("read_thread", thread="th_nothing", since=3))
    at_the_doors(tmp_path, READ, since, talk=talk)


@pytest.mark.claim("O2")
def test_a_reading_on_that_finds_nothing_new_is_observed_though_the_first_read_found_something(
    tmp_path: Path,
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await here.kernel.write(MIA, Draft("th_Hers", MEMBER, "KNOW", {"said": "something"}))
        await carry_out(run)
        await carry_out(run)
        results = await here.bodies(run.terms.thread, names.TOOL_RESULT)
        assert "something" in results[0]["output"]
        assert "something" not in results[1]["output"]
        (body,) = await observed(here, run)
        assert (body["rule"], body["call_id"]) == ("empty_reread", "c2")
        assert "you have read the thread 'th_Hers' 2 times" in body["text"]

    first = calls(call("read_thread", thread="th_Hers"))
    on = calls(call("read_thread", "c2", thread="th_Hers", since=9))
    at_the_doors(tmp_path, first, on, talk=talk)


@pytest.mark.claim("O3", "O4")
def test_a_call_on_a_reply_that_was_cut_off_is_observed_and_never_run(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        verdict = await propose(run)
        assert (verdict["decision"], verdict["layer"]) == ("deny", "truncated")
        (body,) = await observed(here, run)
        assert (body["rule"], [body["text"]]) == ("cut_off_call", verdict["observations"])
        await refused(here, run, "call", {"call_id": "c1"}, CallNotAllowed)
        assert await here.kinds(run.terms.thread) == [
            *("loop", "isolation", "turn", "tool_call", "tool_verdict", "observation")
        ]

    at_the_doors(tmp_path, {**NOTE, "stop_reason": "length"}, talk=talk)


@pytest.mark.claim("O3", "K6")
def test_no_call_of_a_reply_that_was_cut_off_is_run_however_whole_it_looks(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        for made in ("c1", "c2", "c3"):
            verdict = await propose(run, made)
            assert (verdict["decision"], verdict["layer"]) == ("deny", "truncated")
            assert len(verdict["observations"]) == 1
        for door, payload in (("call", {"call_id": "c1"}), ("record", own_result("c2"))):
            await refused(here, run, door, payload, CallNotAllowed)
        said = [(body["call_id"], body["rule"]) for body in await observed(here, run)]
        assert said == [("c1", "cut_off_call"), ("c2", "cut_off_call"), ("c3", "cut_off_call")]
        await turn(run)
        await here.kernel.finish(run, CLEAN)
        (body,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (body["outcome"], body["tool_calls_ok"], body["tool_calls_failed"]) == ("blocked", 0, 3)

    made = (
        call("record_note", "c1", text="whole"),
        call("calculate", "c2", expression="1+1"),
        call("launch_rocket", "c3"),
    )
    at_the_doors(tmp_path, {**calls(*made), "stop_reason": "length"}, says("Done."), talk=talk)


@pytest.mark.claim("O4", "O5")
def test_what_two_rules_say_of_one_call_stands_in_two_records_and_both_are_shown(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(2):
            await carry_out(run)
        await turn(run)
        verdict = await propose(run)
        *_, first, second = await observed(here, run)
        assert [first["text"], second["text"]] == verdict["observations"]
        assert [first["rule"], second["rule"]] == ["cut_off_call", "repeated_call"]

    at_the_doors(tmp_path, *[{**NOTE, "stop_reason": "length"}] * 3, talk=talk)


# --- what cannot be written is not counted ---


@pytest.mark.claim("O1", "K3")
def test_a_denial_that_could_not_be_written_is_not_counted_as_a_call(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(2):
            await carry_out(run)
        await turn(run)
        here.store.full_for = names.OBSERVATION
        # The verdict is in the observation's batch: neither is written without the other.
        for _ in range(4):
            assert (await propose(run))["layer"] == "log"
        assert (len(run._history), run.tally.failed, run.tally.denied) == (2, 2, 2)
        assert run.end is None
        here.store.full_for = None
        verdict = await propose(run)
        assert len(verdict["observations"]) == 1
        assert "3 times in a row" in verdict["observations"][0]
        assert (len(run._history), run.tally.failed) == (3, 3)

    at_the_doors(tmp_path, *[DENIED] * 3, talk=talk)


@pytest.mark.claim("K6", "O1")
@pytest.mark.parametrize("side", ["kernel", "loop"])
def test_a_result_that_could_not_be_written_is_no_result_and_no_call_and_the_run_does_not_go_on(
    tmp_path: Path, side: str
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await propose(run)
        here.store.full_for = names.TOOL_RESULT
        door, payload = ("call", {"call_id": "c1"}) if side == "kernel" else ("record", own_result())
        with pytest.raises(StoreUnavailable):
            await run.door(door, payload)
        assert (run.tally.ok, run.tally.failed, len(run._history)) == (0, 0, 0)
        here.store.full_for = None
        assert await turn(run) == {"end": "failed"}
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["tool_calls_ok"]) == ("failed", 0)
        assert await here.bodies(run.terms.thread, "core.work.note.v1") == []

    at_the_doors(tmp_path, NOTE if side == "kernel" else SUM, says("All is done!"), talk=talk)


# --- the halt ---


@pytest.mark.claim("O1", "K6")
@pytest.mark.parametrize("reply", [DENIED, calls(call("record_note", text=7))], ids=["denied", "failed"])
def test_the_fifth_identical_failure_ends_the_run(tmp_path: Path, reply: dict[str, Any]) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(4):
            await carry_out(run)
            assert run.end is None
        await carry_out(run)
        assert run.ending.is_set()
        assert await turn(run) == {"end": "guardrail_halt"}
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["state"]) == ("guardrail_halt", "stopped_short")
        assert (outcome["turns"], outcome["tool_calls_failed"]) == (5, 5)
        assert "failed 5 times in a row" in outcome["summary"]
        # From the third on it was told.
        texts = [body["text"] for body in await observed(here, run)]
        assert [text.split(" times")[0][-1] for text in texts] == ["3", "4", "5"]

    at_the_doors(tmp_path, *[reply] * 7, talk=talk, asked={"actor": OPERATOR, "tools": ("record_note",)})


@pytest.mark.claim("O1")
@pytest.mark.parametrize(
    ("in_replies", "halts"),
    [((5,), False), ((1, 4), False), ((2, 3), False), ((3, 2), True), ((4, 1), True), ((5, 1), True)],
)
def test_failures_of_replies_that_the_model_gave_before_it_was_told_do_not_end_the_run(
    tmp_path: Path, in_replies: tuple[int, ...], halts: bool
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in in_replies:
            await carry_out(run)
        assert (run.end is not None) is halts
        assert ("end" in await turn(run)) is halts

    replies = [calls(*[call("bash", f"c{each}", command="id") for each in range(n)]) for n in in_replies]
    at_the_doors(tmp_path, *replies, says("Done."), talk=talk)


@pytest.mark.claim("O1")
@pytest.mark.parametrize(
    "middle", [NOTE, calls(call("bash", command="ls")), calls(call("no_tool", command="id"))]
)
def test_a_call_that_succeeds_or_differs_among_the_failures_keeps_the_run_going(
    tmp_path: Path, middle: dict[str, Any]
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(9):
            await carry_out(run)
        assert run.end is None
        assert "reply" in await turn(run)

    script = (*[DENIED] * 4, middle, *[DENIED] * 4, says("Done."))
    at_the_doors(tmp_path, *script, talk=talk, asked={"actor": OPERATOR, "tools": ("record_note",)})


@pytest.mark.claim("O1")
def test_the_same_call_that_succeeds_is_told_of_and_never_halted(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(8):
            await carry_out(run)
        assert run.end is None
        assert len(await observed(here, run)) == 6

    at_the_doors(tmp_path, *[NOTE] * 8, talk=talk, asked={"actor": OPERATOR})


@pytest.mark.claim("O1", "T7")
def test_what_is_left_of_a_reply_after_the_halt_is_answered_with_a_stop(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(4):
            await carry_out(run)
        await turn(run)
        assert (await propose(run, "c1"))["decision"] == "deny"
        last = await propose(run, "c2")
        assert (last["decision"], last["layer"]) == ("stop", "stop")
        assert "failed 5 times in a row" in last["reason"]
        assert run.end is not None
        assert run.end.outcome == "guardrail_halt"

    both = calls(call("bash", "c1", command="id"), call("record_note", "c2", text="x"))
    at_the_doors(tmp_path, *[DENIED] * 4, both, talk=talk, asked={"tools": ("record_note",)})
