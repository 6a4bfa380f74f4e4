from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from spl.cli import detached, serve
from spl.errors import DaemonStopping, DaemonUnreachable, HomeUnsafe, SettingsInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from spl.home import Home
    from tests.cli.conftest import Spl

ANNOUNCE = "import os, signal, sys; from spl.cli import detached; "


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "daemon.log"


def python(script: str) -> list[str]:
    return [sys.executable, "-c", ANNOUNCE + script]


def test_a_start_in_the_background_ends_with_the_announcement_and_leaves_the_process(log: Path) -> None:
    script = "print('listening', os.getpid(), os.getsid(0)); detached.let_go(); signal.pause()"
    started = detached.start(python(script), log, seconds=60)
    word, pid, session = started.announcement.split()
    descriptor = os.pidfd_open(int(pid))
    try:
        assert (word, session, started.exit_status) == ("listening", pid, None)
        assert stat.S_IMODE(log.lstat().st_mode) == 0o600
    finally:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        os.waitpid(int(pid), 0)
        os.close(descriptor)


def test_what_is_printed_after_the_announcement_goes_to_the_log(log: Path) -> None:
    script = (
        "print('ready'); detached.let_go(); print('later', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    started = detached.start(python(script + "; sys.exit()"), log, seconds=60)
    # The only child of this process that is stopped, having printed.
    pid, _ = os.waitpid(-1, os.WUNTRACED)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (started.announcement, log.read_text()) == ("ready\n", "later\n")


def test_a_process_that_ends_instead_says_why_and_with_what_status(log: Path) -> None:
    log.write_text("from an earlier start\n")
    started = detached.start(python("sys.exit(print('no port', file=sys.stderr) or 12)"), log, seconds=60)
    assert started == ("", 12, "no port\n")


def test_a_process_that_is_never_ready_is_stopped(log: Path) -> None:
    with pytest.raises(DaemonUnreachable, match=r"was not ready within 0\.1 seconds") as refused:
        detached.start(python("signal.pause()"), log, seconds=0.1)
    pid = int(str(refused.value).partition("pid ")[2].partition(")")[0])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_an_interrupt_while_it_is_waited_for_stops_the_process_too(log: Path) -> None:
    never = python("print(os.getpid(), file=sys.stderr, flush=True); signal.pause()")
    waits = f"from pathlib import Path; detached.start({never!r}, Path({str(log)!r}), seconds=60)"
    with subprocess.Popen(python(waits), stderr=subprocess.PIPE) as starting:
        while not (log.exists() and log.read_text().endswith("\n")):
            assert starting.poll() is None
        pidfd = os.pidfd_open(int(log.read_text()))
        starting.send_signal(signal.SIGINT)
        assert starting.wait(30) == -signal.SIGINT
    # Gone by then: whoever is asked about it does not wait.
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, 0)
    os.close(pidfd)


def test_a_daemon_in_the_background_that_is_told_to_stop_before_it_is_ready_says_so(
    spl: Spl, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detached, "start", lambda *_, **__: detached.Started("", 0, "stopping"))
    with pytest.raises(DaemonStopping, match="before it was ready"):
        serve.serve.main(["--daemon", "--home", str(home.path)], standalone_mode=False)


@pytest.mark.parametrize(
    ("ended", "status", "told"), [(12, 12, "ended with exit status 12"), (-9, 70, "ended by signal 9")]
)
def test_a_daemon_in_the_background_that_ends_without_a_word_is_told_of(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ended: int,
    status: int,
    told: str,
) -> None:
    monkeypatch.setattr(detached, "start", lambda *_, **__: detached.Started("", ended, ""))
    assert serve.serve.main(["--daemon", "--home", str(home.path)], standalone_mode=False) == status
    assert f"the daemon {told} before it was ready" in capsys.readouterr().err


def test_a_log_that_is_a_symlink_is_not_written_to(log: Path, tmp_path: Path) -> None:
    log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        detached.start(python("pass"), log, seconds=60)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("how", ["--foreground", "--daemon"])
def test_serve_with_a_setting_that_is_not_valid_says_which(spl: Spl, home: Home, how: str) -> None:
    ended = spl("serve", how, "--port", "65536")
    assert (ended.returncode, ended.stdout) == (SettingsInvalid.exit_status, "")
    assert ended.stderr.startswith("spl: SETTINGS_INVALID: --port cannot be 65536: ")
    ended = spl("serve", how, SPL_PROT="1")
    assert ended.stderr.startswith("spl: SETTINGS_INVALID: the variable SPL_PROT is not a setting; ")


def test_serve_in_the_background_of_an_unsafe_home_is_refused(spl: Spl, home: Home) -> None:
    home.path.chmod(0o755)
    ended = spl("serve", "--daemon", "--port", "0")
    assert ended.returncode == HomeUnsafe.exit_status
    assert "its mode is 0755, not 0700" in ended.stderr
