"""A start with a real worker, in both shapes: in which order plan, slot, receipt, credential and process come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Play = Callable[..., None]


@pytest.mark.claim("I7", "I12", "I14")
def test_the_receipt_is_durable_before_the_credential_is_made_and_it_lives_for_wall_clock_and_grace(
    play: Play,
) -> None:
    play("durable")


@pytest.mark.claim("I14")
def test_a_daemons_credential_dies_at_the_wall_clock_and_the_grace_of_its_settings(play: Play) -> None:
    play("granted")


@pytest.mark.claim("I12")
def test_a_worker_that_is_not_confirmed_is_refused_and_no_credential_is_ever_made(play: Play) -> None:
    play("unconfirmed")


@pytest.mark.claim("I12")
def test_what_is_told_of_the_host_is_what_the_last_start_showed(play: Play) -> None:
    play("mended")


@pytest.mark.claim("T5")
def test_a_preview_names_the_layer_the_last_worker_of_its_own_profile_was_refused_by(play: Play) -> None:
    play("suspected")


@pytest.mark.claim("I12", "A3")
def test_a_start_without_a_thread_to_make_its_plan_in_is_refused_by_the_layer_and_leaves_nothing(
    play: Play,
) -> None:
    play("threadless")


@pytest.mark.claim("I14")
def test_a_credential_serves_the_process_it_was_given_to_while_it_lives_and_nobody_else(play: Play) -> None:
    play("held")


@pytest.mark.claim("I12", "A3")
@pytest.mark.parametrize(("change", "layer"), [("limit", "limits"), ("kill", None)])
def test_a_worker_that_changed_after_it_was_confirmed_is_refused_with_no_run_and_no_credential(
    play: Play, change: str, layer: str | None
) -> None:
    play("changed", change=change, layer=layer)


@pytest.mark.claim("A1", "A2")
def test_a_start_past_the_ceiling_makes_no_worker_and_writes_nothing(play: Play) -> None:
    play("full")


@pytest.mark.claim("A3")
@pytest.mark.parametrize("at", ["open", "mint", "finish"])
def test_a_fault_of_the_daemons_own_gives_the_slot_back_and_leaves_no_worker(play: Play, at: str) -> None:
    play("faulty", at=at)


@pytest.mark.claim("A3")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_worker_that_dies_in_its_hand_over_gives_the_slot_back_and_the_run_gets_its_outcome(
    play: Play, moment: str
) -> None:
    play("dying", moment=moment)


@pytest.mark.claim("I4", "I5")
def test_a_run_is_confined_by_what_its_profile_says_when_it_starts(play: Play) -> None:
    play("chosen")


@pytest.mark.claim("I12", "A3")
@pytest.mark.parametrize(
    ("more", "layer", "expected", "observed"),
    [
        (None, "profile", "the profile 'own' to be one that can be used", "there is no profile 'own'"),
        ("[limits", "profile", "to be one that can be used", "own.toml:3:"),
        ("[limits]\nmemory = 3\n", "profile", "to be one that can be used", "own.toml:4:1: limits.memory"),
        ("[namespaces]\nnet = false\n", "network", "are its own", "own.toml:4: namespaces.net"),
        ('[syscalls]\nallow = ["ptrace"]\n', "syscalls", "'@trace' is allowed", "own.toml:4: "),
        ('[filesystem]\nread_only = ["/nowhere"]\n', "mounts", "'/nowhere' on this host", "nothing there"),
    ],
)
def test_a_profile_that_cannot_be_used_any_more_refuses_the_start_by_the_layer(
    play: Play, more: str | None, layer: str, expected: str, observed: str
) -> None:
    play("unusable", more=more, layer=layer, expected=expected, observed=observed)
