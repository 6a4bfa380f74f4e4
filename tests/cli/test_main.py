from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import click
import pytest

from bwrap import host
from spl import __version__, errors
from spl.cli import profiles
from spl.cli.calling import commands
from spl.cli.commands import COMMANDS, HEADINGS, overview
from spl.cli.options import STREAMING
from spl.cli.profiles import profile
from spl.client import Client
from tests.commands_page import examples, leaves
from tests.docs.calls import calls
from tests.server import error

if TYPE_CHECKING:
    from pathlib import Path

    from spl.home import Home
    from tests.cli.conftest import Spl
    from tests.server import Daemon, Request

HEALTH = "GET /v1/engine/health"


LEAVES = {tuple(name.split()[1:]): command for name, command in leaves()}


def test_the_commands_are_those_of_the_contract() -> None:
    assert [" ".join(path) for path in LEAVES] == [
        "init", "serve", "stop", "status", "doctor", "console",
        "service list", "service show",
        "run", "runs list", "runs show", "runs stop", "runs tail", "why",
        "know", "thread records", "thread watch", "verify", "backup", "restore",
        "member add", "member list", "member revoke",
        "token list", "token mint", "token revoke", "token rotate", "token show",
        "config add-permission-rule", "config disable-permission-rule",
        "config enable-permission-rule", "config list-rules", "config list-tiers",
        "config remove-permission-rule", "config set-actor-tier", "config set-capacity", "config set-profile",
        "config set-standby", "config set-tier", "config set-transport", "config show", "config unset-actor-tier",
        "config unset-capacity", "config unset-profile", "config unset-standby",
        "profile list", "profile show", "profile explain", "profile diff", "profile lint", "profile render",
        "profile try", "profile trace", "profile new",
        "escape mutate", "escape report", "escape run", "bench", "provider check",
        "errors", "completion", "version",
    ]  # fmt: skip


LISTED = [(commands, name, said) for name, (_, said) in COMMANDS.items()] + [
    (profile, name, said) for name, (_, said) in profiles.COMMANDS.items()
]


@pytest.mark.parametrize(("group", "name", "said"), LISTED, ids=[name for _, name, _ in LISTED])
def test_the_list_of_commands_says_what_each_command_says_of_itself(
    group: click.Group, name: str, said: str
) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert (command.name, command.get_short_help_str(limit=200)) == (name, said)


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_takes_a_home_and_an_output_format(path: tuple[str, ...]) -> None:
    options = {option for parameter in LEAVES[path].params for option in parameter.opts}
    assert {"-o", "--output"} <= options
    # The suite and the benchmark have homes of their own, and throw them away; the units are of no home.
    assert "--home" in options or path[0] in {"bench", "completion", "escape", "service", "version"}


def test_every_command_stands_under_one_heading() -> None:
    listed = [name for names in HEADINGS.values() for name in names]
    assert sorted(COMMANDS) == sorted(listed)


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_has_examples_that_it_would_take(path: tuple[str, ...]) -> None:
    found = examples(LEAVES[path])
    called = [tuple(words) for example in found for words in calls(example)]
    assert 1 <= len(found) <= 3
    assert path in {words[: len(path)] for words in called}
    for words in called:
        name = next(leaf for leaf in LEAVES if words[: len(leaf)] == leaf)
        # What the command line would refuse, this raises.
        LEAVES[name].make_context(" ".join(name), list(words[len(name) :]))


def test_what_prints_one_document_a_line_is_what_the_other_commands_name(spl: Spl) -> None:
    streaming = [
        " ".join(path)
        for path, command in LEAVES.items()
        for parameter in command.params
        if parameter.name == "output" and "stream-json" in getattr(parameter.type, "choices", ())
    ]
    assert sorted(streaming) == sorted(STREAMING)
    refused = spl("status", "-o", "stream-json")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert all(f"'{name}'" in refused.stderr for name in STREAMING)


def test_without_a_command_there_is_help_and_no_success(spl: Spl) -> None:
    ended = spl()
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", spl("--help").stdout)


@pytest.mark.parametrize("columns", [10, *range(52, 81), 200])
def test_the_help_that_is_printed_without_click_is_what_click_would_print(columns: int) -> None:
    width = max(min(columns, 80) - 2, 50)
    context = click.Context(commands, info_name="spl", **commands.context_settings)
    formatter = click.HelpFormatter(width=width)
    commands.format_usage(context, formatter)
    commands.format_help_text(context, formatter)
    click.Command.format_options(commands, context, formatter)
    widest = max(map(len, COMMANDS))
    for heading, names in HEADINGS.items():
        with formatter.section(heading):
            formatter.write_dl([(name.ljust(widest), COMMANDS[name][1]) for name in names])
    assert overview(width) == formatter.getvalue()


