"""The mark beside a log: up to which record it was acknowledged, kept outside of it.

SQLite takes a write-ahead log up to its first bad frame and says nothing of what lay behind; without it, and put back
from an older copy, the file is as whole as ever. So a log cannot say by itself that it was longer once. The mark can:
it is written after each commit has reached the disk and before anyone is told, and a log that ends below it is damaged.

It is not waited for: after a loss of power it may be behind by what the kernel had not written yet, half a minute
usually. It is never ahead of what has reached the disk, so it accuses no whole log.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from contextlib import suppress
from typing import Final

from spl.errors import StoreUnavailable
from spl.records.durable import sync

_MAGIC: Final = b"spl mark"
_FORM: Final = struct.Struct(">8sQI")  # the magic, the sequence, the CRC-32 of both


def mark_of(log: str) -> str:
    """Give the path of a log's mark."""
    return f"{log}-mark"


def read_mark(log: str) -> int | None:
    """Give the sequence up to which a log was acknowledged; None where no file says so."""
    try:
        # Not blocking, for what should be a file and is a FIFO.
        descriptor = os.open(mark_of(log), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            content = os.pread(descriptor, _FORM.size + 1, 0)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    if len(content) != _FORM.size:
        return None
    magic, sequence, check = _FORM.unpack(content)
    return sequence if magic == _MAGIC and check == zlib.crc32(content[:-4]) else None


class Mark:
    """A log's mark, open; it belongs to whoever writes the log."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, log: str, sequence: int) -> Mark:
        """Set a log's mark, making it at need with mode 0600; it has reached the disk when this returns.

        Raises StoreUnavailable when it cannot be written.
        """
        path = mark_of(log)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"the log's mark {path} cannot be opened: {error.strerror}") from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreUnavailable(f"the log's mark {path} cannot be opened: it is not a regular file")
            os.fchmod(descriptor, 0o600)
            content = _content(sequence)
            # One that stands already is not written again: a full disk must not keep a whole log from being read.
            if os.pread(descriptor, _FORM.size + 1, 0) != content:
                os.ftruncate(descriptor, _FORM.size)
                os.pwrite(descriptor, content, 0)
                os.fsync(descriptor)
                sync(os.path.dirname(os.path.abspath(path)))
        except OSError as error:
            os.close(descriptor)
            raise StoreUnavailable(f"the log's mark {path} cannot be written: {error.strerror}") from None
        except StoreUnavailable:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def put(self, sequence: int) -> None:
        """Say that records are acknowledged up to this one.

        What cannot be written leaves a mark that is behind, which accuses less; the next one is written over it.
        """
        with suppress(OSError):
            os.pwrite(self._descriptor, _content(sequence), 0)

    def close(self) -> None:
        """Let go of the file; closing again does nothing."""
        if self._descriptor != -1:
            os.close(self._descriptor)
            self._descriptor = -1


def _content(sequence: int) -> bytes:
    content = _FORM.pack(_MAGIC, sequence, 0)[:-4]
    return content + struct.pack(">I", zlib.crc32(content))
