"""Bytes that nobody can change once they are made: what a sandbox is given to read."""

from __future__ import annotations

import fcntl
import hashlib
import os

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Sealed:
    """Bytes in a sealed memfd (memfd_create(2)), with their SHA-256; this process cannot change them either."""

    def __init__(self, name: str, data: bytes) -> None:
        self.digest = hashlib.sha256(data).hexdigest()
        self._descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(self._descriptor, "wb", closefd=False) as file:
                file.write(data)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            self.close()
            raise

    @classmethod
    def once(cls, name: str, data: bytes) -> int:
        """Give a descriptor of sealed bytes that one reader needs; closing it is the caller's."""
        memory = cls(name, data)
        try:
            return memory.open()
        finally:
            memory.close()

    def open(self) -> int:
        """Open it anew for one reader: a duplicate would share the offset, and the second reader find nothing."""
        return os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the bytes; readers that have them open keep them."""
        os.close(self._descriptor)
