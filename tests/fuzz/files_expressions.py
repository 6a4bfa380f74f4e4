"""Expressions of rules for `files`, and the calls they are asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.fuzz.files_json import anything
from tests.fuzz.files_made import mutated, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


def expression(random: Random) -> bytes:
    """Give the text of a rule's expression: mostly one whose types fit, for another is refused before it is asked."""
    match random.randrange(12):
        case 0:
            lent = [b"args.a[", b"all(x, ", b"matches('(a+)+$')"]
            return mutated(random, _bool(random).encode("utf-8", "surrogatepass"), lent)
        case 1:
            return random.choice(_deep(random)).encode()
        case 2 | 3:
            return _wild(random).encode("utf-8", "surrogatepass")
        case _:
            return _bool(random).encode("utf-8", "surrogatepass")


def _bool(random: Random, depth: int = 0) -> str:
    if depth > 4 or random.random() < 0.01:
        return random.choice(
            ("true", "false", "x == 1", "args.a", "has(args.a)", "'a' in args", "actor == tier")
        )

    def inner(kind: Callable[[Random, int], str] = _bool) -> str:
        return kind(random, depth + 1)

    compared = random.choice(("==", "!=", "<", "<=", ">", ">="))
    match random.randrange(13):
        case 0:
            return f"({inner()} {random.choice(('&&', '||'))} {inner()})"
        case 1:
            return f"!{inner()}"
        case 2 | 3:
            return f"(dyn({inner(_number)}) {compared} {inner(_number)})"
        case 4:
            return f"({inner(_text)} {compared} {inner(_text)})"
        case 5:
            method = random.choice(("startsWith", "endsWith", "contains"))
            return f"{inner(_text)}.{method}({inner(_text)})"
        case 6:
            return f"{inner(_text)}.matches('{random.choice(_PATTERNS)}')"
        case 7 | 8:
            macro = random.choice(("all", "exists", "exists_one"))
            return f"{inner(_list)}.{macro}(x, {inner()})"
        case 9:
            return f"({inner(_text)} in {inner(_list)})"
        case 10 | 11:
            return (
                f"(timestamp({inner(_text)}) {compared} now() {random.choice('+-')} duration({inner(_text)}))"
            )
        case _:
            return f"({inner()} ? {inner()} : {inner()})"


_PATTERNS = (
    "^a+$",
    "(a*)*b",
    "(x+x+)+y",
    "(?i)a{1,50}",
    "[^a]",
    "(a|aa)+$",
    r"\\d*",
    "",
    "(?s).*",
    "(",
    "a{600}",
    r"\\pL",
)


def _number(random: Random, depth: int) -> str:
    if depth > 4 or random.random() < 0.3:
        return random.choice(
            ("0", "1", "-1", "run.turn", "9223372036854775807", "-9223372036854775808", "args.a", "args.b",
             "args.list[0]",
             "size(args)", "int(args.a)", "int(run.spent_usd)", "now().getFullYear('UTC')", "int(now())",
             "size(actor)")
        )  # fmt: skip
    one, other = _number(random, depth + 1), _number(random, depth + 1)
    return random.choice(
        (f"({one} {random.choice('+-*/%')} {other})", f"-({one})", f"size({_text(random, depth + 1)})")
    )


def _text(random: Random, depth: int) -> str:
    if depth > 4 or random.random() < 0.4:
        return random.choice(
            ("actor", "resource", "args.a", "args.path", "string(args.a)", "args['a']", "args.list[1]", "'a'",
             "'é😀'", "''",
             "string(now())", "'315576000000s'", "'9999-12-31T23:59:59Z'", "'-1ns'", "string(1.5)",
             r"string(b'\xff')")
        )  # fmt: skip
    one, other = _text(random, depth + 1), _text(random, depth + 1)
    return random.choice((f"({one} + {other})", f"string({_number(random, depth + 1)})", f"({one} + {one})"))


def _list(random: Random, depth: int) -> str:
    if depth > 4 or random.random() < 0.6:
        return random.choice(("args.list", "args", "[1, 2, 3]", "args.a", "[]", "['a', 'b']", "{'a': 1}"))
    one = _list(random, depth + 1)
    return random.choice(
        (
            f"{one}.map(x, {_number(random, depth + 1)})",
            f"{one}.filter(x, {_bool(random, depth + 2)})",
            f"({one} + {one})",
            f"[{one}, {one}]",
            f"{one}.map(x, {one})",
        )
    )


