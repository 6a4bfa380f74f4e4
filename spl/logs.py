"""The daemon's log: lines with fields on standard error, the newest of them kept for whoever watches the daemon."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

_KEPT: Final = 1000
_LONGEST: Final = 8192
"""Characters of a kept line's JSON; a longer one is kept without its fields."""


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
        # Lines come from any thread; a reader is the event loop's.
        self._guard = threading.Lock()

    def after(self, number: int, most: int = _KEPT) -> list[Line]:
        """Give the newest lines whose number is above one, oldest first, and at most so many."""
        with self._guard:
            found = [line for line in self._kept if line.number > number]
        return found[-most:]

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
            if len(said) > _LONGEST:
                fields = json.loads(said)
                brief = {name: fields.get(name) for name in ("level", "logger", "timestamp")}
                said = json.dumps({**brief, "event": f"{str(fields.get('event'))[:200]}…"})
            with self._guard:
                self._number += 1
                self._kept.append(Line(self._number, said))
            for call in tuple(self._told):
                call()
        except Exception:  # noqa: BLE001 - as every handler: what cannot be logged must not end the daemon
            self.handleError(record)


def configure(form: str) -> Recent:
    """Write the log to standard error in a form, as the setting `log_format` names it.

    Gives what keeps its newest lines.
    """
    as_json = form == "json" or (form == "auto" and not _terminal())
    # Strings as their repr: what a run or a peer brings in must not steer the terminal.
    console = structlog.dev.ConsoleRenderer(repr_native_str=True)
    json_lines = structlog.processors.JSONRenderer()
    shared: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handlers: list[logging.Handler] = [recent := Recent()]
    recent.setFormatter(_formatter(shared, json_lines))
    if sys.stderr is not None:
        handlers.append(on_stderr := logging.StreamHandler(sys.stderr))
        on_stderr.setFormatter(_formatter(shared, json_lines if as_json else console))
    # asyncio warns of each write to a peer that is gone: a hostile worker could fill the disk with it.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    logging.basicConfig(handlers=handlers, level=logging.INFO, force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    return recent


def _formatter(shared: list[Any], renderer: Any) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ],
    )


def _terminal() -> bool:
    # None when the daemon was started with standard error closed.
    return sys.stderr is not None and sys.stderr.isatty()
