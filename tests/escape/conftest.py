"""The suite made afresh, once: every attempt in both shapes, and every layer taken away."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from escape import attempting, suite

if TYPE_CHECKING:
    from escape.suite import Found


@pytest.fixture(scope="session")
def found() -> Found:
    """Give what every attempt came to."""
    _require_root()
    return suite.run(suite.SHAPES, attempting.shipped(), ())


@pytest.fixture(scope="session")
def mutated() -> Found:
    """Give what every layer's absence came to."""
    _require_root()
    return suite.mutate(suite.SHAPES, ())


def _require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("both shapes need root")
