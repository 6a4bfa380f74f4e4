"""The fields of a line: plain data in one order, without secrets, and together no longer than a line may be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from spl.logs.redaction import redacted

LINE_MOST: Final = 16 * 1024
"""Bytes of a line as JSON: journald breaks one of 48 KiB in two, and no reader wants that much."""

LAST: Final = ("level", "logger", "timestamp")
"""The fields that each line has, in the order in which they end it."""

_DEPTH: Final = 8
# How long each field may be, tried in turn until the line is short enough.
_CUTS: Final = (4096, 512, 64)

Fields = MutableMapping[str, Any]


def ordered(_logger: Any, _name: str, fields: Fields) -> Fields:
    """Put the event first and what every line has last; a processor, as structlog has them."""
    named = {name: value for name, value in fields.items() if name != "event" and name not in LAST}
    return {"event": fields.get("event"), **named, **{name: fields.get(name) for name in LAST}}


def plain(_logger: Any, _name: str, fields: Fields) -> Fields:
    """Make all of it data that JSON has, with the secrets taken out; a processor."""
    return {redacted(str(name)): _plain(value) for name, value in fields.items()}


def bounded(_logger: Any, _name: str, fields: Fields) -> Fields:
    """Cut what is longest until the line fits; a processor, and the last before one that writes."""
    if _length(fields) <= LINE_MOST:
        return fields
    for most in _CUTS:
        cut = {name: _cut(value, most) for name, value in fields.items()}
        if _length(cut) <= LINE_MOST:
            return cut
    return {name: _cut(fields.get(name), _CUTS[-1]) for name in ("event", *LAST)}


def _plain(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth < _DEPTH:
        if isinstance(value, Mapping):
            return {redacted(str(name)): _plain(each, depth + 1) for name, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(each, depth + 1) for each in value]
    return redacted(value if isinstance(value, str) else str(value))


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, str):
        # Of a traceback both ends tell something.
        return value if len(value) <= most else f"{value[: most // 2]} … {value[-most // 2 :]}"
    said = json.dumps(value)
    return value if len(said) <= most else f"{said[:most]} …"


def _length(fields: Fields) -> int:
    return len(json.dumps(dict(fields)))
