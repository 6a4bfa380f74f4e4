"""The sweep, made under a filter that lets every call through: which calls it would catch, each let through alone."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from escape.attempt import OK
from escape.attempts.sweeps import ALIKE, NOT_SWEPT
from escape.image import numbers
from tests.bwrap.conftest import ORDINARY, SHAPES, start

if TYPE_CHECKING:
    from escape.installation import Installation

UNTOLD = {name for names in ALIKE.values() for name in names} | NOT_SWEPT.keys()


def _named(answer: str) -> dict[str, str]:
    """Give each call that a sweep's answer names, with how it answered."""
    groups = (group.partition(": ") for group in answer.split("; "))
    return {name: how for how, _, names in groups for name in names.split()}


@pytest.mark.claim("E2")
@pytest.mark.parametrize("shape", SHAPES)
def test_every_refused_call_that_is_let_through_turns_the_sweep_red_or_is_known_not_to(
    world_readable: Installation, shape: str
) -> None:
    if os.getuid() != 0:
        pytest.skip("both shapes need root")
    uid = 0 if shape == "hosted" else ORDINARY
    with start(world_readable, uid, "tests.escape.sweeping") as process:
        found = json.loads(process.communicate(timeout=60)[0])
    control, answer = found["said"]
    assert control == OK
    named = _named(answer)
    assert len(found["refused"]) > 250
    assert found["refused"].keys() - named.keys() - UNTOLD == set()
    # Nothing else is named: what is allowed, and numbers that no kernel has given to any call, are no finding.
    assert named.keys() <= found["refused"].keys()
    assert not named.keys() & NOT_SWEPT.keys()


def test_a_call_stands_in_one_place_with_one_reason() -> None:
    listed = [name for names in (*ALIKE.values(), tuple(NOT_SWEPT)) for name in names]
    assert len(listed) == len(set(listed))
    assert all(len(why) > 10 for why in (*ALIKE, *NOT_SWEPT.values()))
    if os.uname().machine == "x86_64":
        assert set(listed) <= numbers().keys()
