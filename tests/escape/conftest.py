"""The suite made afresh, once: every attempt in both shapes, and every layer taken away.

`make soak` takes each away in both shapes; the ordinary suite in one, both at a time.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from escape import attempting, suite
from escape.suite import Found
from escape.weakened import REMOVALS


@pytest.fixture(scope="session")
def found() -> Found:
    """Give what every attempt came to."""
    _require_root()
    return suite.run(suite.SHAPES, attempting.shipped(), ())


IN_HOSTED = {"mounts", "separate_user", "syscalls"}
"""What the ordinary suite takes away in the hosted shape, about half of the work; the other layers in same-user."""


def is_left(layer: str, shape: str) -> bool:
    """Say whether a layer's absence in this shape is left to `make soak`."""
    return (shape == "hosted") != (layer in IN_HOSTED)


@pytest.fixture(scope="session")
def mutated(request: pytest.FixtureRequest) -> Found:
    """Give what every layer's absence came to, but in the shape that is left to `make soak`."""
    _require_root()
    if request.config.getoption("--soak"):
        return suite.mutate(suite.SHAPES, ())
    every = {removal.layer for removal in REMOVALS}
    found = Found()
    with ThreadPoolExecutor() as pool:
        asked = {
            shape: sorted(layer for layer in every if not is_left(layer, shape)) for shape in suite.SHAPES
        }
        for each in pool.map(lambda of: suite.mutate((of[0],), of[1]), asked.items()):
            found.hosts |= each.hosts
            found.mutations += each.mutations
    found.sort()
    return found


def _require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("both shapes need root")
