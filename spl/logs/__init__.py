"""The daemon's log: lines with fields on standard error, the newest of them kept for whoever watches the daemon.

It imports structlog and `bwrap.text`. Who runs a daemon calls `configure` once and `flush` before its end, and takes
the newest lines from `recent`; what is logged is said with structlog where it happens.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

import structlog

from spl.journal import NAMED_BY, is_at
from spl.logs.fields import bounded, ordered, plain
from spl.logs.forms import ForTerminal, as_json
from spl.logs.outlet import Outlet
from spl.logs.recent import Recent

__all__ = ["Recent", "configure", "flush"]

_FORMED = "formed"
"""Where a record has its line."""

_log = structlog.get_logger("spl.logs")


def configure(form: str) -> Recent:
    """Write the log to standard error in a form, as the setting `log_format` names it.

    Gives what keeps its newest lines. Where standard error is the journal, each line has its priority.
    """
    shared: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handlers: list[logging.Handler] = [recent := Recent()]
    json = _formatter(shared, as_json)
    recent.setFormatter(json)
    # None when the daemon was started with standard error closed.
    if sys.stderr is not None:
        journal = is_at(sys.stderr.fileno())
        handlers.append(
            outlet := Outlet(sys.stderr.fileno(), encoding=sys.stderr.encoding, priorities=journal)
        )
        # One for both: what the collector finalizes in the middle of a line may log another, in whichever thread it
        # runs, and two locks would then be taken in either order.
        recent.lock = outlet.lock
        terminal = sys.stderr.isatty()
        to_read = form == "console" or (form == "auto" and terminal)
        colours = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        outlet.setFormatter(_formatter(shared, ForTerminal(colours=colours)) if to_read else json)
    # It is about our descriptor: to a child it would be a lie.
    os.environ.pop(NAMED_BY, None)
    # asyncio warns of each write to a peer that is gone: a hostile worker could fill the disk with it.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    logging.basicConfig(handlers=handlers, level=logging.INFO, force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    _take_what_python_prints()
    return recent


def flush() -> None:
    """Wait until what was logged is written, for a second at the most: before another speaks, and before the end."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def _formatter(shared: list[Any], renderer: Any) -> logging.Formatter:
    return _Formatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            ordered,
            plain,
            bounded,
            renderer,
        ],
    )


class _Formatter(structlog.stdlib.ProcessorFormatter):
    """Gives a line its form, once for all handlers that have this formatter."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        formatter, line = getattr(record, _FORMED, (None, ""))
        if formatter is not self:
            line = super().format(record)
            # With the record, and so for no longer than it is there: it may hold whole frames.
            setattr(record, _FORMED, (self, line))
        return line


def _take_what_python_prints() -> None:
    """Have what the interpreter writes to standard error of itself, of threads and of finalizers, go by the log."""

    def thread_failed(failed: threading.ExceptHookArgs) -> None:
        name = failed.thread.name if failed.thread else None
        _log.error("a thread failed by a fault of the daemon's own", name=name, exc_info=failed.exc_value)

    def unraisable(failed: sys.UnraisableHookArgs) -> None:
        _log.error("an error was ignored", where=repr(failed.object), exc_info=failed.exc_value)

    threading.excepthook = thread_failed
    sys.unraisablehook = unraisable
    logging.captureWarnings(capture=True)
