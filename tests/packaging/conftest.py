"""What the tests of a release share: its wheel, and one environment that has it installed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.conftest import home
from tests.packaging.built import build
from tests.packaging.installed import Environment, InstalledShape

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["home"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the wheel of this checkout."""
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def environment(wheel: Path) -> Iterator[Environment]:
    """Give the wheel as pip installs it beside its pins; a test that installs another puts this one back."""
    with tempfile.TemporaryDirectory(prefix="spl-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        made = Environment.make(Path(folder, "installed"))
        made.install("--no-deps", str(wheel))
        yield made


@pytest.fixture(params=["same-user", "hosted"])
def shape(request: pytest.FixtureRequest, environment: Environment) -> InstalledShape:
    """Give both shapes in turn."""
    return environment.shape(request.param)
