from __future__ import annotations

import subprocess
import sys

import pytest

from spl.errors import ExpressionInvalid
from spl.kernel import patterns
from spl.kernel.expressions import LONGEST, check


def refused(expression: str) -> ExpressionInvalid:
    with pytest.raises(ExpressionInvalid) as caught:
        check(expression)
    return caught.value


def in_a_process_of_its_own(program: str) -> str:
    """Run a program that may crash or hang; gives what it printed."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("expression", "line", "column", "reason", "excerpt"),
    [
        ("run.typo > 2", 1, 4, "undeclared reference to 'run.typo'", "run.typo > 2\n   ^"),
        ('run["turn"] > 2', 1, 1, "undeclared reference to 'run'", 'run["turn"] > 2\n^'),
        ("has(run.typo)", 1, 4, "undeclared reference to 'run.typo'", "has(run.typo)\n   ^"),
        ("has(run.turn)", 1, 1, "it gives int, not bool", "has(run.turn)\n^"),
        ('true &&\n  actr == "x"', 2, 3, "undeclared reference to 'actr'", '  actr == "x"\n  ^'),
        (
            'run.turn == "x"',
            1,
            10,
            "found no matching overload for '_==_' applied to '(int, string)'",
            'run.turn == "x"\n         ^',
        ),
        ('actor = "x"', 1, 7, "Syntax error: token recognition error at: '= '", 'actor = "x"\n      ^'),
        ("true)||(true", 1, 5, "Syntax error: mismatched input ')' expecting the end", "true)||(true\n    ^"),
        ("true &&", 1, 8, "Syntax error: unexpected end", "true &&\n       ^"),
        ("", 1, 1, "Syntax error: unexpected end", "\n^"),
        ('"x"', 1, 1, "it gives string, not bool", '"x"\n^'),
        ("[true]", 1, 1, "it gives list<bool>, not bool", "[true]\n^"),
        ('"é日😀" == zz', 1, 10, "undeclared reference to 'zz'", '"é日😀" == zz\n           ^'),
        ('"e\u0301" == zz', 1, 9, "undeclared reference to 'zz'", '"e\u0301" == zz\n       ^'),
        ("\ttrue ||\tzz", 1, 10, "undeclared reference to 'zz'", " true || zz\n         ^"),
        ("true\0", 1, 5, "U+0000 cannot be seen; in a string, write it as \\x00", "true\\x00\n    ^"),
        (
            '"\ud800" == zz',
            1,
            2,
            "U+D800 cannot be seen",
            '"\\ud800" == zz\n ^',
        ),
        (
            "false //\r|| true",
            1,
            9,
            "U+000D cannot be seen; in a string, write it as \\r",
            "false //\\r|| true\n        ^",
        ),
        (
            "\u00a0\x1b[2J",
            1,
            2,
            "U+001B cannot be seen; in a string, write it as \\x1b",
            "\\xa0\\x1b[2J\n    ^",
        ),
        (
            '"\u202e" == ""',
            1,
            2,
            "U+202E cannot be seen; in a string, write it as \\u202e",
            '"\\u202e" == ""\n ^',
        ),
    ],
)
def test_what_does_not_compile_is_refused_with_its_place(
    expression: str, line: int, column: int, reason: str, excerpt: str
) -> None:
    error = refused(expression)
    assert error.message == f"the expression is not valid at line {line}, column {column}: {reason}"
    assert error.fields == {"line": line, "column": column, "excerpt": excerpt}


def test_of_a_long_line_what_is_near_is_shown() -> None:
    excerpt = refused(f'"{"a" * 1000}" == zz && "{"b" * 1000}" == ""').fields["excerpt"]
    assert excerpt == f'…{"a" * 55}" == zz && "{"b" * 113}…\n{" " * 61}^'


def test_an_expression_may_have_so_many_characters_and_no_more() -> None:
    check(f"true //{'é' * (LONGEST - 7)}")
    error = refused(f"true //{'é' * (LONGEST - 6)}")
    assert "it is longer than 4096 characters" in error.message
    assert error.fields["column"] == LONGEST + 1


@pytest.mark.parametrize(
    "zone", ["args.zone", '"/tmp/pipe"', '"file:/tmp/pipe"', '"Europe/../../pipe"', "// \n'UTC'"]
)
def test_a_time_zone_that_is_not_written_out_is_refused_for_the_library_opens_a_file_of_its_name(
    zone: str,
) -> None:
    expression = f"now().getHours({zone}) < 9"
    assert refused(expression).fields["column"] == 7
    assert 'as "Europe/Berlin" or "+02:00"' in refused(expression).message


def test_hostile_expressions_are_refused_and_end_nothing() -> None:
    program = """
