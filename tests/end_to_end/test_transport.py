"""Which transport a run takes, and that what a run is told is the same on both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import RunActorNotCovered
from tests.end_to_end import scripts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape
    from tests.end_to_end.model import Model

MEMBER = "did:sync:user:somebody"


def transport_of(daemon: Daemon, actor: str | None = None) -> str:
    row = daemon.start(**({"actor": actor} if actor else {}))
    ended = daemon.finish(row["thread"])
    assert ended["state"] == "done"
    (anchor,) = daemon.bodies(row["thread"], "core.work.loop.v1")
    (outcome,) = daemon.bodies(row["thread"], "core.work.loop_outcome.v1")
    assert anchor["transport"] == outcome["transport"] == ended["transport"]
    return str(ended["transport"])


def in_force(daemon: Daemon) -> tuple[str, str]:
    work_loop = daemon.request("GET", "/v1/engine/health")["work_loop"]
    return work_loop["transport"], work_loop["member_transport"]


@pytest.mark.claim("T1", "T2", "T4")
@pytest.mark.one_shape
def test_each_key_moves_its_own_runs_in_either_direction_without_a_restart(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        assert (transport_of(daemon), transport_of(daemon, MEMBER)) == ("in_process", "sandboxed")
        daemon.set_transport("sandboxed")
        assert in_force(daemon) == ("sandboxed", "sandboxed")
        assert transport_of(daemon) == "sandboxed"
        daemon.set_transport("in_process")
        daemon.set_transport("in_process", members=True)
        assert in_force(daemon) == ("in_process", "in_process")
        assert (transport_of(daemon), transport_of(daemon, MEMBER)) == ("in_process", "in_process")
        daemon.set_transport("sandboxed", members=True)
        assert transport_of(daemon, MEMBER) == "sandboxed"


@pytest.mark.claim("T3", "T4")
def test_a_typo_moves_nobody(hosted: Shape, home: Path) -> None:
    with hosted.daemon(home) as daemon:
        # Away from the defaults first, so that it is the typo that is read, and not passed over.
        daemon.set_transport("sandboxed")
        daemon.set_transport("in_process", members=True)
        daemon.set_transport("sandboxd")
        daemon.set_transport("inprocess", members=True)

        assert in_force(daemon) == ("in_process", "sandboxed")
        assert (transport_of(daemon), transport_of(daemon, MEMBER)) == ("in_process", "sandboxed")


@pytest.mark.claim("T1", "T6")
@pytest.mark.one_shape
def test_a_run_in_flight_keeps_its_transport_when_the_value_changes_in_either_direction(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        began = []
        for transport, flipped in (("in_process", "sandboxed"), ("sandboxed", "in_process")):
            for members in (False, True):
                daemon.set_transport(transport, members=members)
                row = daemon.start("Go on.", **({"actor": MEMBER + transport} if members else {}))
                began.append((row["thread"], transport, model.asked()))
                daemon.set_transport(flipped, members=members)
        for thread, transport, asked in began:
            assert daemon.request("GET", f"/v1/runs/{thread}")["transport"] == transport
            asked.answer(scripts.calling(scripts.NOTE))
            model.asked().answer(scripts.saying("Done."))
            row = daemon.finish(thread)
            (outcome,) = daemon.bodies(thread, "core.work.loop_outcome.v1")
            assert (row["transport"], outcome["transport"], row["state"]) == (transport, transport, "done")
            assert len(daemon.bodies(thread, "core.work.isolation.v1")) == (transport == "sandboxed")


@pytest.mark.claim("T5")
@pytest.mark.one_shape
def test_a_preview_names_the_transport_a_start_would_take_and_starts_nothing(
    shape: Shape, home: Path
) -> None:
    def previewed(daemon: Daemon, **fields: str) -> Any:
        before = daemon.request("GET", "/v1/engine/health")["records"]
        said = daemon.request("POST", "/v1/work/loop/preview", {"goal": "Whatever.", **fields})
        assert daemon.request("GET", "/v1/engine/health")["records"] == before
        assert (said["would_start"], said["refusals"]) == (True, [])
        return said["transport"]

    with shape.daemon(home) as daemon:
        # One start a day: no number of previews uses it up.
        daemon.configure(kind="core.engine.tier.v1", tier="trial", daily_runs=1)
        for transport, members in (("sandboxed", "sandboxed"), ("in_process", "in_process")):
            assert (previewed(daemon), previewed(daemon, actor=MEMBER)) == in_force(daemon)
            daemon.set_transport(transport)
            daemon.set_transport(members, members=True)
        assert previewed(daemon, actor=MEMBER) == "in_process"
        assert daemon.request("GET", "/v1/runs")["data"] == []
        assert "running" not in "".join(daemon.log.lines)


@pytest.mark.claim("T5")
def test_a_preview_names_every_refusal_that_a_start_would_meet_and_not_the_first_alone(
    hosted: Shape, home: Path
) -> None:
    with hosted.daemon(home) as daemon:
        daemon.configure(topic="admission_capacity", capacity=0)
        daemon.configure(kind="core.engine.tier.v1", tier="trial", concurrent_runs=0, daily_runs=0)
        said = daemon.request("POST", "/v1/work/loop/preview", {"goal": "Whatever.", "actor": MEMBER})
        assert said["would_start"] is False
        assert [each["code"] for each in said["refusals"]] == [
            "WORK_CONCURRENCY_EXCEEDED",
            "WORK_DAILY_COUNT_EXCEEDED",
            "ADMISSION_CEILING",
        ]


@pytest.mark.claim("T2")
def test_what_was_written_is_in_force_after_a_restart_too(hosted: Shape, home: Path) -> None:
    with hosted.daemon(home) as daemon:
        daemon.set_transport("sandboxed")
        assert daemon.stop() == 0
    with hosted.daemon(home) as daemon:
        assert in_force(daemon) == ("sandboxed", "sandboxed")


def test_an_actor_that_is_nobody_cannot_have_a_run(hosted: Shape, home: Path) -> None:
    with hosted.daemon(home) as daemon, pytest.raises(Exception, match="neither did:sync:user") as refused:
        daemon.start(actor="did:sync:system:engine")
    assert not isinstance(refused.value, RunActorNotCovered)


@pytest.mark.claim("K1", "K3", "K6")
@pytest.mark.parametrize("transport", ["in_process", "sandboxed"])
@pytest.mark.one_shape
def test_every_call_has_its_verdict_before_its_result_on_both_transports(
    shape: Shape, home: Path, transport: str
) -> None:
    provider = scripts.write(
        home.parent / "script",
        scripts.calling(scripts.NOTE, scripts.SUM),
        scripts.calling(scripts.UNKNOWN),
        scripts.calling(scripts.BAD_SUM),
        scripts.saying("Done."),
    )
    with shape.daemon(home, "--provider", provider) as daemon:
        daemon.set_transport(transport)
        row = daemon.finish(daemon.start("Whatever.")["thread"])
        steps = [
            (body["kind"].split(".")[2], body.get("tool"), body.get("decision") or body.get("status"))
            for body in daemon.bodies(row["thread"])
            if body["kind"].split(".")[2] in ("tool_call", "tool_verdict", "tool_result")
        ]

    assert steps == [
        ("tool_call", "record_note", None),
        ("tool_verdict", "record_note", "allow"),
        ("tool_result", "record_note", "ok"),
        ("tool_call", "calculate", None),
        ("tool_verdict", "calculate", "allow"),
        ("tool_result", "calculate", "ok"),
        ("tool_call", "launch_rocket", None),
        ("tool_verdict", "launch_rocket", "deny"),
        ("tool_call", "calculate", None),
        ("tool_verdict", "calculate", "allow"),
        ("tool_result", "calculate", "error"),
    ]
    assert (row["state"], row["tool_calls_ok"], row["tool_calls_failed"]) == ("done", 2, 2)


@pytest.mark.claim("K6")
@pytest.mark.parametrize(
    ("calls", "outcome", "evidence"),
    [
        ((scripts.SUM,), "completed", "worker"),
        ((scripts.SUM, scripts.NOTE), "completed", "kernel"),
        ((scripts.BAD_SUM, scripts.BAD_SUM), "failed", "worker"),
        ((scripts.UNKNOWN,), "blocked", "worker"),
    ],
)
def test_a_sandboxed_runs_success_is_checked_against_what_its_tools_did(
    hosted: Shape, home: Path, calls: tuple[dict[str, object], ...], outcome: str, evidence: str
) -> None:
    provider = scripts.write(home.parent / "script", scripts.calling(*calls), scripts.saying("I did it all."))
    with hosted.daemon(home, "--provider", provider) as daemon:
        daemon.set_transport("sandboxed")
        row = daemon.finish(daemon.start("Whatever.")["thread"])
        (written,) = daemon.bodies(row["thread"], "core.work.loop_outcome.v1")

    assert (row["outcome"], written["evidence"]) == (outcome, evidence)
    assert written["success"] is (outcome == "completed")
    assert written["exit"] == {"code": 0}
