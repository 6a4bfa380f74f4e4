"""The two forms of a line: JSON for programs, and one for a person at a terminal."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, Final

from bwrap.text import printable
from spl.logs.fields import LAST, Fields

# What needs no quotes to be read as one value.
_BARE: Final = re.compile(r"[^\s\"'=\\\[\]{},]+")
_COLOURS: Final = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_OTHERS, _OFF = "\x1b[32m", "\x1b[0m"
_OWN: Final = "spl."


def as_json(_logger: Any, _name: str, fields: Fields) -> str:
    """Write a line as JSON in ASCII, in which no text can end it; a processor, the last."""
    return json.dumps(dict(fields))


class ForTerminal:
    """Writes a line as a person reads it: the time here, the level, the event, and each field as `name=value`.

    A traceback follows on lines of its own. Whatever a text holds, it is shown and steers nothing: what is not
    printable stands as its escape.
    """

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours

    def __call__(self, _logger: Any, _name: str, fields: Fields) -> str:
        """Write a line; a processor, the last."""
        level, logger = str(fields["level"]), str(fields["logger"])
        time = datetime.fromisoformat(str(fields["timestamp"])).astimezone().strftime("%H:%M:%S")
        apart = {"event", "exception", *LAST}
        named = {name: value for name, value in fields.items() if name not in apart}
        if not logger.startswith(_OWN):
            named["logger"] = logger
        words = [time, self._coloured(level), printable(str(fields["event"]))]
        words += [f"{printable(name)}={_shown(value)}" for name, value in named.items()]
        trace = str(fields.get("exception") or "").split("\n")
        return "\n".join((" ".join(words), *(f"    {printable(line)}" for line in trace if line)))

    def _coloured(self, level: str) -> str:
        # As wide as the widest of those that we write.
        return f"{_COLOURS.get(level, _OTHERS)}{level:<7}{_OFF}" if self._colours else f"{level:<7}"


def _shown(value: Any) -> str:
    if isinstance(value, str) and _BARE.fullmatch(value):
        return printable(value)
    return printable(json.dumps(value, ensure_ascii=False))
