"""What is shown on standard error of something that takes long: each test looks at a real terminal, or at none."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

import pytest

WORKING = """\
from spl.cli.progress import working
with working("copying \\x1b[2J[bold]"):
    pass
"""
BARS = """\
from spl.cli.progress import bars
with bars() as tell:
    tell("hosted", 0, 2)
    tell("hosted", 1, last="first\\x1b[2J")
    tell("hosted", 2, last="[bold]second")
"""


def on_terminal(script: str) -> str:
    """Run a script whose standard error is a terminal; gives what it writes there."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with open(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen([sys.executable, "-c", script], env=environ, stderr=theirs)
        os.close(theirs)
        shown = b""
        # EIO is how the last of a terminal's users is seen to have gone.
        with contextlib.suppress(OSError):
            while piece := screen.read(65536):
                shown += piece
        assert process.wait(30) == 0
    return shown.decode()


@pytest.mark.parametrize("script", [WORKING, BARS])
def test_nothing_is_shown_but_on_a_terminal(script: str) -> None:
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_what_goes_on_is_shown_as_text_and_is_gone_at_its_end() -> None:
    shown = on_terminal(WORKING)
    assert r"copying \x1b[2J[bold]" in shown
    # Its line is cleared: nothing stands there for what is printed next.
    assert "\x1b[2K" in shown
    assert "\x1b[2J" not in shown


def test_each_part_has_a_bar_with_how_much_of_it_is_done_and_what_came_last() -> None:
    shown = on_terminal(BARS)
    assert "hosted" in shown
    assert "2/2" in shown
    assert "[bold]second" in shown
    assert "\x1b[2J" not in shown
