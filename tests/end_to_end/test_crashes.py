"""Everything that can happen to a daemon, once each, in either shape; `make soak` goes on for much longer."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.crash.faults import FAULTS
from tests.end_to_end.crash.world import DAMAGE, START, rounds
from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape

EACH = {START, DAMAGE, *FAULTS}


@pytest.mark.claim("M5", "A3")
def test_whatever_happens_nothing_acknowledged_is_lost_no_run_is_left_running_and_no_place_is_left_taken(
    shape: Shape, home: Path
) -> None:
    figures = rounds(shape, home, len(EACH), seed=1)

    assert figures.rounds.keys() == EACH
    assert figures.closed, "no daemon died with a run that was going"
    assert figures.acknowledged > 100


@pytest.mark.claim("M5")
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
