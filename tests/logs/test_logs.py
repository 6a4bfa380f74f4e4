"""The log of a process as it is configured: in its form, by its way, and with what the interpreter says of itself."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
import threading
from typing import Self

import pytest

from spl.logs import recent
from spl.logs.recent import Line, Recent

SCRIPT = """\
import logging, os, sys, threading, warnings
import structlog
from spl import logs

class Failing:
    def __del__(self):
        raise ValueError("at the end")

log = structlog.get_logger("spl.test")
recent = logs.configure(sys.argv[1])
log.warning("said", text="a\\nb", token="spl_local_0123abcd_" + "s" * 43)
logging.getLogger("other").error("%s", "by another")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
warnings.warn("careful")
Failing()
# One lock, whatever the ways a line goes: a finalizer may log in the middle of any.
locks = {handler.lock for handler in logging.getLogger().handlers}
print(os.environ.get("JOURNAL_STREAM"), len(recent.after(0)), len(locks))
"""


def run(form: str, stderr: int, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, form],
        env={"PATH": "/usr/bin", **environment},
        stdout=subprocess.PIPE,
        stderr=stderr,
        timeout=60,
        check=True,
        text=True,
    )
    return done.stdout


def of_pipe(form: str, *, journal: bool) -> tuple[str, list[str]]:
    reading, writing = os.pipe()
    found = os.fstat(writing)
    named = f"{found.st_dev}:{found.st_ino if journal else found.st_ino + 1}"
    said = run(form, writing, JOURNAL_STREAM=named)
    os.close(writing)
    with open(reading) as pipe:
        return said, pipe.read().splitlines()


def test_in_a_pipe_it_is_json_and_all_that_python_says_goes_by_it() -> None:
    said, lines = of_pipe("auto", journal=False)
    assert said == "None 5 1\n"
    found = [json.loads(each) for each in lines]
    assert found[0]["text"] == "a\nb"
    assert found[0]["token"] == "[redacted]"
    assert [each["event"].split("\n")[0].partition(":")[0] for each in found] == [
        "said",
        "by another",
        "a thread failed by a fault of the daemon's own",
        "<string>",
        "an error was ignored",
    ]
    assert found[2]["exception"].endswith("ZeroDivisionError: division by zero")
    assert found[4]["exception"].endswith("ValueError: at the end")


def test_what_a_finalizer_logs_while_a_line_is_kept_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Recent()
    kept.setFormatter(logging.Formatter('{"said": "%(message)s"}'))

    def say(text: str) -> None:
        kept.handle(logging.LogRecord("spl", logging.INFO, "", 0, text, None, None))

    class Finalizing(Line):
        def __new__(cls, number: int, said: str) -> Self:
            # Wherever it allocates, the collector may run.
            monkeypatch.setattr(recent, "Line", Line)
            say("by a finalizer")
            return super().__new__(cls, number, said)

    monkeypatch.setattr(recent, "Line", Finalizing)
    saying = threading.Thread(target=say, args=("whole",), daemon=True)
    saying.start()
    saying.join(10)

    assert not saying.is_alive()
    assert {line.fields["said"] for line in kept.after(0)} == {"whole", "by a finalizer"}


def test_a_line_is_formed_once_for_all_its_ways() -> None:
    script = """
import logging, structlog
from spl import logs

class Counted(Exception):
    formed = 0
    def __str__(self):
        Counted.formed += 1
        return "counted"

recent = logs.configure("json")
structlog.get_logger("spl.test").error("said", exc_info=Counted())
logs.flush()
print(Counted.formed, len(recent.after(0)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, json.loads(done.stderr)["event"]) == ("1 1\n", "said")


def test_in_the_journal_each_line_has_its_priority_and_no_child_is_told_of_it() -> None:
    said, lines = of_pipe("json", journal=True)
    assert said == "None 5 1\n"
    assert [each[:4] for each in lines] == ["<4>{", "<3>{", "<3>{", "<4>{", "<3>{"]


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_on_a_terminal_it_is_for_a_person(plain: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    run("auto", theirs, **plain)
    os.close(theirs)
    first = os.read(ours, 4096).decode().splitlines()[0]
    os.close(ours)
    level = "warning" if plain else "\x1b[33mwarning\x1b[0m"
    assert first[8:] == f' {level} said text="a\\nb" token="[redacted]"'


def test_where_standard_error_is_closed_there_is_no_log_and_no_end() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" auto 2>&-', sys.executable, SCRIPT],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "None 5 1\n")
