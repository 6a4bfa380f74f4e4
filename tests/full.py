"""A limit of this process alone, for a while: a disk that is full, or no more descriptors to be had."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def full(most: int = 0) -> AbstractContextManager[None]:
    """Let this process write to no file past so many bytes: write(2) fails, by RLIMIT_FSIZE (setrlimit(2)).

    Only around what is tried: pytest, too, writes to a file where its output goes to one.
    """
    return limited(resource.RLIMIT_FSIZE, most)


@contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """Lower a limit of this process's, by its number in `resource`; what it has above that, it keeps."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))
