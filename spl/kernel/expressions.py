"""Expressions of rules: the language they are written in, what is refused of it, and where the fault is.

The language is CEL (https://github.com/google/cel-spec), by its C++ implementation.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any

from spl.errors import ExpressionInvalid
from spl.kernel import patterns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST = 4096
"""The longest expression, in characters."""

_LONGEST_REASON = 200
_AROUND = 60
"""Characters of a line that are shown before a fault; after it twice as many."""

_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_ZONED = re.compile(
    r"\bget(?:FullYear|Month|Date|DayOf(?:Month|Week|Year)|Hours|Minutes|Seconds|Milliseconds)\b"
    r"(?!\s*\(\s*(?:(?P<quote>[\"'])(?:[A-Z][\w+-]*(?:/[\w+-]+)*|[+-]\d\d:\d\d)(?P=quote)\s*)?\))",
    re.ASCII,
)
"""A part of a time that is asked for in a zone which is not written out. The library opens a file of the zone's name,
at any path: one that a model gave could be a pipe, and the daemon would wait at it for ever."""

_GAP = r"(?:\s|//[^\n]*+)*+"
_LITERAL = (
    r"[rR]?(?>\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}"
    r"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
)
_MATCHES = re.compile(
    rf"\bmatches\b(?={_GAP}\()(?:(?={_GAP}\({_GAP}(?P<pattern>{_LITERAL}){_GAP}\))|)", re.ASCII | re.DOTALL
)
"""A call of `matches`, and its pattern if that is all it is given. Each is looked for anew behind the word alone, so
that one within a string, which is taken for a call as well, hides none that follows."""

_FAULT = re.compile(
    r"ERROR: <input>:(?P<line>-?\d+):(?P<column>-?\d+): (?P<reason>.*?)(?:\n \| |\nERROR: <input>:|\Z)",
    re.DOTALL,
)
_STATUS = re.compile(r"\A[A-Z_]+: | \[[A-Z_]+\]\Z")
"""The names of `absl::StatusCode` around a sentence of the library's."""


def check(expression: str) -> None:
    """Refuse what is no expression that could decide anything; an expression of type `dyn` may be a bool when asked.

    Raises `ExpressionInvalid` with `line` and `column`, in characters from 1, and `excerpt`, the line and a caret
    under it, safe to print. What is wrong with the whole stands at its beginning.
    """
    compiled(_language(), expression)


def declared(functions: Mapping[str, Callable[[], object]]) -> Any:
    """Declare what an expression may name; `functions` implements them, by overload.

    The fields of `run` are variables with a dot in their names, so that a wrong one is refused when it is written. A
    map would find that out when it is asked.
    """
    from cel_expr_python import cel  # noqa: PLC0415 - 8 MB and 10 ms, for those alone who have a rule

    kind = cel.Type
    return cel.NewEnv(
        variables={
            "resource": kind.STRING,
            "args": kind.Map(kind.STRING, kind.DYN),
            "actor": kind.STRING,
            "tier": kind.STRING,
            "transport": kind.STRING,
            "run.thread": kind.STRING,
            "run.goal": kind.STRING,
            "run.turn": kind.INT,
            "run.spent_usd": kind.DOUBLE,
        },
        functions=[
            cel.FunctionDecl(name, [cel.Overload(f"{name}()", return_type=gives, parameters=[])])
            for name, gives in (("current_actor", kind.STRING), ("now", kind.TIMESTAMP))
        ],
        function_impls=dict(functions),
    )


def compiled(language: Any, expression: str) -> Any:
    """Compile an expression in a language that was `declared`; raises `ExpressionInvalid`, as `check` does."""
    if len(expression) > LONGEST:
        raise _refusal(expression, LONGEST, f"it is longer than {LONGEST} characters")
    for at, character in enumerate(expression):
        # A rule must read as it runs: a comment goes on after a carriage return, and a line can be turned around.
        if unicodedata.category(character) in _HIDDEN and character not in "\n\t":
            advice = (
                ""
                if "\ud800" <= character <= "\udfff"
                else f"; in a string, write it as {printable(character)}"
            )
            raise _refusal(expression, at, f"U+{ord(character):04X} cannot be seen{advice}")
    if zoned := _ZONED.search(expression):
        raise _refusal(
            expression, zoned.start(), 'a time zone must be written out, as "Europe/Berlin" or "+02:00"'
        )
    try:
        program = language.compile(expression)
    except RuntimeError as error:
        raise _translated(expression, str(error)) from None
    if (gives := program.return_type().name()) not in ("BOOL", "DYN"):
        raise _refusal(expression, 0, f"it gives {gives.lower()}, not bool")
    _check_patterns(language, expression)
    return program


