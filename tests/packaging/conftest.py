"""What the tests of a release share: its wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.packaging.built import build

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the wheel of this checkout."""
    return build("wheel", tmp_path_factory.mktemp("wheel"))
