"""A network of its own for what a test starts, which needs root."""

from __future__ import annotations

from typing import Final

# Bring loopback up (SIOCSIFFLAGS, netdevice(7)) and go on as the command that follows.
_LOOPBACK: Final = """
import fcntl, os, socket, struct, sys
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sh14x", b"lo", 1))
os.execvp(sys.argv[1], sys.argv[1:])
"""

OWN_NETWORK: Final = ("unshare", "-n", "/usr/bin/python3", "-c", _LOOPBACK)
"""Goes before a command: it then runs in a new network namespace with nothing but loopback."""
