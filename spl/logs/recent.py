"""The newest lines of the log, kept for whoever watches the daemon."""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_KEPT: Final = 1000


class Line(NamedTuple):
    """A line as it is kept: its number, rising by one within a daemon's life, and its fields as JSON."""

    number: int
    said: str

    @property
    def fields(self) -> dict[str, Any]:
        """Give its fields."""
        fields: dict[str, Any] = json.loads(self.said)
        return fields


class Recent(logging.Handler):
    """The newest lines of the log, and the calls that tell of another."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[Line] = deque(maxlen=_KEPT)
        self._number = 0
        self._told: set[Callable[[], None]] = set()

    def after(self, number: int, most: int = _KEPT) -> list[Line]:
        """Give the newest lines whose number is above one, oldest first, and at most so many."""
        # Lines come from any thread, with the handler's lock held; a reader is the event loop's.
        self.acquire()
        try:
            kept = list(self._kept)
        finally:
            self.release()
        return [line for line in kept if line.number > number][-most:]

    def tell(self, call: Callable[[], None]) -> None:
        """Have a call made, by the thread that logs, whenever there is another line."""
        self._told.add(call)

    def untell(self, call: Callable[[], None]) -> None:
        """Make the call no more."""
        self._told.discard(call)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line; see logging.Handler."""
        try:
            said = self.format(record)
            self._number += 1
            self._kept.append(Line(self._number, said))
            for call in tuple(self._told):
                call()
        except Exception:  # noqa: BLE001 - what cannot be logged must not end the daemon
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say nothing: logging would write to standard error itself, and wait for it. The outlet counts the line."""
