"""Having what was written reach the disk."""

from __future__ import annotations

import os


def sync(path: str | os.PathLike[str]) -> None:
    """Have a file's content, or the names in a folder, reach the disk (fsync(2)); raises `OSError`.

    Never of a log that this process has open: to close any descriptor of a file drops SQLite's locks on it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
