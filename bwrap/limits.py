"""Resource limits: what a profile says of them by the names of getrlimit(2), and the two ways to set them."""

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


def prlimit(program: str, limits: Mapping[str, int]) -> list[str]:
    """Give the words that go before bubblewrap's in the hosted shape, so that it is limited from the start.

    Its uid is its own, so that nothing else counts. Later root might not do it: it may lack CAP_SYS_RESOURCE over
    another uid. `program` is the path of prlimit(1).
    """
    options = (f"--{name.removeprefix('RLIMIT_').lower()}={value}" for name, value in limits.items())
    return [program, *options, "--"]


def set_limits(pid: int, limits: Mapping[str, int], remedy: str) -> None:
    """Limit a held process of this user's (prlimit(2)); raises `LayerError` with the remedy.

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
