"""docs/performance.md shows every row that is measured, and its marks are there for the next."""

from __future__ import annotations

from typing import Any

import pytest

from spl.bench.rows import GOALS, Measured, row
from tests import performance_page

DOCUMENT: dict[str, Any] = {
    "command": "spl bench",
    "host": {
        "spl": "0.1.0", "shape": "hosted", "cores": 2, "processor": "a processor", "memory_bytes": 2**31,
        "kernel": "6.1.0-13-amd64", "machine": "x86_64", "python": "3.11.2", "bubblewrap": "0.8.0",
        "file_system": "ext4", "load": [0.1, 2.0],
    },
    "rows": [
        row("cold-start", GOALS["cold-start"], Measured(20, 40, 10, 25), many="10^6"),
        row("warm-start", GOALS["warm-start"], None, many="10^6"),
    ],
    "phases": [{"name": "ready", "what": "it starts", "value": 1.5, "unit": "ms"}],
    "carries": {"workers": 7, "worker_bytes_at_most": 2**29, "runs_per_second": 12.5},
}  # fmt: skip


def test_the_page_shows_every_row() -> None:
    page = performance_page.PAGE.read_text(encoding="utf-8")
    shown = page.partition(performance_page.BEGIN)[2].partition(performance_page.END)[0]
    assert [name for name in GOALS if f"| `{name}` |" not in shown] == [], "run 'make bench' (as root)"


def test_a_measurement_takes_the_place_of_the_one_before_and_of_nothing_else() -> None:
    page = f"before\n{performance_page.BEGIN}\nyesterday\n{performance_page.END}\nafter\n"
    once = performance_page.put(page, performance_page.table(DOCUMENT))
    assert once == performance_page.put(once, performance_page.table(DOCUMENT))
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "yesterday" not in once
    assert "| 20 ms | 25 ms | 10 ms | 2 | at most 1.6 x F3 | **no** |" in once
    assert "(there are no standby workers yet) |  |  |  |  | at most 0.2 x F3 | not measured |" in once
    assert "kernel 6.1.0 on x86_64" in once


def test_a_page_without_its_marks_is_not_written_over() -> None:
    with pytest.raises(ValueError, match="has not both of"):
        performance_page.put(f"before\n{performance_page.END}", "table")
