"""Runs in flight with real workers, in both shapes: flips, stops, previews, what is withheld and what is observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kernel.instance import MEMBER, OPERATOR

if TYPE_CHECKING:
    from collections.abc import Callable

    Play = Callable[..., None]


@pytest.mark.claim("T2", "T6")
def test_runs_in_flight_keep_their_transport_when_both_keys_are_flipped_forth_and_back(play: Play) -> None:
    play("flipped")


@pytest.mark.claim("T7")
@pytest.mark.parametrize("during", ["a call", "no call", "for ever"])
def test_a_stopped_run_is_cancelled_and_nothing_of_its_worker_is_left(play: Play, during: str) -> None:
    play("stopped", during=during)


def test_runs_leave_at_their_next_step_when_the_daemon_stops_and_a_worker_without_one_goes(
    play: Play,
) -> None:
    play("drained")


@pytest.mark.claim("T5", "A2")
def test_a_preview_names_what_a_start_would_meet_and_takes_no_slot_and_makes_no_worker(play: Play) -> None:
    play("previewed")


@pytest.mark.claim("N1", "N2", "N3")
@pytest.mark.parametrize("actor", [MEMBER, OPERATOR])
def test_a_sandboxed_run_goes_on_without_the_tools_it_cannot_have_and_its_model_is_told(
    play: Play, actor: str
) -> None:
    play("narrowed", actor=actor)


@pytest.mark.claim("N4")
def test_the_operators_runs_have_the_hosts_tools_on_a_daemon_of_their_own_user_alone(play: Play) -> None:
    play("hosting")


def test_a_conversation_longer_than_may_be_ends_alike_on_both_transports_with_the_number(play: Play) -> None:
    play("talkative")


@pytest.mark.claim("O6", "O1", "O2", "O3", "O4")
def test_the_same_script_is_observed_alike_on_both_transports(play: Play) -> None:
    play("observed")
