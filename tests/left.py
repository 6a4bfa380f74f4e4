"""What the ordinary suite leaves to `make soak`, so that it stays within CI's time.

A test marked `soak` is left altogether. One marked `one_shape`, to which the shape of its daemon is no matter, is made
in one shape, and in the other by `make soak`; which of them is told by its name, so that both are had evenly and a
test stays where it is.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SHAPES = ("same-user", "hosted")


def is_left(item: pytest.Item) -> bool:
    """Say whether a test is left to `make soak`, and is no part of the ordinary suite."""
    if item.get_closest_marker("soak"):
        return True
    call = getattr(item, "callspec", None)
    # Whatever fixture has the shape for its parameter: of a daemon, or of what plays its part.
    params = call.params.values() if call is not None else ()
    shape = next((each for each in params if isinstance(each, str) and each in SHAPES), None)
    if shape is None or not item.get_closest_marker("one_shape"):
        return False
    # Of its cases some are made in one shape and some in the other.
    name = item.name.replace(shape, "")
    return shape != SHAPES[zlib.crc32(name.encode()) % len(SHAPES)]