@pytest.mark.parametrize("columns", ["10", "52", "66", "200", "nonsense"])
def test_help_is_as_wide_as_the_terminal_with_and_without_click(spl: Spl, columns: str) -> None:
    # Without a command it is click that gives the help.
    assert spl("--help", COLUMNS=columns).stdout == spl(COLUMNS=columns).stderr


def test_help_lists_every_command(spl: Spl) -> None:
    help_ = spl("--help")
    assert help_.returncode == 0
    assert [name for name in COMMANDS if not re.search(rf"^  {name} ", help_.stdout, re.MULTILINE)] == []


@pytest.mark.parametrize("typed", ["a\x1b[31mb", "\x1b]0;owned\x07", "a\u202eb"])
def test_what_was_typed_cannot_steer_the_terminal_when_it_is_quoted(spl: Spl, typed: str) -> None:
    refused = spl("status", typed)
    assert refused.returncode == 2
    assert "Got unexpected extra argument" in refused.stderr
    assert [each for each in refused.stderr if not each.isprintable() and each != "\n"] == []


def test_the_list_of_what_may_be_chosen_keeps_its_lines(spl: Spl) -> None:
    assert spl("completion").stderr.endswith("Choose from:\n    bash,\n    zsh,\n    fish\n")


def test_an_empty_word_of_completion_asks_for_none(spl: Spl) -> None:
    assert spl("runs", "show", "nope", _SPL_COMPLETE="").returncode == errors.DaemonUnreachable.exit_status


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_what_is_no_number_is_wrong_usage_before_anything_is_done(spl: Spl, number: str) -> None:
    assert spl("stop", f"--timeout={number}").returncode == 2
    assert spl("run", f"--budget-usd={number}", "g").returncode == 2


def test_nothing_is_done_whose_answer_could_not_be_printed(environ: dict[str, str], daemon: Daemon) -> None:
    command = [sys.executable, "-m", "spl.cli.main", "member", "add", "ada"]
    both = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command]
    told = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    refused = subprocess.run(told, env=environ, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (refused.returncode, daemon.requests) == (errors.HostRefused.exit_status, [])
    assert "'standard output': it is closed" in refused.stderr
    assert subprocess.run(both, env=environ, timeout=60).returncode == errors.HostRefused.exit_status


def test_the_version_is_printed_by_flag_and_by_command(spl: Spl) -> None:
    assert spl("--version").stdout == spl("version").stdout == f"spl {__version__}\n"
    said = json.loads(spl("version", "-o", "json").stdout)
    assert (said["version"], said["python"]) == (__version__, platform.python_version())
    assert said["libseccomp"] == host.find_libseccomp()
    assert said["bubblewrap"] == host.find_bubblewrap(host.shape()).version
    assert said.keys() == {"version", "python", "kernel", "machine", "shape", "bubblewrap", "libseccomp"}


def test_what_a_version_stands_on_is_null_where_it_is_not_there(spl: Spl, tmp_path: Path) -> None:
    # Before the packages: a wrapper of libseccomp that finds none.
    (tmp_path / "pyseccomp.py").write_text("raise RuntimeError('no libseccomp')\n")
    said = json.loads(spl("version", "-o", "json", PYTHONPATH=str(tmp_path)).stdout)
    assert (said["version"], said["libseccomp"]) == (__version__, None)


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("run",), ("runs", "list", "--limit", "0"), ("--nonsense",)]
)
def test_wrong_usage_ends_with_2(spl: Spl, arguments: tuple[str, ...]) -> None:
    ended = spl(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Usage: spl" in ended.stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("memeber", "member"), ("tokens", "token"), ("confg", "config"), ("error", "errors")]
)
def test_a_command_that_is_not_there_is_answered_with_the_one_that_may_have_been_meant(
    spl: Spl, typed: str, meant: str
) -> None:
    ended = spl(typed, "list")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.endswith(f"Error: No such command '{typed}'. Did you mean '{meant}'?\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("runs", "lst"), "'list'"),
        (("runs", "list", "--stat", "done"), "--state"),
        (("config", "set-transport", "sandbox"), "'sandboxed'"),
    ],
)
def test_wrong_usage_is_said_in_one_line_that_names_what_there_is(
    spl: Spl, typed: tuple[str, ...], meant: str
) -> None:
    ended = spl(*typed)
    *_, said = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout, said.startswith("Error: "), meant in said) == (2, "", True, True)


