"""Rows: a figure, what it is held against, and whether that was reached."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spl.bench.rows import GOALS, Goal, Measured, percentile, row

MOST = Goal("a start", "ms", 2, "F3")
LEAST = Goal("appends", "1/s", 8, "one writer", at_least=True)
PLAIN = Goal("memory", "MiB", 7)


@pytest.mark.parametrize(
    ("goal", "measured", "ratio", "met"),
    [
        (MOST, Measured(20, 40, 10), 2, True),
        (MOST, Measured(20.1, 40, 10), 2.01, False),
        (LEAST, Measured(80, 40, 10), 8, True),
        (LEAST, Measured(79, 40, 10), 7.9, False),
        (PLAIN, Measured(7, 40), None, True),
        (PLAIN, Measured(7.1, 40), None, False),
    ],
)
def test_a_goal_is_met_up_to_its_limit(goal: Goal, measured: Measured, ratio: float, met: bool) -> None:
    found = row("any", goal, measured, many="10^6")
    assert (found["value"], found["ratio"], found["met"]) == (measured.value, ratio, met)


def test_what_falls_short_otherwise_is_missed_though_its_figure_is_good() -> None:
    found = row("any", MOST, Measured(1, 40, 10, short="one run starves"), many="10^6")
    assert (found["met"], found["reason"]) == (False, "one run starves")


def test_a_floor_has_no_goal() -> None:
    found = row("floor-spawn", GOALS["floor-spawn"], Measured(1, 40), many="10^6")
    assert (found["goal"], found["met"]) == (None, None)


def test_a_row_over_a_shorter_log_says_so_in_its_name() -> None:
    goal = GOALS["thread-page"]
    named = {many: row("thread-page", goal, Measured(1, 40), many=many) for many in ("10^6", "10^4")}
    assert [each["name"] for each in named.values()] == ["thread-page", "thread-page-10^4"]
    assert "a log of 10^4" in named["10^4"]["what"]


def test_every_goal_says_what_it_is_of_in_words_of_its_own() -> None:
    assert len({goal.what for goal in GOALS.values()}) == len(GOALS)
    assert all(replace(goal, limit=1).text for goal in GOALS.values())


def test_a_percentile_is_one_of_the_samples() -> None:
    samples = [float(number) for number in range(100, 0, -1)]
    assert [percentile(samples, percent) for percent in (1, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([3.0], 95) == 3.0
