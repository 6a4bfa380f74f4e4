from __future__ import annotations

import json
from typing import Any

from spl.logs.fields import LINE_MOST, bounded, ordered
from spl.logs.forms import ForTerminal, as_json

AT = {"level": "info", "logger": "spl.transports", "timestamp": "2027-01-15T12:30:59.123456Z"}
HOSTILE = 'a\n{"event": "forged"}\r\x1b[2J\x9b1m\u202e\udcff "q" \\'


def terminal(fields: dict[str, Any], *, colours: bool = False) -> str:
    return ForTerminal(colours=colours)(None, "", {**AT, **fields})


def test_a_start_reads_as_it_is_looked_for() -> None:
    fields = {"event": "running sandboxed", "thread": "th_run_1", "pid": 7, "profile": "worker", "uid": 60001}
    said = terminal(fields)
    assert said[2] == said[5] == ":"
    assert said[8:] == " info    running sandboxed thread=th_run_1 pid=7 profile=worker uid=60001"
    (line,) = as_json(None, "", ordered(None, "", {**AT, **fields})).splitlines()
    assert list(json.loads(line)) == [*fields, "level", "logger", "timestamp"]
    assert line.startswith(
        '{"event": "running sandboxed", "thread": "th_run_1", "pid": 7, "profile": "worker", '
    )


def test_only_the_level_is_coloured_and_only_if_that_is_wanted() -> None:
    assert terminal({"event": "e", "level": "error"}, colours=True)[8:] == " \x1b[31merror  \x1b[0m e"
    assert "\x1b" not in terminal({"event": "e", "level": "error"})


def test_a_value_is_quoted_where_it_must_be_and_a_stranger_who_logs_is_named() -> None:
    said = terminal(
        {
            "event": "e",
            "a": "",
            "b": "two words",
            "c": '"',
            "d": None,
            "e": ["x", 1],
            "f": "did:sync:user:ana",
            "g": "é",
            "h": "a=b",
        }
    )
    assert (
        said[8:] == ' info    e a="" b="two words" c="\\"" d=null e=["x", 1] f=did:sync:user:ana g=é h="a=b"'
    )
    assert terminal({"event": "e", "logger": "asyncio"}).endswith(" e logger=asyncio")


def test_no_text_ends_a_line_or_steers_the_terminal() -> None:
    said = terminal({"event": HOSTILE, HOSTILE: HOSTILE, "nested": {"a": [HOSTILE]}, "logger": HOSTILE})
    assert said.isprintable()
    line = as_json(None, "", {**AT, "event": HOSTILE, HOSTILE: {"a": HOSTILE}})
    assert line.isprintable()
    assert line.isascii()
    assert json.loads(line)[HOSTILE] == {"a": HOSTILE}
    traced = terminal({"event": "e", "exception": f"Traceback\n  File x\nError: \x1b]0;{HOSTILE}"})
    assert all(each.isprintable() for each in traced.split("\n"))
    assert traced.split("\n")[1:3] == ["    Traceback", "      File x"]


def test_a_line_is_cut_to_what_a_reader_takes_and_keeps_what_it_is_found_by() -> None:
    most: dict[str, Any] = {"event": "e", **AT}
    for long in ("\0" * 9000, "x" * 10**6, [f"th_run_{n:024x}" for n in range(5000)], {"a": "y" * 10**5}):
        fields = {**most, "thread": "th_run_1", "error": long, "exception": f"first {'z' * 10**5} last"}
        found = bounded(None, "", fields)
        assert len(json.dumps(found)) <= LINE_MOST
        assert (found["event"], found["thread"], found["timestamp"]) == ("e", "th_run_1", AT["timestamp"])
        assert found["exception"].startswith("first ")
        assert found["exception"].endswith(" last")
    many = {f"field {n}": "x" * 100 for n in range(1000)}
    assert bounded(None, "", {**most, **many}) == most
    assert bounded(None, "", most) is most
