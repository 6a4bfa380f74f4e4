"""What a command loads before it does anything: that is most of what a person waits for."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server import Daemon

# What answers a shell leaves at once, and so it would before it has told.
PROBE = """\
import atexit, os, sys
atexit.register(lambda: print("loaded", *sys.modules, file=sys.stderr))
os._exit = sys.exit
"""
COMMAND = "from spl.cli.main import main\nmain()\n"

HELP = {"spl", "spl.cli", "spl.cli.commands", "spl.cli.main"}
CLICK = HELP | {
    "bwrap", "bwrap.text", "spl.cli.calling", "spl.cli.group", "spl.cli.options", "spl.cli.text", "spl.errors",
    "spl.journal",
}  # fmt: skip
OPTIONS = CLICK | {"spl.cli.completion", "spl.cli.output"}
CLIENT = CLICK | {"spl.cli.output", "spl.client", "spl.home"}
RUNS = CLIENT | OPTIONS | {
    "spl.cli.attending", "spl.cli.following", "spl.cli.runs", "spl.cli.steps", "spl.decisions",
}  # fmt: skip

STANDARD = (
    "click, click.shell_completion, fcntl, hashlib, http.client, json, locale, pathlib, pwd, "
    "secrets, select, shlex, signal, textwrap"
)


def loaded(environ: dict[str, str], code: str, *arguments: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", PROBE + code, *arguments],
        env=environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    told, _, modules = ended.stderr.rpartition("loaded ")
    assert (ended.returncode, told) == (0, "")
    return set(modules.split())


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_loads_nothing_of_ours_but_the_list_of_commands_and_no_click(
    environ: dict[str, str], option: str
) -> None:
    standard = loaded(environ, "import gc, shutil, textwrap, typing")
    assert loaded(environ, COMMAND, option) - standard == {"__future__", *HELP}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("spl ", CLICK),
        ("spl pro", CLICK),
        ("spl profile ", CLICK | {"spl.cli.profiles"}),
        ("spl serve --", OPTIONS | {"spl.cli.detached", "spl.cli.serve", "spl.home"}),
        ("spl doctor --", OPTIONS - {"spl.cli.completion"} | {"spl.cli.doctor"}),
    ],
)
def test_a_completion_loads_no_command_but_the_one_it_is_about(
    environ: dict[str, str], words: str, expected: set[str]
) -> None:
    asked = {
        "_SPL_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    standard = loaded(environ, f"import gc, subprocess, {STANDARD}")
    assert loaded({**environ, **asked}, COMMAND) - standard == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("version",), CLIENT - {"spl.client"} | {"spl.cli.instance"}),
        (("status",), CLIENT | {"spl.cli.instance"}),
        (("runs", "list"), RUNS),
        (("serve", "--help"), OPTIONS | {"spl.cli.detached", "spl.cli.serve", "spl.home"}),
        (("doctor", "--help"), OPTIONS - {"spl.cli.completion"} | {"spl.cli.doctor"}),
        (("profile", "--help"), CLICK | {"spl.cli.profiles"}),
    ],
)
def test_a_command_loads_what_it_needs_and_nothing_heavy(
    environ: dict[str, str], daemon: Daemon, words: tuple[str, ...], expected: set[str]
) -> None:
    daemon.routes |= {
        "GET /v1/engine/health": {"version": "x"},
        "GET /v1/runs": {"object": "list", "data": [], "has_more": False},
    }
    standard = loaded(environ, f"import gc, shutil, subprocess, {STANDARD}; click.wrap_text('')")
    assert loaded(environ, COMMAND, *words) - standard == expected


def test_what_is_loaded_is_not_looked_through_again_and_what_a_command_makes_is_collected(
    environ: dict[str, str],
) -> None:
    # gc.get_objects gives all but what is frozen.
    probe = """\
import atexit, gc, sys
def tell():
    seen = gc.get_objects()
    print(gc.isenabled(), *(any(each is sys.modules[name] for each in seen) for name in ("click", "spl.cli.instance")))
atexit.register(tell)
"""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", probe + COMMAND, "version"],
        env=environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.stdout.splitlines()[1:] == ["True False False"]
