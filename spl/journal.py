"""Whether what is printed goes to systemd's journal, where a line may begin with its priority; see sd-daemon(3)."""

from __future__ import annotations

import os
from typing import Final

NAMED_BY: Final = "JOURNAL_STREAM"
"""The variable that names it."""

ERROR: Final = "<3>"
"""What a line of the level error begins with there."""


def is_at(descriptor: int) -> bool:
    """Tell whether an open descriptor is the journal's, by the device and inode that systemd.exec(5) names for it."""
    named = os.environ.get(NAMED_BY)
    if named is None:
        return False
    found = os.fstat(descriptor)
    return named == f"{found.st_dev}:{found.st_ino}"
