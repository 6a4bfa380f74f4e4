from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from spl.kernel.names import run_thread

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_the_threads_of_runs_stand_in_the_order_they_began_in() -> None:
    threads = [run_thread(NOON + timedelta(days=days)) for days in range(0, 10_000, 50)]
    assert threads == sorted(threads)


def test_no_two_runs_have_the_same_thread_however_close_they_begin() -> None:
    threads = {run_thread(NOON) for _ in range(1000)}
    assert len(threads) == 1000
    assert all(re.fullmatch("th_run_[0-9a-f]{24}", thread) for thread in threads)
