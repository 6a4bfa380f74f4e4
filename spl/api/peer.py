"""Who is at the other end of a connection, as the kernel tells it when the connection is accepted."""

from __future__ import annotations

import socket
import struct
import time
from contextvars import ContextVar
from typing import Final, Literal, NamedTuple

# struct ucred: pid_t, uid_t, gid_t. The ids are unsigned: an unmapped one is 65534, an invalid one 2^32 - 1.
_UCRED: Final = struct.Struct("iII")


class Peer(NamedTuple):
    """One end of an accepted connection.

    On a unix socket `pid`, `uid` and `gid` are those of the process that called connect(2), fixed at that
    moment (SO_PEERCRED, unix(7)); the pid is 0 for a process this one's pid namespace does not hold. Over TCP
    all three are None. `accepted_at` is in seconds of `time.monotonic`: a process that began later than that
    is another one with a recycled pid.
    """

    kind: Literal["unix", "tcp"]
    pid: int | None
    uid: int | None
    gid: int | None
    accepted_at: float

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """Read the peer of an accepted connection; raises OSError if it cannot be told."""
        if connection.family != socket.AF_UNIX:
            return cls("tcp", None, None, None, time.monotonic())
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, uid, gid = _UCRED.unpack(raw)
        return cls("unix", pid, uid, gid, time.monotonic())


peer: ContextVar[Peer] = ContextVar("peer")
"""The peer of the connection whose request is being served; the listener sets it."""
