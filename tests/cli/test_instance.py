from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from spl.cli import instance
from spl.cli.calling import commands
from spl.cli.options import Invocation
from spl.errors import DaemonUnreachable, HomeInUse, HomeUnsafe
from spl.home import Home, running_pid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Spl
    from tests.server import Daemon

# Holds a home's lock as a daemon does, until it is told to end.
HOLDER = textwrap.dedent("""
    import signal, sys
    from spl.home import Home
    handled = {signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    lock = Home.open(sys.argv[1], create=False).lock()
    print("locked", flush=True)
    while signal.sigwait(handled) != getattr(signal, sys.argv[2]):
        print("not yet", flush=True)
""")


@pytest.fixture(params=["SIGTERM"])
def holder(home: Home, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(home.path), request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_init_makes_a_home_and_a_token_and_says_where(spl: Spl, tmp_path: Path) -> None:
    path = tmp_path / "new"
    made = spl("init", "--home", str(path))
    assert made.returncode == 0
    assert json.loads(made.stdout)["token"] == str(path / "token")
    assert stat.S_IMODE((path / "token").lstat().st_mode) == 0o600
    assert (path / "token").read_text() not in made.stdout


def test_init_again_keeps_the_token(spl: Spl, home: Home) -> None:
    first = spl("init").stdout
    token = home.read_token()
    assert spl("init").stdout == first
    assert home.read_token() == token


def test_init_says_to_a_person_what_each_path_is_which_shape_this_host_gives_and_what_comes_next(
    spl: Spl, tmp_path: Path
) -> None:
    path = tmp_path / "new"
    made = spl("init", "--home", str(path), "-o", "table")
    rows = {line.split()[0]: line for line in made.stdout.splitlines() if line.strip()}
    assert {
        "home",
        "config",
        "token",
        "operator_socket",
        "log",
        "profiles",
        "backups",
        "shape",
        "next",
    } <= rows.keys()
    assert "made now; yours alone (0700)" in rows["home"]
    assert stat.S_IMODE(path.lstat().st_mode) == 0o700
    assert f"{path / 'token'} " in rows["token"]
    assert "(0600)" in rows["token"]
    assert ("hosted" if os.geteuid() == 0 else "same-user") in rows["shape"].split()[1]
    assert all(f"'spl {next_}" in made.stdout for next_ in ("doctor", "serve", "run", "console"))
    assert (path / "token").read_text().strip() not in made.stdout


def test_init_again_says_that_it_was_already_there(spl: Spl, home: Home) -> None:
    assert "it was already there, and stays as it is" in spl("init", "-o", "table").stdout


def test_init_in_an_unsafe_home_writes_nothing(spl: Spl, tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o777)
    refused = spl("init", "--home", str(path))
    assert refused.returncode == HomeUnsafe.exit_status
    assert "HOME_UNSAFE" in refused.stderr
    assert list(path.iterdir()) == []


def test_stop_waits_until_the_daemon_has_ended(spl: Spl, home: Home, holder: subprocess.Popen[str]) -> None:
    stopped = spl("stop")
    assert (stopped.returncode, json.loads(stopped.stdout)) == (0, {"stopped": holder.pid})
    assert running_pid(home) is None
    assert holder.wait(30) == 0


@pytest.mark.parametrize("holder", ["SIGUSR1"], indirect=True)
def test_stop_gives_up_after_its_timeout_and_kills_nothing(
    spl: Spl, home: Home, holder: subprocess.Popen[str]
) -> None:
    stopped = spl("stop", "--timeout", "0.1")
    assert (stopped.returncode, stopped.stdout) == (HomeInUse.exit_status, "")
    assert f"the daemon (pid {holder.pid}) has not ended 0.1 seconds after SIGTERM" in stopped.stderr
    assert running_pid(home) == holder.pid
    holder.send_signal(signal.SIGUSR1)
    assert holder.wait(30) == 0


def test_stop_of_one_that_another_has_stopped_by_then_is_no_failure(
    home: Home, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def looked(home: Home) -> int | None:
        nonlocal looks
        looks, found = looks + 1, running_pid(home)
        if looks == 2:
            # It ends right after the last look.
            holder.terminate()
            holder.wait(30)
        return found

    monkeypatch.setattr(instance, "running_pid", looked)
    words = ["stop", "--home", str(home.path), "-o", "json"]
    stopped = CliRunner().invoke(commands, words, obj=Invocation(), standalone_mode=False)
    assert (stopped.exception, looks) == (None, 2)
    assert json.loads(stopped.stdout) == {"stopped": holder.pid}


def test_stop_without_a_daemon_says_that_none_runs(spl: Spl, home: Home) -> None:
    home.pid.write_text("1\n")
    stopped = spl("stop")
    assert stopped.returncode == DaemonUnreachable.exit_status
    assert "no daemon runs in the home" in stopped.stderr


def test_status_shows_the_daemons_health(spl: Spl, daemon: Daemon) -> None:
    health = {
        "version": "0.1",
        "work_loop": {"transport": "in_process"},
        "isolation": {"layers": ["network"]},
    }
    daemon.routes["GET /v1/engine/health"] = health
    assert json.loads(spl("status").stdout) == health
    lines = [line.split() for line in spl("status", "-o", "table").stdout.splitlines()]
    assert lines == [
        ["version", "0.1"],
        ["work_loop.transport", "in_process"],
        ["isolation.layers", "network"],
    ]
