"""Waiting for descriptors in the event loop: a line from a pipe, the end of a process, the tail of what it says."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import ExitStack

_TAIL = 4096


async def readable(*descriptors: int) -> None:
    """Wait until one of these can be read; for a pidfd that is when its process has ended (pidfd_open(2))."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    for each in descriptors:
        loop.add_reader(each, wake)
    try:
        await ready
    finally:
        for each in descriptors:
            loop.remove_reader(each)


def given(theirs: ExitStack, descriptor: int) -> int:
    """Close a descriptor of this process's when the stack ends: by then whoever it was for has it."""
    theirs.callback(os.close, descriptor)
    return descriptor


async def read_line(descriptor: int, limit: int) -> bytes:
    """Read a non-blocking pipe up to a newline, which may come in pieces.

    Gives what came, without the newline; an end of file before it gives b"". Raises `ValueError` past `limit` bytes.
    """
    received = b""
    while b"\n" not in received:
        await readable(descriptor)
        piece = os.read(descriptor, 65536)
        if not piece:
            return b""
        received += piece
        if len(received) > limit:
            raise ValueError(f"a line of more than {limit} bytes")
    return received.split(b"\n", 1)[0]


class Tail:
    """The last 4 KiB of what a process writes to a pipe, read as it comes so that it never blocks; owns the pipe."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._kept = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self.take)

    @property
    def text(self) -> str:
        """What is kept, as text; it is the process's word and not to be trusted."""
        return self._kept.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Read what is left and stop; can be called twice."""
        self.take()
        if self._descriptor >= 0:
            self._end()

    def take(self) -> None:
        """Read what has come by now."""
        if self._descriptor < 0:
            return
        try:
            piece = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        if not piece:
            self._end()
        self._kept = (self._kept + piece)[-_TAIL:]

    def _end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
