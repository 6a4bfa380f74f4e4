"""What is attempted: enough, of every class, and each an object that says what it is."""

from __future__ import annotations

import re

import pytest

from bwrap import layers
from escape.attempt import Attempt, Wall
from escape.attempts import ATTEMPTS, CLASSES

BEYOND = {"doors", "kernel"}
"""Who answers but is no layer of the process's own: the daemon at its worker socket, and the host's kernel."""


def test_there_are_enough_and_none_of_a_class_is_missing() -> None:
    assert len(ATTEMPTS) >= 150
    assert all(module.ATTEMPTS for module in CLASSES)


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_it_says_what_it_is(attempt: Attempt) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z0-9_]+)+", attempt.id)
    for words in (attempt.sentence, attempt.escape):
        assert words == words.strip()
        assert len(words) > 10
        assert not words.endswith(".")
    known = {layer.name for layer in layers.every_layer()} | BEYOND
    assert {wall.layer for wall in attempt.walls} <= known
    assert all(re.fullmatch(r"CVE-\d{4}-\d{4,7}", number) for number in filter(None, attempt.cve.split(", ")))
    assert not attempt.allowed or len(attempt.walls) == 1


def test_every_layer_has_an_attempt_that_it_must_stop() -> None:
    walls = {wall.layer for attempt in ATTEMPTS.values() for wall in attempt.walls}
    assert walls >= {layer.name for layer in layers.every_layer()}


def test_an_attempt_that_nothing_stops_cannot_be_written_down() -> None:
    with pytest.raises(ValueError, match="nothing stands in the way"):
        Attempt("x.y", "sentence", lambda _: "", control=lambda _: None, walls=(), escape="an escape")
    with pytest.raises(ValueError, match="proves nothing"):
        Wall("network")
