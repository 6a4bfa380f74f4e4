"""The tools of the protection domain `sandboxed`: what the loop runs itself, wherever it is.

Their arguments come from a model, so every one is bounded in time and size without help from the sandbox:
in process there is none.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Number = int | float

EXPRESSION_LIMIT = 1000
"""Characters in an expression."""
NESTING_LIMIT = 50
"""Parentheses, signs and powers inside one another; well below what Python's own stack allows."""
INTEGER_BITS = 4096
"""The largest integer, in bits; Python refuses to print one of more than 4300 digits."""

_INFINITE = float("inf")

SCHEMAS: dict[str, dict[str, Any]] = {
    "calculate": {
        "description": (
            "Work out an arithmetic expression of numbers, parentheses and + - * / // % **. "
            "Gives the value as text; whole numbers stay exact."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "description": "The expression, such as (3 + 4) * 2 ** 0.5",
                    "minLength": 1,
                    "maxLength": EXPRESSION_LIMIT,
                }
            },
            "required": ["expression"],
            "additionalProperties": False,
        },
    }
}
"""By name, what a model is told of each tool; the parameters are JSON Schema."""


def run(name: str, arguments: object) -> tuple[str, str]:
    """Run a tool; give (`ok`, its output) or (`error`, one sentence). Bad arguments raise nothing."""
    if name != "calculate":
        return "error", f"there is no sandboxed tool {name!r}"
    if not isinstance(arguments, dict) or set(arguments) != {"expression"}:
        return "error", "calculate takes one argument, expression, and no other"
    expression = arguments["expression"]
    if not isinstance(expression, str):
        return "error", "calculate takes its expression as a string"
    try:
        return "ok", str(calculate(expression))
    except ValueError as error:
        return "error", f"calculate cannot work this out: {error}"


def calculate(expression: str) -> Number:
    """Give the value of an arithmetic expression, with Python's own precedence and operators.

    Raises ValueError for what is not an expression (with the position, counted from 1), for a result that is
    not a finite real number, and for what is over the limits of this module.
    """
    if len(expression) > EXPRESSION_LIMIT:
        raise ValueError(f"the expression is longer than {EXPRESSION_LIMIT} characters")
    return _Reader(expression).value()


class _Reader:
    """A recursive-descent reader that works the value out as it goes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def value(self) -> Number:
        value = self._sum()
        if self._peek():
            raise self._unexpected()
        return value

    def _sum(self) -> Number:
        value = self._product()
        while operator := self._take("+", "-"):
            value = _apply(operator, value, self._product())
        return value

    def _product(self) -> Number:
        value = self._signed()
        while operator := self._take("//", "*", "/", "%"):
            value = _apply(operator, value, self._signed())
        return value

    def _signed(self) -> Number:
        # Every way to nest comes through here, so this is the one place that counts.
        self._depth += 1
        if self._depth > NESTING_LIMIT:
            raise ValueError(f"the expression is nested more than {NESTING_LIMIT} deep")
        sign = self._take("+", "-")
        value = self._signed() if sign else self._power()
        self._depth -= 1
        return -value if sign == "-" else value

    def _power(self) -> Number:
        base = self._atom()
        return _apply("**", base, self._signed()) if self._take("**") else base

    def _atom(self) -> Number:
        if self._take("("):
            value = self._sum()
            if not self._take(")"):
                raise self._unexpected()
            return value
        return self._number()

    def _number(self) -> Number:
        start = self._at
        whole = self._digits()
        point = self._text.startswith(".", self._at)
        self._at += point
        fraction = self._digits() if point else ""
        if not whole and not fraction:
            self._at = start
            raise self._unexpected()
        exponent = self._exponent()
        text = self._text[start : self._at]
        return _bounded(float(text)) if point or exponent else _bounded(int(text))

    def _exponent(self) -> bool:
        start = self._at
        if self._text[start : start + 1] in ("e", "E"):
            self._at += 1
            if self._text[self._at : self._at + 1] in ("+", "-"):
                self._at += 1
            if self._digits():
                return True
        self._at = start
        return False

    def _digits(self) -> str:
        start = self._at
        # Not str.isdigit, which takes the digits of every script.
        while self._text[self._at : self._at + 1] in tuple("0123456789"):
            self._at += 1
        return self._text[start : self._at]

    def _take(self, *symbols: str) -> str:
        self._peek()
        for symbol in symbols:
            if self._text.startswith(symbol, self._at):
                self._at += len(symbol)
                return symbol
        return ""

    def _peek(self) -> str:
        while self._text[self._at : self._at + 1] in (" ", "\t", "\r", "\n"):
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _unexpected(self) -> ValueError:
        found = self._peek()
        if not found:
            return ValueError("the expression ends too early")
        return ValueError(f"{found!r} at position {self._at + 1} is not expected there")


def _apply(operator: str, left: Number, right: Number) -> Number:
    try:
        if operator == "**":
            return _bounded(_raise(left, right))
        if operator == "+":
            return _bounded(left + right)
        if operator == "-":
            return _bounded(left - right)
        if operator == "*":
            return _bounded(left * right)
        if operator == "/":
            return _bounded(left / right)
        return _bounded(left // right if operator == "//" else left % right)
    except ZeroDivisionError:
        raise ValueError("it divides by zero") from None
    except OverflowError:
        raise ValueError("a number in it is too large") from None


def _raise(base: Number, exponent: Number) -> Number:
    # Judged before it is worked out: 9**9**9 would take the machine, not a moment.
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and exponent * max(int(base).bit_length() - 1, 0) > INTEGER_BITS:
        raise ValueError("a number in it is too large")
    power: object = base**exponent
    if not isinstance(power, int | float):
        raise ValueError("a negative number has no real root")  # noqa: TRY004 - a value's fault, not a type's
    return power


def _bounded(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > INTEGER_BITS:
            raise ValueError("a number in it is too large")
    elif not abs(value) < _INFINITE:
        raise ValueError("a number in it is not finite")
    return value
