"""The target of a rule: the one resource that it can match, by which rules are looked up for a call.

XACML has the word from its rules, where a target says to which requests one applies before its condition is evaluated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# What is read of the messages that https://github.com/google/cel-spec/tree/master/proto/cel/expr declares.
_ANY_VALUE = 2
_CHECKED_EXPR = 4
_EXPR_CONST, _EXPR_IDENT, _EXPR_CALL = 3, 4, 6
_CONST_STRING = 6
_IDENT_NAME = 1
_CALL_FUNCTION, _CALL_ARGS = 2, 3

_VARINT, _DELIMITED = 0, 2


def target(program: Any) -> str | None:
    """Give the resource for whose calls alone an expression is more than a clean false, or None if it may be any's.

    That is the `x` of `resource == "x"`, either way round, where it is the whole or what is looked at first of a
    conjunction. CEL has `false && e` be false whatever `e` is, an error too, and the library, which goes from left to
    right, does not even look at `e`. It does at what stands before, and by a macro that is over its budget there the
    whole is an error. So only what stands first counts, as it stands in the compiled expression: no quote, comment or
    parenthesis of the text can be mistaken there.
    """
    (checked,) = _field(program.serialize(), _ANY_VALUE)
    (expression,) = _field(checked, _CHECKED_EXPR)
    while True:
        function, operands = _call(expression)
        if function != b"_&&_":
            break
        expression = operands[0]
    if function != b"_==_":
        return None
    for one, other in (operands, reversed(operands)):
        if _ident(one) == b"resource" and (text := _text(other)) is not None:
            return text.decode()
    return None


def _call(expression: bytes) -> tuple[bytes, list[bytes]]:
    """Give a call's function and operands, and of what is no call neither."""
    for call in _field(expression, _EXPR_CALL):
        return b"".join(_field(call, _CALL_FUNCTION)), list(_field(call, _CALL_ARGS))
    return b"", []


def _ident(expression: bytes) -> bytes | None:
    """Give the name of a variable, if it is one."""
    return next(
        (name for each in _field(expression, _EXPR_IDENT) for name in _field(each, _IDENT_NAME)), None
    )


def _text(expression: bytes) -> bytes | None:
    """Give the text of a string that is written out, if it is one."""
    return next(
        (text for each in _field(expression, _EXPR_CONST) for text in _field(each, _CONST_STRING)), None
    )


def _field(message: bytes, number: int) -> Iterator[bytes]:
    """Yield each value of a field, of a message as https://protobuf.dev/programming-guides/encoding/ has it.

    Behind a field of fixed width nothing more is read: only constants that are no strings have one.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 not in (_VARINT, _DELIMITED):
            return
        size, at = _varint(message, at)
        if tag & 7 == _DELIMITED:
            if tag >> 3 == number:
                yield message[at : at + size]
            at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Read seven bits of each byte, the lowest first, to the first without the highest bit; give the place behind."""
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
