"""Each layer taken away for real: its own rows turn red, so that they can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bwrap import layers
from escape.suite import SHAPES
from escape.weakened import REMOVALS, SINGLE
from tests.escape.conftest import is_left

if TYPE_CHECKING:
    from escape.suite import Found
    from escape.weakened import Removal


@pytest.mark.claim("E2")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("removal", "shape"),
    [
        pytest.param(
            each,
            shape,
            id=f"{each.layer}-{each.name}-{shape}",
            marks=[pytest.mark.soak] if is_left(each.layer, shape) else [],
        )
        for each in REMOVALS
        for shape in SHAPES
    ],
)
def test_its_absence_is_noticed(mutated: Found, removal: Removal, shape: str) -> None:
    key = {"layer": removal.layer, "name": removal.name, "shape": shape}
    found = [each for each in mutated.mutations if key.items() <= each.items()]
    assert len(found) == (shape in removal.shapes)
    for each in found:
        assert each["own"], "nothing is attempted that this layer must stop"
        assert not each["red_before"], "its rows are red while it is still there"
        assert not each["unmade"], "these were not made"
        assert set(each["own"]) & each["red"].keys() >= set(removal.rows), (
            "none of its rows turned red, or not all"
        )
        assert each["ok"]


def test_every_layer_is_taken_away_and_twenty_calls_are_let_through() -> None:
    assert {removal.layer for removal in REMOVALS} == {layer.name for layer in layers.every_layer()}
    assert len(SINGLE) >= 20
