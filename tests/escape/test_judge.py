"""From an answer to a row: green with the answer of the layer that must give it, after a control, and not otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from escape import attempting, judge
from escape.attempt import Attempt, Wall
from escape.inside import calls_work
from tests.bwrap.stage import examine

if TYPE_CHECKING:
    from bwrap.plan import Plan

WALLS = (
    Wall("syscalls", "EPERM at kill"),
    Wall("pid_namespace", "ESRCH at kill"),
    Wall("separate_user", "EPERM at kill, by its uid", shape="hosted"),
    Wall("network", "only in strict", profile="strict"),
)


def _attempt(*walls: Wall, victims: tuple[str, ...] = ()) -> Attempt:
    return Attempt(
        "x.y", "tries it", lambda _: "", control=calls_work, walls=walls, escape="out", victims=victims
    )


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    import socket

    folder = tmp_path_factory.mktemp("h")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "w"))
    return attempting.plan_of("worker", examine(), str(folder / "home"), str(folder / "w"))


@pytest.mark.claim("E1")
@pytest.mark.parametrize(
    ("control", "answer", "ok"),
    [
        ("ok", "EPERM at kill", True),
        ("ok", "ESRCH at kill", False),
        ("ok", "EPERM at kill ", False),
        ("ok", "", False),
        ("ok", "ESCAPED: the victim is gone", False),
        ("EPERM at getpid", "EPERM at kill", False),
        ("it was never made", "", False),
    ],
)
def test_only_the_layers_own_answer_after_a_control_is_green(
    plan: Plan, control: str, answer: str, ok: bool
) -> None:
    row = judge.row(_attempt(*WALLS), plan, control, answer)
    assert row is not None
    assert (row.layer, row.expected, row.ok) == ("syscalls", "EPERM at kill", ok)
    assert row.wire()["class"] == "x"
    if control != "ok":
        assert control in row.got


def test_what_is_not_claimed_is_passed_over(plan: Plan) -> None:
    attempt = _attempt(*WALLS)
    hosted = plan.host.shape == "hosted"
    for lifted, layer in (
        ((), "syscalls"),
        (("syscalls",), "separate_user" if hosted else None),
        (("syscalls", "separate_user"), None),
    ):
        wall = judge.wall(attempt, plan, lifted=lifted)
        assert (wall.layer if wall else None) == layer
    strict = replace(plan, profile="strict", namespaces=plan.namespaces.model_copy(update={"pid": True}))
    wall = judge.wall(attempt, strict, lifted=("syscalls",))
    assert wall is not None
    assert wall.layer == "pid_namespace"
    assert judge.row(_attempt(Wall("pid_namespace", "x")), plan, "ok", "x") is None


def test_a_victim_that_was_touched_makes_an_escape_of_those_who_aim_at_it() -> None:
    before, after = {"process": "alive", "files": "3"}, {"process": "ended with -9", "files": "3"}
    aims = _attempt(*WALLS, victims=("process",))
    said = judge.harmed(before, after, aims)
    assert said == "ESCAPED: a victim was touched, process: alive -> ended with -9"
    assert judge.harmed(before, before, aims) is None
    assert judge.harmed(before, after, _attempt(*WALLS, victims=("files",))) is None


@pytest.mark.claim("E1")
def test_a_touched_victim_goes_before_an_answer_and_an_end_stands_for_one_that_was_never_given() -> None:
    aims = _attempt(*WALLS, victims=("process",))
    quiet, touched = {"process": "alive"}, {"process": "gone"}
    answered = {"x.y": ["ok", "EPERM at kill"]}
    assert judge.came_to(aims, answered, "ended", quiet, quiet) == ("ok", "EPERM at kill")
    assert judge.came_to(aims, answered, "ended", quiet, touched)[1].startswith(
        "ESCAPED: a victim was touched"
    )
    assert judge.came_to(aims, {"x.y": ["ok", ""]}, "killed by SIGSYS", quiet, quiet) == (
        "ok",
        "killed by SIGSYS",
    )
    assert judge.came_to(aims, {"x.y": ["EPERM at getpid", ""]}, "ended", quiet, quiet) == (
        "EPERM at getpid",
        "",
    )
    assert judge.came_to(aims, {}, "ended", quiet, quiet) == ("it was never made: ended", "")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"signal": "SIGSYS"}, "killed by SIGSYS"),
        ({"code": 12}, "ended by itself with 12"),
        (None, "ended without an exit"),
    ],
)
def test_how_a_process_ended_is_told(said: dict[str, object] | None, told: str) -> None:
    assert judge.told_end(said) == told
