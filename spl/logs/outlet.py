"""The way to standard error: a queue and a thread, so that one who does not read it holds nobody up.

A pipe that is full, a terminal that was halted or a disk that is slow keeps only this thread waiting. What does not
fit into the queue, or cannot be written, is lost and counted, and told of once lines go out again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections import deque
from typing import Final, NamedTuple

import structlog

QUEUE_MOST: Final = 1 << 20
"""Bytes of lines that wait; those of level error may take as much again."""

_FLUSH_SECONDS: Final = 1.0

_log = structlog.get_logger("spl.logs")


class _Line(NamedTuple):
    """A line that waits, and how many lines, and errors among them, go untold if it is lost."""

    said: bytes
    lines: int
    errors: int


class Outlet(logging.Handler):
    """Writes lines to a descriptor, in their order, by a thread of its own that the process does not wait for.

    With `priorities` each begins with its own, as journald reads it (sd-daemon(3)). `encoding` is the descriptor's.
    """

    def __init__(self, descriptor: int, *, encoding: str = "utf-8", priorities: bool = False) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._encoding = encoding
        self._priorities = priorities
        # The handler's own lock, no second beside it: a finalizer may log while either is held, by any thread.
        self._changed = threading.Condition(self.lock)
        self._waiting: deque[_Line] = deque()
        self._bytes = 0
        self._full = False
        self._torn = False
        self._closed = False
        self._lines = self._errors = 0
        self._telling: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a line written; see logging.Handler."""
        is_error = record.levelno >= logging.ERROR
        try:
            said = self._framed(self.format(record), record.levelno)
        except Exception:  # noqa: BLE001 - what cannot be logged must not end the daemon
            with self._changed:
                self._lose(1, int(is_error))
            return
        lines, errors = 1, int(is_error)
        if self._telling is not None and threading.current_thread() is self._thread:
            lines, errors = self._telling
        with self._changed:
            size = self._bytes + len(said)
            if size > (2 * QUEUE_MOST if is_error else 0 if self._full else QUEUE_MOST):
                # Until half of it has gone out: what is lost is lost in one piece, and told of once.
                self._full = True
                self._lose(lines, errors)
                return
            self._waiting.append(_Line(said, lines, errors))
            self._bytes = size
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all that waits is written, for a second at the most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, _FLUSH_SECONDS)

    def close(self) -> None:
        """Have the thread end once all that waits is written; whoever cannot wait for that has called `flush`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().close()

    def _framed(self, text: str, level: int) -> bytes:
        begin = f"<{_priority(level)}>" if self._priorities else ""
        return "".join(f"{begin}{line}\n" for line in text.split("\n")).encode(
            self._encoding, "backslashreplace"
        )

    def _lose(self, lines: int, errors: int) -> None:
        self._lines += lines
        self._errors += errors

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                line = self._waiting[0]
            written = self._write(line.said)
            with self._changed:
                # Only now: a line is waited for until it is out.
                self._waiting.popleft()
                self._bytes -= len(line.said)
                if not written:
                    self._lose(line.lines, line.errors)
                lost = self._regained() if written else None
                self._changed.notify_all()
            if lost is not None:
                self._tell(*lost)

    def _regained(self) -> tuple[int, int] | None:
        """Give what was lost, lines and errors among them, once there is room to tell of it."""
        if not self._lines or self._bytes > QUEUE_MOST // 2:
            return None
        lost = self._lines, self._errors
        self._lines = self._errors = 0
        self._full = False
        return lost

    def _tell(self, lines: int, errors: int) -> None:
        self._telling = lines, errors
        _log.warning("lines of the log were lost", lines=lines, errors=errors)
        self._telling = None

    def _write(self, said: bytes) -> bool:
        """Write a line, however long that takes; gives whether it could be."""
        left = memoryview(b"\n" + said if self._torn else said)
        whole = len(left)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:
                # Whoever shares it with us has made it so (fcntl(2)).
                with contextlib.suppress(OSError):
                    select.select((), (self._descriptor,), ())
            except OSError:
                # A full disk may have taken some of it: what comes next begins a line of its own.
                self._torn = self._torn if len(left) == whole else True
                return False
        self._torn = False
        return True


def _priority(level: int) -> int:
    """Give the priority of a level, as syslog(3) numbers them."""
    if level >= logging.CRITICAL:
        return 2
    if level >= logging.ERROR:
        return 3
    if level >= logging.WARNING:
        return 4
    return 6 if level >= logging.INFO else 7
