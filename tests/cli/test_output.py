from __future__ import annotations

import os
import pty
import re
import subprocess
import termios
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import COMMAND

if TYPE_CHECKING:
    from tests.cli.conftest import Spl
    from tests.server import Daemon

THREAD = "th_run_0123456789abcdef0123456789abcdef"
RUN = {"thread": THREAD, "actor": "did:sync:user:somebody", "state": "stopped_short", "transport": "sandboxed",
       "turns": 12, "spent_usd": 0.0123, "goal": "count the cats in the garden"}  # fmt: skip
TIER = {"max_turns": 50, "wall_clock_secs": 1800, "token_budget": 1_000_000, "default_budget_usd": 2.0,
        "daily_cost_usd": 50.0, "daily_runs": 2000, "concurrent_runs": 20}  # fmt: skip


@pytest.fixture(autouse=True)
def _routes(daemon: Daemon) -> None:
    tiers = [{**TIER, "tier": tier} for tier in ("trial", "paid", "team", "operator")]
    daemon.routes["GET /v1/runs"] = {"object": "list", "data": [RUN], "has_more": False}
    daemon.routes["GET /v1/tiers"] = {"object": "list", "data": tiers, "has_more": False}


def on_terminal(environ: dict[str, str], width: int, *arguments: str) -> list[str]:
    """Give the lines that a command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        termios.tcsetwinsize(theirs, (24, width))
        shown = {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES")}
        subprocess.run(
            [*COMMAND, *arguments], env={**shown, "TERM": "xterm"}, stdout=theirs, timeout=60, check=True
        )
        os.set_blocking(ours, False)
        said = terminal.read(1 << 16)
        os.close(theirs)
    # Headings are bold.
    return re.sub(r"\x1b\[\d+m", "", said.decode()).split("\r\n")


@pytest.mark.parametrize("width", [40, 60, 80])
def test_an_id_stands_whole_on_a_narrow_terminal_and_every_column_beside_it_is_there(
    environ: dict[str, str], width: int
) -> None:
    lines = on_terminal(environ, width, "runs", "list")
    assert [line.split()[0] for line in lines if line[:1].strip()] == ["thread", THREAD]
    assert "".join("".join(lines).split()).count("garden") == 1
    (row,) = (line for line in lines if line.startswith(THREAD))
    assert row.split()[4:5] == ["12"]
    assert len(row.split()) == 7


def test_the_tiers_are_a_table_that_fits_80_columns_and_breaks_no_ceiling(environ: dict[str, str]) -> None:
    lines = [line.split() for line in on_terminal(environ, 80, "config", "list-tiers") if line]
    assert lines[0] == ["trial", "paid", "team", "operator"]
    assert [line[0] for line in lines[1:]] == list(TIER)
    assert ["token_budget", *["1000000"] * 4] in lines


@pytest.mark.parametrize("command", [("runs", "list"), ("runs", "show", THREAD), ("config", "list-tiers")])
def test_no_line_ends_in_blanks_where_there_is_no_terminal(
    spl: Spl, daemon: Daemon, command: tuple[str, ...]
) -> None:
    daemon.routes[f"GET /v1/runs/{THREAD}"] = {**RUN, "summary": None}
    ended = spl(*command, "-o", "table")
    assert (ended.returncode, ended.stdout.count("\n") > 1) == (0, True)
    assert [line for line in ended.stdout.splitlines() if line != line.rstrip()] == []