@pytest.mark.parametrize("path", [(), ("status",), ("runs",), ("runs", "list"), ("config", "set-tier")])
def test_the_short_option_for_help_is_known_everywhere(spl: Spl, path: tuple[str, ...]) -> None:
    short = spl(*path, "-h")
    assert (short.returncode, short.stderr, short.stdout) == (0, "", spl(*path, "--help").stdout)
    assert "  -h, --help " in short.stdout


@pytest.mark.parametrize("kind", [errors.ScopeDenied, errors.IsolationUnavailable, errors.StoreUnavailable])
def test_an_error_ends_with_its_status_and_says_its_code_and_remedy(
    spl: Spl, daemon: Daemon, kind: type[errors.SplError]
) -> None:
    daemon.routes[HEALTH] = error(kind.status, kind.code, "what failed")
    ended = spl("status")
    assert (ended.returncode, ended.stdout) == (kind.exit_status, "")
    assert ended.stderr == f"spl: {kind.code}: what failed; {kind.remedy}\n"


def test_in_json_an_error_is_given_as_a_document_too(spl: Spl, daemon: Daemon) -> None:
    daemon.routes[HEALTH] = error(503, "ISOLATION_UNAVAILABLE", "what failed", layer="network")
    said, document = spl("status", "-o", "json").stderr.splitlines()
    assert said.startswith("spl: ISOLATION_UNAVAILABLE: what failed; ")
    told = json.loads(document)
    assert (told["object"], told["code"], told["layer"]) == ("error", "ISOLATION_UNAVAILABLE", "network")
    assert told["remedy"]


def test_an_error_cannot_write_to_the_terminal(spl: Spl, daemon: Daemon) -> None:
    daemon.routes[HEALTH] = error(400, "INGEST_FAILED", "\x1b[2J\u202eevil\n")
    ended = spl("status")
    assert ended.stderr.startswith(r"spl: INGEST_FAILED: \x1b[2J\u202eevil\n; ")


def test_without_a_daemon_a_command_says_how_to_start_one(spl: Spl) -> None:
    ended = spl("status")
    assert ended.returncode == errors.DaemonUnreachable.exit_status
    assert ended.stderr.startswith("spl: DAEMON_UNREACHABLE: no daemon answers at ")
    assert "'spl serve'" in ended.stderr


def test_the_home_is_taken_from_the_flag_the_variable_or_its_alias(
    spl: Spl, home: Home, daemon: Daemon
) -> None:
    daemon.routes[HEALTH] = {"version": "x"}
    elsewhere = {"SPL_HOME": str(home.path / "data")}
    assert spl("status", **elsewhere).returncode == errors.DaemonUnreachable.exit_status
    assert spl("status", "--home", str(home.path), **elsewhere).returncode == 0
    assert spl("status").returncode == 0


def test_a_daemon_elsewhere_is_reached_by_url_and_token(spl: Spl, daemon: Daemon) -> None:
    where = daemon.__class__({HEALTH: {"version": "far"}})
    host, port = where.start(("127.0.0.1", 0))
    try:
        ended = spl("status", SPL_URL=f"http://{host}:{port}", SPL_TOKEN="spl_secret")
        assert json.loads(ended.stdout) == {"version": "far"}
        assert where.requests[0].headers["authorization"] == "Bearer spl_secret"
        where.routes.clear()
        ended = spl("status", SPL_URL=f"http://{host}:{port}", SPL_TOKEN="spl_secret")
        assert (ended.returncode, "spl_secret" in ended.stderr) == (errors.NotFound.exit_status, False)
    finally:
        where.stop()
    assert daemon.requests == []


@pytest.mark.parametrize(
    ("host", "token", "warned"),
    [
        ("127.0.0.1", "spl_secret", False), ("[::1]", "spl_secret", False), ("localhost", "spl_secret", False),
        ("192.0.2.1", "spl_secret", True), ("localhost.example", "spl_secret", True), ("192.0.2.1", None, False),
    ],
)  # fmt: skip
def test_a_token_that_leaves_this_machine_readable_is_warned_of(
    capsys: pytest.CaptureFixture[str], host: str, token: str | None, warned: bool
) -> None:
    Client.locate(None, {"SPL_URL": f"http://{host}:9100", **({} if token is None else {"SPL_TOKEN": token})})
    said = capsys.readouterr().err
    assert (said.startswith("spl: warning: SPL_URL is plain HTTP to another machine"), "ssh -L" in said) == (
        warned,
        warned,
    )
    assert "spl_secret" not in said


