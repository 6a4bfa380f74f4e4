"""docs/performance.md shows every row that is measured, and its marks are there for the next."""

from __future__ import annotations

from typing import Any

import pytest

from spl.bench.rows import GOALS, Measured, row
from spl.cli.bench import carried
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
        row("warm-start", GOALS["warm-start"], Measured(1, 40, 10, 2, note="and so on"), many="10^6"),
    ],
    "phases": [{"name": "ready", "what": "it starts", "value": 1.5, "unit": "ms"}],
    "carries": {
        "workers": 7, "worker_bytes_at_most": 2**29, "worker_bytes": 6 * 2**20, "runs_per_second": 12.5,
        "full_at_seconds": 0.56,
    },
    "comparison": [
        {"name": "a jail", "version": "1.2", "command": "a-jail -- true", "value": 50.0, "p95": 60.0, "ratio": 20.0},
        {
            "name": "a cell", "version": None, "command": "a-cell true", "value": None, "p95": None, "ratio": None,
            "reason": "not installed",
        },
    ],
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
    assert "(and so on) | 1 ms | 2 ms | 10 ms | 0.1 | at most 0.2 x F3 | yes |" in once
    assert "kernel 6.1.0 on x86_64" in once
    assert "| a jail | 1.2 | `a-jail -- true` | 50 | 60 | 20 |" in once
    assert "| a cell |  | `a-cell true` | not installed |  |  |" in once


def test_what_a_host_carries_is_said_with_what_bounds_it() -> None:
    assert "\n".join(carried(DOCUMENT["carries"])) == (
        "This host carries 7 sandboxed runs at once: each is reckoned at the most it can take, 512 MiB.\n"
        "An idle worker takes 6.0 MiB, and 7 of them 42 MiB.\n"
        "It makes 12.5 whole runs a second, 1.1 million a day, of a model that answers at once.\n"
        "Runs shorter than 0.56 s are bounded by its processors, longer ones by its 7 places: 10080 a day, if each "
        "takes a minute."
    )
    unmeasured = {
        **DOCUMENT["carries"],
        "worker_bytes": None,
        "runs_per_second": None,
        "full_at_seconds": None,
    }
    assert len(carried(unmeasured)) == 1


def test_a_page_without_its_marks_is_not_written_over() -> None:
    with pytest.raises(ValueError, match="has not both of"):
        performance_page.put(f"before\n{performance_page.END}", "table")