_ATOMS = (
    "true", "false", "null", "args", "actor", "tier", "resource", "transport", "run.goal", "run.turn",
    "run.spent_usd",
    "args.a", "args.list", "args['a']", "args.deep.deep.deep", "now()", "current_actor()", "0", "1", "-1",
    "1u", "1.5",
    "9223372036854775807", "-9223372036854775808", "18446744073709551615u", "1e308", "1e-320", "'x'",
    "b'\\xff'", '"é😀"',
    "r'\\d'", "'\\u0000'", "[]", "{}", "[1, 'a', true]", "{'a': 1, 2: 3}", "duration('1s')",
    "duration('315576000000s')",
    "timestamp('9999-12-31T23:59:59Z')", "timestamp('0001-01-01T00:00:00Z')", "type(1)", "int", "bool", "run",
    "zz", "''",
    "optional.of(1)", "args.?a", "x", "y", "google.protobuf.Value{}", "cel.bind(x, 1, x)", "dyn(1)",
)  # fmt: skip
_BINARY = ("+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", " in ")
_MACROS = ("all", "exists", "exists_one", "map", "filter")
_METHODS = (
    "size()", "startsWith('a')", "endsWith(actor)", "contains(args.a)", "matches('^a+$')", "matches('(a*)*b')",
    "matches('(x+x+)+y')", "matches('(?i)é{1,50}')", "matches('[')", "matches('(?=a)')", "getFullYear('UTC')", "x",
    "getHours('+02:00')", "getSeconds(args.a)", "lowerAscii()", "split('')", "replace('a', 'aa')",
    "substring(1)", "join()",
    "charAt(0)", "format([1])", "matches('a{1000}')", "matches('\\\\pL')", "matches(args.a)", "getDayOfWeek()",
)  # fmt: skip
_CONVERSIONS = (
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "bool",
    "duration",
    "timestamp",
    "dyn",
    "type",
    "size",
    "has",
    "nosuch",
)


def _wild(random: Random, depth: int = 0) -> str:
    if depth > 4 or random.random() < 0.15:
        return random.choice(_ATOMS)

    def inner() -> str:
        return _wild(random, depth + 1)

    match random.randrange(10):
        case 0 | 1 | 2:
            return f"({inner()}{random.choice(_BINARY)}{inner()})"
        case 3:
            return f"{random.choice('!-')}({inner()})"
        case 4:
            return f"{inner()}.{random.choice(_METHODS)}"
        case 5:
            # Two macros in one another go through 10 000 of what there is; a third, to no end.
            of = random.choice(("args.list", "args", "[1, 2, 3]", inner()))
            return f"{of}.{random.choice(_MACROS)}(x, {inner()})"
        case 6:
            return f"{random.choice(_CONVERSIONS)}({inner()})"
        case 7:
            return f"({inner()} ? {inner()} : {inner()})"
        case 8:
            return f"{inner()}[{inner()}]"
        case _:
            return f"{inner()} // {text(random)}\n" if depth == 0 else f"[{inner()}, {inner()}]"


def _deep(random: Random) -> list[str]:
    many = random.choice((10, 30, 100, 250, 1000, 4000))
    return [
        "(" * many + "true" + ")" * many,
        "!" * many + "true",
        "-" * many + "1 < 0",
        "[" * many + "]" * many + " == []",
        "true" + " && true" * many,
        "true" + " ? true : false" * many,
        "1" + " + 1" * many + " > 0",
        "'a'" + " + 'a'" * many + " == ''",
        "args" + ".a" * many + " == 1",
        "args" + "['a']" * many + " == 1",
        "args.list" + ".map(x, x)" * min(many, 400) + " == []",
        "[1].all(x, " * min(many, 30) + "true" + ")" * min(many, 30),
        "{'a': " * many + "1" + "}" * many + " == {}",
        "size(" * many + "'a'" + ")" * many + " == 1",
        f"'{'a' * many}'.matches('{'(a+)+' * min(many // 5, 40)}$')",
        f"args.a.matches('{'(' * min(many, 90)}a{')' * min(many, 90)}')",
        f"'{'é' * many}' == actor",
        "true //" + "x" * many,
        "\n" * many + "zz",
        '"' * many,
        "x" * 1_000_000,
        "true ||" * many,
    ]


def arguments(random: Random) -> dict[str, Any]:
    """Give the arguments of a call as a model may write them: any JSON, some of it much."""
    given: dict[str, Any] = {"list": [anything(random, 2) for _ in range(random.choice((0, 1, 3, 100)))]}
    for name in ("a", "b", "path", text(random)):
        if random.random() < 0.7:
            given[name] = anything(random)
    if random.random() < 0.15:
        deep: Any = 1
        for _ in range(random.choice((10, 64, 300))):
            deep = {"deep": deep} if random.random() < 0.5 else [deep]
        given["deep"] = deep
    if random.random() < 0.15:
        given["a"] = random.choice(("a", "é", "\0")) * random.choice((1000, 16_384, 16_385, 100_000))
    return given