@cache
def _language() -> Any:
    """Give the language for those who only compile."""
    return declared({})


def _check_patterns(language: Any, expression: str) -> None:
    """Refuse a pattern that is not written out, for a model's could be anything; that is too large; or that is none."""
    for call in _MATCHES.finditer(expression):
        literal = call["pattern"]
        if literal is None:
            raise _refusal(
                expression, call.start(), "a pattern must be written out, as in args.path.matches('^/etc/')"
            )
        place = call.start("pattern")
        try:
            pattern = str(_value(language, literal))
            if (fault := patterns.fault(pattern)) is not None:
                raise _refusal(expression, place, fault)
            said = _value(language, f"''.matches({literal})")
        except RuntimeError as error:
            raise _refusal(expression, place, sentence(str(error))) from None
        if not isinstance(said, bool):
            raise _refusal(expression, place, sentence(str(said)))


def _value(language: Any, constant: str) -> object:
    """Give the value of an expression without variables: of one that cannot be evaluated, a sentence."""
    return language.compile(constant).eval(language.Activation({})).value()


def _translated(expression: str, said: str) -> ExpressionInvalid:
    """Make the refusal of the first thing that the library complains of."""
    found = _FAULT.search(_STATUS.sub("", said))
    reason = sentence(found["reason"] if found else said)
    if "recursion" in reason:
        return _refusal(expression, 0, "it is nested too deeply")
    if found is None or int(found["line"]) < 1:
        return _refusal(expression, 0, reason)
    begins = [0, *(each.end() for each in re.finditer("\n", expression))]
    return _refusal(expression, begins[int(found["line"]) - 1] + int(found["column"]) - 1, reason)


def _refusal(expression: str, at: int, reason: str) -> ExpressionInvalid:
    """Make the error that points at a character."""
    line, begins = expression.count("\n", 0, at) + 1, expression.rfind("\n", 0, at) + 1
    column, text = at - begins + 1, expression[begins:].partition("\n")[0]
    return ExpressionInvalid(
        f"the expression is not valid at line {line}, column {column}: {reason}",
        line=line,
        column=column,
        excerpt=_excerpt(text, column - 1),
    )


def _excerpt(line: str, at: int) -> str:
    """Give what of a line is near a place, and a caret under it: two lines that are safe to print."""
    first, last = max(0, at - _AROUND), min(len(line), at + 2 * _AROUND)
    before = ("…" if first else "") + printable(line[first:at])
    after = printable(line[at:last]) + ("…" if last < len(line) else "")
    return f"{before}{after}\n{' ' * _columns(before)}^"


def sentence(said: str) -> str:
    """Give what the library says without its own names for things, and no longer than a line."""
    said = _STATUS.sub("", said).replace(" (in container '')", "")
    said = re.sub(r" expecting \{.*\}\Z", "", said)
    said = said.replace("mismatched input '<EOF>'", "unexpected end").replace("<EOF>", "the end")
    said = printable(said.strip().rstrip("."))
    return said if len(said) <= _LONGEST_REASON else f"{said[: _LONGEST_REASON - 1]}…"


def printable(text: str) -> str:
    """Give text with what does not print as escapes; a tab takes one column, so that a caret stands right."""
    return "".join(
        each if each.isprintable() else " " if each == "\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def _columns(text: str) -> int:
    """Give how many columns a terminal takes for printable text: two for a wide character, none for an accent."""
    return sum(
        0 if unicodedata.category(each) in ("Mn", "Me") else 1 + (unicodedata.east_asian_width(each) in "WF")
        for each in text
    )
