from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from spl import errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spl.home import Home
    from tests.cli.conftest import Spl
    from tests.server import Daemon, Request

    Complete = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = """\
eval "$(spl completion bash)"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_spl_completion spl
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def bash(environ: dict[str, str], tmp_path: Path) -> Complete:
    """Give what completes a command line in a real bash, as its script has it do; the last word is yet to be ended."""
    command = tmp_path / "spl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m spl.cli.main "$@"\n')
    command.chmod(0o755)
    path = f"{tmp_path}:{environ['PATH']}"

    def complete(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "--norc", "-c", SCRIPT, "bash", "spl", *words],
            env={**environ, "PATH": path}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    return complete


@pytest.fixture
def ask(environ: dict[str, str]) -> Complete:
    """Give what asks the command for a completion as the script of a shell does, without the shell.

    It fails where the answer does not come before the client would give up by itself, in 30 seconds.
    """

    def complete(*words: str) -> subprocess.CompletedProcess[str]:
        given = {
            "_SPL_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("spl", *words)),
            "COMP_CWORD": str(len(words)),
        }
        return subprocess.run(
            [sys.executable, "-m", "spl.cli.main"],
            env={**environ, **given}, capture_output=True, text=True, timeout=20,
        )  # fmt: skip

    return complete


def offered(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Give the words that a completion offers, which is all that it says."""
    assert (ended.returncode, ended.stderr) == (0, "")
    return [line.partition(",")[2] for line in ended.stdout.splitlines() if line]


LISTINGS: dict[str, list[dict[str, Any]]] = {
    "GET /v1/runs": [{"thread": "th_run_b"}, {"thread": "th_run_a"}],
    "GET /v1/members": [{"label": "mia"}, {"label": "eve"}],
    "GET /v1/tokens": [{"id": "operator"}, {"id": "3f2a"}],
    "GET /v1/rules": [{"name": "no-notes"}],
}


@pytest.fixture
def listed(daemon: Daemon) -> Daemon:
    daemon.routes |= {path: {"object": "list", "data": data} for path, data in LISTINGS.items()}
    return daemon


def test_bash_completes_a_thread_by_what_the_daemon_lists(bash: Complete, listed: Daemon) -> None:
    ended = bash("runs", "show", "th_run_")
    assert (ended.stdout.split(), ended.stderr) == (["th_run_b", "th_run_a"], "")
    assert [request.query["order"] for request in listed.requests] == ["newest"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(spl: Spl, shell: str) -> None:
    script = spl("completion", shell)
    assert (script.returncode, script.stderr) == (0, "")
    assert f"_SPL_COMPLETE={shell}_complete" in script.stdout
    assert json.loads(spl("completion", shell, "-o", "json").stdout)["script"] + "\n" == script.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("why", ""), ["th_run_b", "th_run_a"]),
        (("verify", "th_run_a"), ["th_run_a"]),
        (("member", "revoke", "m"), ["mia"]),
        (("token", "rotate", ""), ["operator", "3f2a"]),
        (("config", "remove-permission-rule", ""), ["no-notes"]),
        (("config", "set-profile", "stric"), ["strict"]),
        (("config", "set-tier", "t"), ["trial", "team"]),
        (("runs", "list", "--state", "st"), ["stopped", "stopped_short"]),
        (("errors", "RUN_N"), ["RUN_NOT_FOUND", "RUN_NOT_COMPLETED"]),
        (("escape", "run", "netw"), ["network"]),
        (("know", "--act", "K"), ["KNOW"]),
        (("serve", "--provider", "a"), ["anthropic"]),
    ],
)  # fmt: skip
def test_a_value_is_completed_by_those_that_there_are(
    ask: Complete, listed: Daemon, words: tuple[str, ...], expected: list[str]
) -> None:
    assert [word for word in offered(ask(*words)) if "." not in word] == expected


def test_a_profile_of_ones_own_is_completed_without_a_daemon(ask: Complete, home: Home) -> None:
    (home.profiles / "mine.toml").write_text('extends = "worker"\n')
    assert offered(ask("config", "set-profile", "m")) == ["mine"]


def test_the_daemon_that_is_asked_is_that_of_the_command_line(
    ask: Complete, environ: dict[str, str], home: Home, listed: Daemon
) -> None:
    del environ["SPL_HOME"]
    environ["HOME"] = "/nonexistent"
    assert offered(ask("why", "--home", str(home.path), "th_run_a")) == ["th_run_a"]
    assert offered(ask("why", "th_run_a")) == []


def test_where_no_thread_fits_the_shell_is_to_complete_a_file(ask: Complete, listed: Daemon) -> None:
    assert ask("verify", "./ex").stdout == "file,./ex\n"


def test_without_a_daemon_the_shell_is_to_complete_a_file(ask: Complete) -> None:
    assert ask("verify", "th_").stdout == "file,th_\n"


@pytest.mark.parametrize(
    "name", ["$(touch x)", "a b", "a;b", "a\nplain,b", "-rf", "`x`", "a'b", "~root", "did:x:y", ""]
)
def test_what_a_shell_would_take_for_more_than_a_word_is_not_offered(
    ask: Complete, daemon: Daemon, name: str
) -> None:
    daemon.routes["GET /v1/rules"] = {"object": "list", "data": [{"name": name}, {"name": "fine"}]}
    assert offered(ask("config", "remove-permission-rule", "")) == ["fine"]


def test_a_daemon_that_does_not_answer_is_not_waited_for(ask: Complete, daemon: Daemon) -> None:
    go_on = threading.Event()

    def hold(_: Request) -> Any:
        go_on.wait(60)
        return {"object": "list", "data": [{"thread": "th_late"}]}

    daemon.routes["GET /v1/runs"] = hold
    try:
        assert offered(ask("runs", "show", "")) == []
    finally:
        go_on.set()


@pytest.mark.parametrize(
    "words", [("runs", "show", ""), ("member", "revoke", ""), ("config", "set-profile", "")]
)
def test_what_fails_says_nothing(ask: Complete, home: Home, words: tuple[str, ...]) -> None:
    home.path.chmod(0o777)
    assert offered(ask(*words)) == []
    assert list(home.run.iterdir()) == []


def test_a_refusal_of_the_daemons_says_nothing(ask: Complete, daemon: Daemon) -> None:
    daemon.routes["GET /v1/runs"] = {
        "object": "error",
        "status": 403,
        "code": errors.ScopeDenied.code,
        "message": "no",
    }
    assert offered(ask("runs", "show", "")) == []
