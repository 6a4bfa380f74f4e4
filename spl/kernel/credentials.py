"""Run credentials: short-lived, bound to one run and to the one process that was given it.

Only hashes are kept. A credential dies at the run's end or at its wall clock plus a grace, whichever is first.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spl.kernel.runs import Run

Holder = Callable[[int, float], bool]
"""Says whether a connection's peer (its pid, and when it was accepted) is the process that holds the credential."""


@dataclass(frozen=True, slots=True)
class _Credential:
    run: Run
    holder: Holder
    expires_at: float | None


class Credentials:
    """The live run credentials; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._live: dict[bytes, _Credential] = {}

    def mint(self, run: Run, holder: Holder, *, seconds: float | None) -> str:
        """Make a run's credential, good for `seconds`; only the process that `holder` knows can use it."""
        secret = f"spl_run_{secrets.token_urlsafe(32)}"
        expires_at = None if seconds is None else self._clock() + seconds
        self._live[_hash(secret)] = _Credential(run, holder, expires_at)
        return secret

    def find(self, bearer: str, pid: int, accepted_at: float) -> Run | None:
        """Give the run of a live credential presented by the process it was given to, or None."""
        found = self._live.get(_hash(bearer))
        if found is None or (found.expires_at is not None and self._clock() >= found.expires_at):
            return None
        return found.run if found.holder(pid, accepted_at) else None

    def revoke(self, run: Run) -> None:
        """End a run's credential."""
        self._live = {key: value for key, value in self._live.items() if value.run is not run}


def _hash(secret: str) -> bytes:
    # Looked up by hash, so the time a look-up takes says nothing of the secret.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
