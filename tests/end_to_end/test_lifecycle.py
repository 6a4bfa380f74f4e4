"""A daemon's start and end where something is in the way: what another has left, another beside it, a terminal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from spl.errors import HomeInUse, HomeUnsafe
from tests.end_to_end import scripts
from tests.end_to_end.daemon import SECONDS, held, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.daemon import Shape
    from tests.end_to_end.model import Model


def hosted_folder(home: Path) -> Path:
    """Give the folder that a root daemon of a home keeps outside it."""
    return Path("/run/spl", hashlib.sha256(os.fsencode(os.path.realpath(home))).hexdigest()[:16])


def left(home: Path) -> list[str]:
    """Give what a daemon that has ended has left of what it had only while it ran."""
    run = home / "run"
    found = (hosted_folder(home), *run.iterdir(), *(run / "workers").iterdir())
    kept = (run / "spl.pid", run / "workers")
    assert (run / "spl.pid").read_text() == ""
    return [str(path) for path in found if os.path.lexists(path) and path not in kept]


def test_what_a_killed_daemon_left_is_in_nobodys_way_and_one_in_the_background_is_there_when_it_says_so(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home) as killed:
        killed.process.kill()
        killed.process.wait(SECONDS)
    at = ("--home", str(home))
    assert {"spl.sock", "spl-worker.sock"} <= {path.name for path in (home / "run").iterdir()}
    # Its pid is this process's by now, which lives; and it was of the other shape, which has a link here or a socket.
    (home / "run" / "spl.pid").write_text(f"{os.getpid()}\n")
    doors = home / "run" / "spl-worker.sock"
    linked = doors.is_symlink()
    doors.unlink()
    if linked:
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(doors))
    else:
        doors.symlink_to("/run/spl/gone/spl-worker.sock")
    begun = shape.run("serve", "--daemon", "--port", "0", *at)
    try:
        assert (begun.returncode, begun.stderr) == (0, "")
        said = begun.stdout
        assert "operator API  http://127.0.0.1:" in said
        assert str(home / "run" / "spl.sock") in said
        status = shape.run("status", "-o", "json", *at)
        assert json.loads(status.stdout)["status"] == "ok"
        beside = shape.run("serve", "--daemon", "--port", "0", *at)
        assert (beside.returncode, beside.stdout) == (HomeInUse.exit_status, "")
        assert "HOME_IN_USE" in beside.stderr
    finally:
        stopped = shape.run("stop", "-o", "json", *at)
    assert stopped.returncode == 0, stopped.stderr
    assert f"in use by another daemon (pid {json.loads(stopped.stdout)['stopped']})" in beside.stderr
    assert left(home) == []


@pytest.mark.soak
def test_of_eight_daemons_started_at_once_on_one_home_one_serves_and_the_others_change_nothing(
    shape: Shape, home: Path
) -> None:
    shape.run("init", "--home", str(home))
    token = (home / "token").read_bytes()
    begun = [shape.begin("serve", "--home", str(home), "--port", "0") for _ in range(8)]
    try:
        (serving,) = set(begun) - ended(begun, 7)
        assert serving.stdout is not None
        assert serving.stdout.readline().startswith("spl ")
        assert (home / "run" / "spl.pid").read_text() == f"{serving.pid}\n"
        for each in set(begun) - {serving}:
            said, complained = each.communicate()
            assert (each.returncode, said) == (HomeInUse.exit_status, "")
            assert "HOME_IN_USE" in complained
        assert (home / "token").read_bytes() == token
        assert shape.run("status", "--home", str(home)).returncode == 0
        serving.send_signal(signal.SIGTERM)
        serving.communicate(timeout=SECONDS)
        assert serving.returncode == 0
    finally:
        for each in begun:
            each.kill()
            each.communicate()
    assert left(home) == []


def ended(processes: list[subprocess.Popen[str]], number: int) -> set[subprocess.Popen[str]]:
    """Wait until so many of some processes have ended; gives them."""
    poll, found = select.poll(), set[subprocess.Popen[str]]()
    of = {os.pidfd_open(process.pid): process for process in processes}
    for pidfd in of:
        poll.register(pidfd, select.POLLIN)
    try:
        while len(found) < number:
            ready = poll.poll(SECONDS * 1000)
            assert ready, f"only {len(found)} have ended"
            for pidfd, _ in ready:
                poll.unregister(pidfd)
                found.add(of[pidfd])
    finally:
        for pidfd in of:
            os.close(pidfd)
    return found


@pytest.mark.parametrize("name", ["spl.sock", "spl-worker.sock"])
def test_a_file_in_the_place_of_a_socket_is_refused_and_stays(shape: Shape, home: Path, name: str) -> None:
    assert shape.run("init", "--home", str(home)).returncode == 0
    foreign = home / "run" / name
    foreign.write_text("somebody's\n")
    said = shape.run("serve", "--home", str(home), "--port", "0")
    assert (said.returncode, said.stdout) == (HomeUnsafe.exit_status, "")
    assert f"{str(foreign)!r}: what is there is not a socket; take it away" in said.stderr
    assert foreign.read_text() == "somebody's\n"
    foreign.unlink()
    (home / "run" / "workers").mkdir(exist_ok=True)
    assert left(home) == []


# --- at a terminal ---


@contextlib.contextmanager
def terminal(shape: Shape) -> Iterator[tuple[int, list[str]]]:
    """Give a terminal's keyboard, and the prefix of a command that has it for its own."""
    keyboard, screen = os.openpty()
    name = os.ttyname(screen)
    os.chown(name, shape.uid, shape.uid)
    try:
        # What the leader of a session opens first becomes its terminal: tty_ioctl(2), and the O_NOCTTY of open(2).
        yield keyboard, ["setsid", "sh", "-c", f'exec "$@" <>{name}', "sh"]
    finally:
        os.close(screen)
        os.close(keyboard)


