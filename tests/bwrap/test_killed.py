"""SIGKILL of the daemon, at any moment of a launch."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.bwrap.conftest import ORDINARY, SHAPES, start
from tests.delegated import delegated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escape.installation import Installation

SEED = 20261129
PID_NAMESPACE = "[namespaces]\npid = true\n"


def kill(
    copy: Installation,
    shape: str,
    moment: str,
    rounds: int = 1,
    extra: str = "",
    prefix: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Kill daemons of a shape; gives what was left of each. A prefix is root's, and becomes the shape's user."""
    if os.getuid() != 0 and shape == "hosted":
        pytest.skip("the hosted shape needs root")
    uid = ORDINARY if shape == "same-user" and os.getuid() == 0 and not prefix else os.getuid()
    said = (moment, str(SEED), str(rounds), extra)
    with start(copy, uid, "tests.bwrap.killer", *said, prefix=prefix) as killer:
        answer, _ = killer.communicate()
    assert killer.returncode == 0
    told: list[dict[str, Any]] = json.loads(answer)
    assert len(told) == rounds
    return told


@pytest.mark.claim("I13")
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_outlives_a_daemon_killed_at_a_moment_by_chance(
    world_readable: Installation, shape: str
) -> None:
    told = kill(world_readable, shape, "chance", 40)

    assert [each for each in told if each["left"] or each["for_ever"]] == []
    # They came to different points: a launch that always failed would leave nothing either.
    assert {"started", "held"} <= {each["reached"] for each in told}


@pytest.mark.claim("I13")
@pytest.mark.parametrize("shape", SHAPES)
def test_with_a_pid_namespace_what_may_outlive_it_is_gone_after_the_next_ones_sweep(
    world_readable: Installation, shape: str
) -> None:
    told = kill(world_readable, shape, "chance", 16, PID_NAMESPACE)

    assert [each for each in told if each["for_ever"]] == []


@pytest.mark.claim("I13")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_child_that_waits_for_bubblewrap_dies_with_the_daemon_too(
    world_readable: Installation, shape: str
) -> None:
    (told,) = kill(world_readable, shape, "forked")

    assert (told["reached"], told["left"], told["for_ever"]) == ("there", 0, False)


@pytest.mark.soak
@pytest.mark.claim("I13")
@pytest.mark.parametrize("extra", ["", PID_NAMESPACE], ids=["worker", "pid namespace"])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_group_of_a_daemon_killed_at_a_moment_by_chance_outlives_the_next_ones_sweep(
    world_readable: Installation, shape: str, extra: str
) -> None:
    uid = ORDINARY if shape == "same-user" else 0
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    with delegated(uid) as root:
        told = kill(world_readable, shape, "chance", 40, extra, [*root.prefix(), *become])

        assert [each for each in told if each["groups"] or each["for_ever"]] == []
        assert {"started", "held"} <= {each["reached"] for each in told}
        assert root.groups() == ["daemon"]


@pytest.mark.claim("I13")
@pytest.mark.parametrize("extra", ["", PID_NAMESPACE], ids=["worker", "pid namespace"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_bubblewrap_that_starts_after_its_daemon_died_leaves_nothing(
    world_readable: Installation, shape: str, extra: str
) -> None:
    (told,) = kill(world_readable, shape, "spawned", extra=extra)

    assert (told["reached"], told["left"], told["for_ever"]) == ("there", 0, False)
