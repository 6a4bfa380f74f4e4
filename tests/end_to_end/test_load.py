"""More runs than there are places, from many members at once, on a live daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.end_to_end import leaks
from tests.end_to_end.load import load
from tests.end_to_end.test_admission import GIB, places, planted, started

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape
    from tests.end_to_end.load import Figures

pytestmark = pytest.mark.one_shape

CAPACITY, MEMBERS, RUNS = 8, 12, 50
ROOM = 64 * 1024
"""KiB, what the daemon may come to hold beside what it held before."""


@pytest.mark.claim("A1", "A2", "A3")
def test_fifty_runs_of_twelve_members_all_get_through_eight_places(shape: Shape, home: Path) -> None:
    prefix = planted(shape, home, 64 * GIB)
    # What stands by is started as well, and none of a run's.
    environment = {**leaks.SETTING, "SPL_STANDBY_WORKERS": "0"}
    with shape.as_root_first().daemon(home, prefix=prefix, **environment) as daemon:
        before = started(home)
        figures = load(daemon, MEMBERS, RUNS, CAPACITY)

        check(figures, RUNS)
        assert places(daemon) == (CAPACITY, CAPACITY)
        # One more than theirs was sandboxed, to begin with.
        assert started(home) == before + RUNS + 1
        pages = daemon.client.pages("/v1/threads")
        threads = {row["thread"] for page in pages for row in page["data"]}
        runs = {thread for thread in threads if thread.startswith("th_run_")}
        assert runs == {row["thread"] for row in figures.rows} | {*figures.own}
        assert "th_engine_isolation" not in threads


def check(figures: Figures, runs: int) -> None:
    """Check what holds of any load."""
    assert figures.unasked == []
    full, enough = (503, "ADMISSION_CEILING"), (429, "WORK_CONCURRENCY_EXCEEDED")
    assert {(201, None), full} <= {*figures.answers} <= {(201, None), full, enough}
    ended = [(row["state"], row["outcome"], row["tool_calls_ok"]) for row in figures.rows]
    assert ended == [("done", "completed", 1)] * runs
    assert figures.leaked() == {}
    assert 0 < max(look.workers for look in figures.looks) <= figures.capacity
    assert max(look.memory for look in figures.looks) < figures.memory[0] + ROOM
