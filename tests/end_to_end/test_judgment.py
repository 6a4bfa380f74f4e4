"""What the kernel judges and notices of a run, on both transports, read back as the manual reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.end_to_end import scripts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape
    from tests.end_to_end.model import Model

pytestmark = pytest.mark.one_shape

Json = dict[str, Any]

TRANSPORTS = ("in_process", "sandboxed")

# The two readings of the manual, word for word.
OBSERVATIONS = r"""
spl thread records $THREAD -o json | jq -r '
  .data[] | select(.body.kind == "core.work.observation.v1") |
  "\(.body.rule): \(.body.text)"'
"""
WALK = r"""
spl thread records $THREAD -o json | jq -r '
  .data[] | select(.body.kind | test("tool_(call|verdict|result)")) |
  "\(.sequence) \(.body.kind) \(.body.tool // .body.fulfills) \(.body.decision // .body.status // "")"'
"""

REACH = ["record_note", "read_thread", "calculate"]

STUBBORN = (
    scripts.calling(scripts.SUM),
    *[scripts.calling(scripts.NOTE)] * 3,
    *[scripts.calling(scripts.READ)] * 2,
    {"calls": [scripts.SUM], "stop_reason": "length"},
    scripts.calling(scripts.UNKNOWN),
    scripts.saying("Done."),
)
NOTICED = {
    "repeated_call": (
        "You have called 'record_note' with the same arguments 3 times in a row. Change something, or stop."
    ),
    "empty_reread": (
        "You have already looked: you have read the thread 'th_of_nobody' 2 times in this run, "
        "and this time nothing came back. Go on with what you know, or stop."
    ),
    "cut_off_call": (
        "Your reply hit the output limit, so this call was not run: cut off mid-write, its "
        "arguments may be incomplete even where they parse. Make the call anew in a shorter reply."
    ),
}
WALKED = [
    line
    for tool, verdict, result in (
        ("calculate", "allow", "ok"),
        *[("record_note", "allow", "ok")] * 3,
        *[("read_thread", "allow", "ok")] * 2,
        ("calculate", "deny", None),
        ("launch_rocket", "deny", None),
    )
    for line in (
        f"core.work.tool_call.v1 {tool} ",
        f"core.work.tool_verdict.v1 {tool} {verdict}",
        *([f"core.work.tool_result.v1 {tool} {result}"] if result else []),
    )
]


def read(shape: Shape, home: Path, thread: str, reading: str) -> list[str]:
    """Give the lines of one of the manual's readings of a thread."""
    done = shape.shell(home, reading, THREAD=thread)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def run(daemon: Daemon, transport: str, **fields: Any) -> Json:
    """Have a run of the operator's on a transport; gives its row."""
    daemon.set_transport(transport)
    row = daemon.finish(daemon.start("Whatever.", **fields)["thread"])
    assert row["transport"] == transport
    return row


def alike(records: list[Json]) -> list[Json]:
    """Give a run's records without what must differ: the transport and what comes with it, names and times.

    An id stands as the place of its record; each record names the one before it as its parent.
    """
    kept = [each for each in records if each["body"]["kind"] != "core.work.isolation.v1"]
    assert [each["parents"] for each in records] == [[], *([each["id"]] for each in records[:-1])]
    told = json.dumps([{"actor": each["actor"], "act": each["act"], **each["body"]} for each in kept])
    for place, each in enumerate(kept):
        told = told.replace(each["id"], f"record {place}")
    different = ("transport", "profile", "profile_digest", "exit", "started_at", "ended_at")
    return [
        {name: value for name, value in each.items() if name not in different} for each in json.loads(told)
    ]


@pytest.mark.claim("K1", "O1", "O2", "O3", "O4", "O6")
def test_a_run_reads_as_the_manual_says_and_is_the_same_on_both_transports(shape: Shape, home: Path) -> None:
    provider = scripts.write(home.parent / "script", *STUBBORN)
    kept = []
    with shape.daemon(home, "--provider", provider) as daemon:
        for transport in TRANSPORTS:
            row = run(daemon, transport, tools=REACH, budget_usd=1)
            walked = [line.split(" ", 1) for line in read(shape, home, row["thread"], WALK)]
            assert [line for _, line in walked] == WALKED
            sequences = [int(sequence) for sequence, _ in walked]
            assert sequences == sorted(sequences)
            assert read(shape, home, row["thread"], OBSERVATIONS) == [
                f"{rule}: {text}" for rule, text in NOTICED.items()
            ]
            assert (row["state"], row["tool_calls_ok"], row["tool_calls_failed"]) == ("done", 6, 2)
            kept.append(daemon.request("GET", f"/v1/threads/{row['thread']}/records", limit=1000)["data"])

    in_process, sandboxed = map(alike, kept)
    assert in_process == sandboxed
    assert [len(each) for each in kept] == [len(in_process), len(in_process) + 1]


@pytest.mark.claim("O1", "O2", "O3", "O4", "O6")
def test_the_model_is_shown_each_observation_beside_the_calls_own_result(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        for transport in TRANSPORTS:
            daemon.set_transport(transport)
            thread = daemon.start("Whatever.")["thread"]
            told = {rule: f"\n[observation {thread[-8:]}] {text}" for rule, text in NOTICED.items()}
            shown = []
            for reply in STUBBORN[1:7]:
                asked = model.asked()
                shown.append(asked.shown)
                asked.answer(reply)
            asked = model.asked()
            shown.append(asked.shown)
            asked.answer(scripts.saying("Done."))
            daemon.finish(thread)
            assert shown[1:6] == [
                *["The note is recorded."] * 2,
                "The note is recorded." + told["repeated_call"],
                "(nothing that this run's actor may read)",
                "(nothing that this run's actor may read)" + told["empty_reread"],
            ]
            assert shown[6].startswith("This call was not run (truncated): ")
            assert shown[6].endswith(told["cut_off_call"])


@pytest.mark.claim("K2")
def test_the_first_layer_that_objects_answers_and_is_named(shape: Shape, home: Path) -> None:
    calls = [scripts.UNKNOWN, scripts.READ, scripts.SUM, scripts.NOTE]
    provider = scripts.write(home.parent / "script", scripts.calling(*calls), scripts.saying("Done."))
    with shape.daemon(home, "--provider", provider) as daemon:
        # It objects to every call but the last: the layers before it answer all the same.
        expression = 'resource != "tool:record_note"'
        daemon.configure(
            topic="permission_rule", name="notes-only", action="deny", priority=1, expression=expression
        )
        for transport in TRANSPORTS:
            row = run(daemon, transport, forbidden_tools=["read_thread"])
            verdicts = daemon.bodies(row["thread"], "core.work.tool_verdict.v1")
            assert [(each["tool"], each["decision"], each["layer"], each["rule"]) for each in verdicts] == [
                ("launch_rocket", "deny", "grant", None),
                ("read_thread", "deny", "clamp", None),
                ("calculate", "deny", "rule", "notes-only"),
                ("record_note", "allow", "allow", None),
            ]
