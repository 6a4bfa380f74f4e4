"""Resource limits: what a profile says of them by the names of getrlimit(2), and how they are set."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from bwrap.errors import LayerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bwrap.profile import Limits

_CORE = 1
"""Bytes: a core limit of 0 is ignored where cores go to a pipe (core(5)); a limit of 1 is not."""


def resource_limits(said: Limits) -> dict[str, int]:
    """Give what a profile's limits set, by the names of getrlimit(2)."""
    return {
        "RLIMIT_AS": said.address_space,
        "RLIMIT_FSIZE": said.file_size,
        "RLIMIT_NPROC": said.processes,
        "RLIMIT_NOFILE": said.open_files,
        "RLIMIT_CPU": said.cpu_time,
        "RLIMIT_CORE": _CORE,
    }


def set_limits(pid: int, limits: Mapping[str, int], remedy: str) -> None:
    """Limit a held process of this thread's user (prlimit(2)); raises `LayerError` with the remedy.

    Set before bubblewrap, a process limit would count the user's other processes and bubblewrap could not fork; inside
    its user namespace it counts the sandbox's own.
    """
    for name, value in limits.items():
        try:
            resource.prlimit(pid, getattr(resource, name), (value, value))
        except (OSError, ValueError) as error:
            raise LayerError(
                "limits", expected=f"{name} set to {value}", observed=str(error), remedy=remedy
            ) from None