from spl.errors import ExpressionInvalid
from spl.kernel import expressions
expressions.LONGEST = 60_000
n = 10_000
for hostile in (
    "(" * n + "true" + ")" * n, "[" * n + "]" * n + " == []", "size(" * n, "{" * n, '"' * n, "@ " * n, "true ? " * n,
    "1" + "+1" * n + " == 1", "args" + ".a" * n, "args" + "[0]" * n, "9" * n + " == 1", "[1]" + ".map(x, x)" * 5000,
    "[1].all(x, " * 5000, "!" * n, "-" * n + "x", "`" * n, "\\\\" * n, "'''" + "a" * n, "a." * n, "? :" * n, "0x" * n,
):
    try:
        expressions.check(hostile)
    except ExpressionInvalid as error:
        assert error.message.isprintable() and len(error.message) < 300, error.message
        assert len(error.fields["excerpt"]) < 1000
    else:
        raise AssertionError(hostile[:20])
for harmless in ("!" * n + "true", "&&".join(["true"] * n)):
    expressions.check(harmless)
"""
    in_a_process_of_its_own(program)


# --- patterns ---


@pytest.mark.parametrize(
    "expression",
    [
        "args.path.matches('^/etc/')",
        'args.path.matches("^/etc/\\\\w+[.]conf$")',
        r'args.path.matches(r"^/etc/\w+\.conf$")',
        "args.path.matches('''it's \"so\"''')",
        'args.path.matches("""it\'s "so" ""or""" )',
        "args.path . matches // so\n (\n'a'\t)",
        'args.path.matches("[)]") || args.path.matches("(a)")',
        "args.list.exists(each, each.matches('a{1,20}')) && run.goal.matches('b')",
        "args.matches == 1 && has(args.matches)",
    ],
)
def test_a_pattern_that_is_written_out_is_taken(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "args.path.matches(args.pattern)",
        "args.path.matches('a' + args.pattern)",
        "args.path.matches('a' + 'b')",
        "args.path.matches(('a'))",
        "args.path.matches(true ? 'a' : args.pattern)",
        "matches(args.path, args.pattern)",
        "matches(args.path, 'a')",
        ".matches(args.path, args.pattern)",
        "args.path.matches // ('a')\n (args.pattern)",
        "args.path.matches('a' // )\n + args.pattern)",
        "args.path.matches('''a''' + args.pattern + '''b''')",
        "args.path.matches('' + args.pattern + '')",
        'args.path.matches("\\")" + args.pattern)',
        # One in a string is no call, and hides none.
        """ "matches(" == "" || args.path.matches(args.pattern) || ")" == "" """,
        """ ".matches('" == "" || args.path.matches(args.pattern) || "')" == "" """,
        "args.list.exists(each, args.path.matches(each))",
    ],
)
def test_a_pattern_that_is_not_written_out_is_refused_with_its_place(expression: str) -> None:
    error = refused(expression)
    assert error.message.endswith(": a pattern must be written out, as in args.path.matches('^/etc/')")
    line, column = error.fields["line"], error.fields["column"]
    assert isinstance(line, int)
    assert isinstance(column, int)
    assert expression.split("\n")[line - 1][column - 1 :].startswith("matches")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "invalid regular expression: missing ): ("),
        (")", "invalid regular expression: unexpected ): )"),
        ("a**", "invalid regular expression: bad repetition operator: **"),
        # Of two counts of one piece only the last would be seen.
        ("(a{9})?{99}", "invalid regular expression: bad repetition operator: ?{99}"),
        ("a{9}+?{99}", "invalid regular expression: bad repetition operator: {9}+?"),
        ("(?=a)", "invalid regular expression: invalid perl operator: (?="),
        ("[a", "invalid regular expression: missing ]: [a"),
        ("a{1001}", "with its counts written out, a pattern may have 600 characters, and this one has 1001"),
        ("a" * 201, "a pattern may have 200 characters, and this one has 201"),
    ],
)
def test_a_pattern_that_is_none_or_too_much_is_refused_where_it_stands(pattern: str, reason: str) -> None:
    error = refused(f"true &&\n args.path.matches('{pattern}')")
    assert error.message == f"the expression is not valid at line 2, column 20: {reason}"


def test_many_slashes_before_no_parenthesis_take_no_time() -> None:
    assert "undeclared reference to 'matches'" in refused("matches" + "//" * 2000).message


def test_a_pattern_is_measured_as_it_is_and_not_as_it_is_written() -> None:
    letter = "\\x61"
    check(f"resource.matches('{letter * patterns.LONGEST}')")
    assert "this one has 201" in refused(f"resource.matches('{letter * 201}')").message
    assert "missing )" in refused("resource.matches('\\x28')").message
