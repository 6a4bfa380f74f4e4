"""JSON (RFC 8259) by what is beneath `json`: importing `json` would double the worker's start, for the sake of `re`.

`_json` promises nothing, so the worker's program is loaded when it is sealed, by the interpreter that will run it: one
whose `_json` is missing, or made otherwise, is refused there.
"""

from __future__ import annotations

from _json import encode_basestring, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_SPACE = " \t\n\r"


def loads(text: str | bytes) -> Any:
    """Give the value of a JSON text, as `json.loads` does; bytes are taken for UTF-8 and nothing else.

    Raises ValueError for what is no JSON text, RecursionError for what is nested too deep.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogatepass")
    try:
        value, end = _scan(text, len(text) - len(text.lstrip(_SPACE)))
    except (StopIteration, ValueError, SystemError):
        # Before Python 3.13 the scanner takes its error from `json.decoder`, and raises none (SystemError) where nobody
        # has imported that.
        raise ValueError("not a JSON text") from None
    if text[end:].strip(_SPACE):
        raise ValueError("more than a JSON text")
    return value


def dumps(value: object) -> str:
    """Give a value's JSON text, without spaces and with every letter as it is.

    It is what `json.dumps(value, separators=(",", ":"), ensure_ascii=False)` gives. Raises TypeError for what has no
    JSON, RecursionError for what is nested too deep, or in itself.
    """
    return "".join(_encode(value, 0))


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} has no JSON")


class _AsJsonLoads:
    """What the scanner asks of a `json.JSONDecoder`, each as `json.loads` has it."""

    strict = True
    object_hook = object_pairs_hook = array_hook = None
    parse_float = float
    parse_int = int
    parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}.__getitem__


_scan = make_scanner(_AsJsonLoads)  # type: ignore[arg-type]
# In order: no look-out for a value inside itself, what to do with other types, how to write text, no indentation, the
# two separators, keys in their order, none skipped, NaN and infinities as `json` writes them.
_encode = make_encoder(None, _refuse, encode_basestring, None, ":", ",", False, False, True)