def test_an_interrupt_ends_quietly_with_130(daemon: Daemon, environ: dict[str, str]) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def hold(request: Request) -> Any:
        asked.set()
        go_on.wait()
        return {}

    daemon.routes[HEALTH] = hold
    command = [sys.executable, "-m", "spl.cli.main", "status"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert asked.wait(30)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
        go_on.set()
    assert (process.returncode, stdout, stderr.strip()) == (130, b"", b"")


def test_an_interrupt_while_the_command_is_still_being_loaded_ends_quietly_too(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "click.py").write_text("import signal\nprint('loading', flush=True)\nsignal.pause()\n")
    command = [sys.executable, "-m", "spl.cli.main", "version"]
    with subprocess.Popen(
        command, env={**environ, "PYTHONPATH": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == 130


@pytest.mark.parametrize("arguments", [("--help",), ("status", "-o", "json"), ("status", "-o", "table")])
def test_a_reader_that_has_gone_ends_a_command_quietly(
    daemon: Daemon, environ: dict[str, str], arguments: tuple[str, ...]
) -> None:
    daemon.routes[HEALTH] = {"text": ["x" * 100] * 10_000}
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "spl.cli.main", *arguments]
    ended = subprocess.run(command, env=environ, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("spl st", {"stop", "status"}),
        ("spl runs ", {"list", "show", "stop", "tail"}),
        ("spl config set-transport s", {"sandboxed"}),
        ("spl config set-tier trial --reset max", {"max-turns"}),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_complete_in_the_shell(
    environ: dict[str, str], shell: str, words: str, expected: set[str]
) -> None:
    given = {
        "_SPL_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    if shell == "fish":
        given["COMP_CWORD"] = words.rpartition(" ")[2]
    command = [sys.executable, "-m", "spl.cli.main"]
    ended = subprocess.run(command, env={**environ, **given}, capture_output=True, text=True, timeout=60)
    assert {word for word in expected if word in ended.stdout} == expected
    assert "serve" not in ended.stdout


def test_what_the_operating_system_refuses_is_one_sentence_and_no_traceback(spl: Spl, home: Home) -> None:
    home.pid.symlink_to("/etc/passwd")
    ended = spl("stop")
    assert ended.returncode == errors.HostRefused.exit_status
    assert ended.stderr.startswith("spl: HOST_REFUSED: the operating system refused on '")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("--help",), ("version",), ("version", "-o", "json")])
def test_a_full_standard_output_is_an_error_that_is_said(
    environ: dict[str, str], command: tuple[str, ...]
) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "spl.cli.main", *command],
            env=environ, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == errors.HostRefused.exit_status
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_where_standard_error_is_full_too_the_exit_status_is_told(
    environ: dict[str, str], home: Home
) -> None:
    command = [sys.executable, "-m", "spl.cli.main", "stop", "--home", str(home.path)]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, stderr=full, check=False)
    assert ended.returncode == errors.DaemonUnreachable.exit_status


def test_in_the_journal_each_line_of_an_error_has_the_priority_of_one(
    environ: dict[str, str], home: Home
) -> None:
    reading, writing = os.pipe()
    found = os.fstat(writing)
    environ = {**environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    command = [sys.executable, "-m", "spl.cli.main", "stop", "--home", str(home.path), "-o", "json"]
    subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, stderr=writing, check=False)
    os.close(writing)
    with open(reading) as pipe:
        assert [line[:4] for line in pipe] == ["<3>s", "<3>{"]


@pytest.mark.parametrize("group", ["config", "member", "profile", "runs", "thread", "token"])
def test_what_a_group_says_of_each_of_its_commands_is_said_whole(spl: Spl, group: str) -> None:
    listed = spl(group, "--help").stdout.partition("\nCommands:\n")[2].splitlines()
    assert listed
    assert [line for line in listed if not re.fullmatch(r"  [a-z-]+ +[A-Z].*[^.]\.", line)] == []


def test_a_remedy_that_the_daemon_gives_is_the_one_that_is_said(spl: Spl, daemon: Daemon) -> None:
    refusal = error(
        503, "ISOLATION_UNAVAILABLE", "the layer network cannot be confirmed", remedy="mend the kernel"
    )
    daemon.routes["POST /v1/work/loop"] = refusal
    assert "; mend the kernel\n" in spl("run", "a goal").stderr
