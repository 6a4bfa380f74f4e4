"""What is written for a peer and not taken by it: bounded, since an answer is kept until it is taken."""

from __future__ import annotations

import asyncio
from typing import Any, Final

MAX_UNTAKEN: Final = 32 << 20
"""Bytes that all peers of one listener together may have been written and not taken, beyond the kernel's buffers."""


class Writer(asyncio.StreamWriter):
    """A writer that says when its peer is behind, and how far."""

    def __init__(self, untaken: Untaken, *stream: Any) -> None:
        super().__init__(*stream)
        self._untaken = untaken
        self.written = 0

    @property
    def left(self) -> int:
        """How many bytes were written and not taken by the kernel, whose buffer for the peer is full."""
        size: int = self.transport.get_write_buffer_size()
        return size

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See `asyncio.StreamWriter.write`."""
        super().write(data)
        self.written += len(data)
        if self.left:
            self._untaken.keep(self, len(data))


class Untaken:
    """What was written for the peers of one listener and not taken yet: bounded in time, and in bytes for all together.

    A peer is cut off that has not taken, within `patience` seconds, what it was behind with when they began: between
    once and twice as long after it was written. Nothing is looked at while no peer is behind.
    """

    def __init__(self, patience: float, most: int) -> None:
        self._patience = patience
        self._most = most
        self._behind: dict[Writer, asyncio.TimerHandle] = {}
        self._at_most = 0

    def keep(self, writer: Writer, more: int) -> None:
        """Count a peer among those that are behind, now by so much more; one is cut off if all together are too far."""
        if writer not in self._behind:
            self._give_time(writer)
        # What was taken meanwhile is not subtracted before it matters: to ask hundreds of peers takes time.
        self._at_most += more
        if self._at_most <= self._most:
            return
        left = {each: each.left for each in self._behind}
        self._at_most = sum(left.values())
        too_much = self._at_most - self._most
        for each, size in left.items():  # the one that has had time for longest first
            if too_much <= 0:
                break
            too_much -= size
            if size:
                each.transport.abort()

    def forget(self, writer: Writer) -> None:
        """Look at a connection no more: it is closed."""
        timer = self._behind.pop(writer, None)
        if timer is not None:
            timer.cancel()

    def _give_time(self, writer: Writer) -> None:
        loop = asyncio.get_running_loop()
        self._behind[writer] = loop.call_later(self._patience, self._look, writer, writer.written)

    def _look(self, writer: Writer, due: int) -> None:
        del self._behind[writer]
        left = writer.left
        if writer.written - left < due:
            writer.transport.abort()
        elif left:
            self._give_time(writer)
