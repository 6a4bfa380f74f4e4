"""A disk that is full, for this process alone and for a while."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def full(most: int = 0) -> Iterator[None]:
    """Let this process write to no file past so many bytes: write(2) fails, by RLIMIT_FSIZE (setrlimit(2)).

    Only around what is tried: pytest, too, writes to a file where its output goes to one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
