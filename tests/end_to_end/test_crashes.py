"""Some of what can happen to a daemon, in each shape; `make soak` does the rest, and goes on for much longer."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.crash.world import DAMAGE, START, rounds
from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape

FEW = {
    "same-user": (START, "killed around a commit", "the disk full", "the clock jumps"),
    "hosted": (DAMAGE, "killed at an answer", "workers killed", "the power cut"),
}
"""Of each class of faults one, in either shape: at a start, in the middle, of the workers or the disk."""


@pytest.mark.claim("M5", "A3")
def test_whatever_happens_nothing_acknowledged_is_lost_no_run_is_left_running_and_no_place_is_left_taken(
    shape: Shape, home: Path
) -> None:
    faults = FEW[shape.name]
    figures = rounds(shape, home, len(faults), seed=1, faults=faults)

    assert figures.rounds.keys() == {*faults}
    assert figures.closed, "no daemon died with a run that was going"
    assert figures.acknowledged > 20


@pytest.mark.claim("M5")
@pytest.mark.one_shape
def test_a_daemon_that_is_killed_at_once_by_whom_it_has_just_answered_has_the_record(
    shape: Shape, home: Path
) -> None:
    draft = {"thread": "th_a", "actor": "did:sync:user:ana", "act": "KNOW", "body": {"said": "this"}}
    with shape.daemon(home) as daemon:
        client = daemon.client
        record = client.request("POST", "/v1/records", draft)
        os.kill(daemon.process.pid, signal.SIGKILL)
        daemon.process.wait(SECONDS)

    with shape.daemon(home) as daemon:
        assert daemon.request("GET", f"/v1/records/{record['id']}") == record