INTERRUPT = b"\x03"


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.one_shape)])
def test_ctrl_c_at_the_daemons_terminal_ends_it_and_leaves_nothing(
    shape: Shape, home: Path, model: Model, times: int
) -> None:
    scratch = home.with_name("tmp")
    scratch.mkdir()
    scratch.chmod(0o777)
    given = {"SPL_DRAIN_SECONDS": "3600", "TMPDIR": str(scratch)}
    with terminal(shape) as (keyboard, prefix), model.daemon(shape, home, prefix=prefix, **given) as daemon:
        # It is the terminal's whole group that is interrupted: the daemon, and whatever it has started there.
        assert os.tcgetpgrp(keyboard) == os.getpgid(daemon.process.pid)
        daemon.set_transport("sandboxed")
        thread = daemon.start("Go on.")["thread"]
        asked, worker = model.asked(), daemon.worker_pid(thread)
        pidfd = os.pidfd_open(worker)
        os.write(keyboard, INTERRUPT)
        daemon.log.wait_for("draining")
        if times == 2:
            os.write(keyboard, INTERRUPT)
            asked.wait_until_broken_off()
        else:
            # The worker was not interrupted, and has its answer.
            asked.answer(scripts.calling(scripts.NOTE))
        assert daemon.process.wait(SECONDS) == 0
        wait_until_gone(worker, pidfd)
        os.close(pidfd)
    # Not even a zombie of another's, nor anything else of the daemon's session.
    assert session(daemon.process.pid) == []
    assert left(home) == []
    assert list(scratch.iterdir()) == []
    code = {1: {"code": 0}, 2: {"signal": "SIGKILL"}}[times]
    (outcome,) = outcomes(home)
    assert (outcome["outcome"], outcome["exit"]) == ("failed", code)


def session(leader: int) -> list[int]:
    """Give the processes of a session (the sixth field of /proc/pid/stat, proc(5))."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(pid))
    return found


def outcomes(home: Path) -> list[dict[str, Any]]:
    """Give the outcomes that stand in the log of a daemon that has ended."""
    with contextlib.closing(sqlite3.connect(f"file:{home}/hub.db?mode=ro", uri=True)) as log:
        bodies = [json.loads(body) for (body,) in log.execute("SELECT body FROM records")]
    return [body for body in bodies if body.get("kind") == "core.work.loop_outcome.v1"]


@contextlib.contextmanager
def all_but_ready(shape: Shape, home: Path, **environ: str) -> Iterator[tuple[subprocess.Popen[str], TextIO]]:
    """Give a daemon that is held there, and what lets it go on when it is closed."""
    go = fifo(home.with_name("go"))
    late = replace(shape, program="tests.end_to_end.starting")
    with late.begin("serve", "--home", str(home), "--port", "0", GO=str(go), **environ) as starting:
        try:
            # Opened for writing once it is open for reading: fifo(7).
            with go.open("w") as release:
                yield starting, release
        finally:
            starting.kill()


def fifo(path: Path) -> Path:
    """Make a FIFO that a daemon of any shape may read."""
    os.mkfifo(path)
    path.chmod(0o666)
    return path


@pytest.mark.one_shape
def test_whoever_asks_one_that_starts_is_answered_once_it_serves(shape: Shape, home: Path) -> None:
    with all_but_ready(shape, home) as (starting, release):
        status = shape.begin("status", "--home", str(home), "-o", "json")
        while not any(each.startswith("socket:") for each in held(status)):
            assert status.poll() is None
        release.close()
        assert json.loads(status.communicate(timeout=SECONDS)[0])["status"] == "ok"
        starting.send_signal(signal.SIGTERM)
        starting.communicate(timeout=SECONDS)


@pytest.mark.one_shape
def test_one_that_is_told_to_stop_before_it_serves_never_says_that_it_does_nor_hears_that_it_is_told_again(
    shape: Shape, home: Path
) -> None:
    gone = fifo(home.with_name("gone"))
    with all_but_ready(shape, home, GONE=str(gone)) as (starting, release):
        starting.send_signal(signal.SIGTERM)
        while "ShdPnd:\t0000000000000000" not in Path(f"/proc/{starting.pid}/status").read_text():
            assert starting.poll() is None
        release.close()
        with gone.open("w"):
            assert left(home) == []
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                starting.send_signal(number)
        said, complained = starting.communicate(timeout=SECONDS)
        assert (starting.returncode, said) == (0, "")
        assert "Traceback" not in complained


@pytest.mark.one_shape
def test_ctrl_c_while_it_starts_ends_it_before_it_says_that_it_serves(shape: Shape, home: Path) -> None:
    with terminal(shape) as (keyboard, prefix):
        at_it = replace(shape, python=(*prefix, *shape.python))
        starting = at_it.begin("serve", "--home", str(home), "--port", "0")
        try:
            # It has taken the home then, and is long from being ready: no worker has been tried yet.
            while not (home / "run" / "workers").exists():
                assert starting.poll() is None
            os.write(keyboard, INTERRUPT)
            said, complained = starting.communicate(timeout=SECONDS)
        finally:
            starting.kill()
            starting.communicate()
    assert (starting.returncode, said) == (0, "")
    assert "Traceback" not in complained
    assert left(home) == []
