"""A start that takes a standby worker, in both shapes: what it may take, and what becomes of one that is not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Play = Callable[..., None]


@pytest.mark.claim("I7", "I9", "I12", "A1")
def test_a_worker_that_stood_by_serves_one_run_and_its_receipt_says_when_it_was_confirmed_and_looked_at(
    play: Play,
) -> None:
    play("taken")


@pytest.mark.claim("I4", "I5")
def test_a_worker_that_stands_by_a_profile_that_was_edited_is_given_to_no_run(play: Play) -> None:
    play("edited")


@pytest.mark.claim("T2")
def test_workers_stand_by_for_what_is_in_force_and_what_is_not_any_more_goes(play: Play) -> None:
    play("reconfigured")


@pytest.mark.claim("I12", "A3")
def test_a_layer_that_changed_while_its_worker_stood_by_refuses_the_start_and_is_an_alarm(play: Play) -> None:
    play("changed_standby")


@pytest.mark.claim("A3")
def test_a_start_that_finds_the_worker_that_stood_by_dead_makes_its_own(play: Play) -> None:
    play("killed")


@pytest.mark.claim("I12")
def test_a_worker_that_stands_by_does_not_hide_that_its_bubblewrap_was_replaced(play: Play) -> None:
    play("replaced")


@pytest.mark.claim("I13")
@pytest.mark.parametrize("how", ["stop", "drain"])
def test_nothing_of_the_workers_that_stand_by_is_left_when_the_daemon_stops(play: Play, how: str) -> None:
    play("ended", how=how)
