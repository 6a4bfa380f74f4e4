"""`spl profile` on both shapes: what is rendered is what runs, and what is tried is confined and leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bwrap import uids
from spl import errors
from tests.end_to_end.daemon import SECONDS, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.daemon import Json, Shape

PROFILES = ["worker", "strict"]
CAT = ("--read-only", "/usr/bin/cat")
WAITING = "echo up; exec cat"
PYTHON = "/usr/bin/python3"


def attempt(
    shape: Shape, home: Path, *words: str, text: str = "", profile: str = "worker"
) -> subprocess.CompletedProcess[str]:
    """Try a command to its end; the last line of standard error is its document."""
    return subprocess.run(
        shape.spl("profile", "try", profile, "--home", str(home), "-o", "json", *words),
        env=dict(shape.environment), user=shape.uid, group=shape.uid, extra_groups=[], cwd="/",
        input=text, text=True, capture_output=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def told(ended: subprocess.CompletedProcess[str]) -> Json:
    document: Json = json.loads(ended.stderr.splitlines()[-1])
    return document


def refused(ended: subprocess.CompletedProcess[str]) -> dict[str, set[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = {}
    for row in told(ended)["refused"]:
        found.setdefault(row["layer"], set()).add((row["what"], row["answer"]))
    return found


def own(shape: Shape, home: Path, name: str, text: str) -> None:
    """Write a profile of the user's own, in a home that is made for it."""
    profile = home / "profiles" / f"{name}.toml"
    profile.parent.mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    profile.write_text(f'extends = "worker"\n{text}')
    for path in (home, home / "profiles", profile):
        os.chown(path, shape.uid, shape.uid)


def script(home: Path, text: str) -> str:
    """Write an executable beside the home, where any user finds it."""
    path = home.parent / "script"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@contextlib.contextmanager
def started(
    shape: Shape, home: Path, *words: str, profile: str = "worker"
) -> Iterator[subprocess.Popen[str]]:
    """Start a command and wait until it has said that it is up."""
    with subprocess.Popen(
        shape.spl("profile", "try", profile, "--home", str(home), *CAT, *words, "--", "sh", "-c", WAITING),
        env=dict(shape.environment), user=shape.uid, group=shape.uid, extra_groups=[], cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def up(process: subprocess.Popen[str], terminal: int | None = None) -> None:
    """Wait until the command is the last it will be: it has given a line back."""
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    if terminal is not None:
        os.write(terminal, b"here\n")
    else:
        assert process.stdin is not None
        process.stdin.write("here\n")
        process.stdin.flush()
    assert process.stdout.readline() == "here\n"


def descendants(pid: int) -> list[int]:
    """Give what a process has started, and what that has."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def require_released(uid: int) -> None:
    """Make sure that nothing runs under a leased uid and nobody holds it; what has ended may wait to be reaped."""
    for pid, owner in uids.running_uids().items():
        if owner == uid:
            wait_until_gone(pid)
    lease = uids.Pool().take(uid)
    assert lease is not None
    lease.release()


# --- what is rendered ---


def test_what_is_rendered_beside_a_daemon_and_without_one_is_what_the_receipt_states(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home) as daemon:
        daemon.set_transport("sandboxed")
        thread = daemon.start()["thread"]
        daemon.finish(thread)
        (receipt,) = daemon.bodies(thread, "core.work.isolation.v1")
        beside = json.loads(shape.run("profile", "render", "worker", "--home", str(home)).stdout)
        served = daemon.request("GET", "/v1/profiles/worker")
    alone = json.loads(shape.run("profile", "render", "worker", "--home", str(home)).stdout)
    assert alone == beside == served
    digests = [alone["argv_digest"], alone["filter"]["digest"]]
    assert digests == [receipt["argv_digest"], receipt["filter_digest"]]


# --- what is tried ---


@pytest.mark.parametrize("profile", PROFILES)
def test_a_command_runs_as_a_worker_would_and_what_was_added_for_it_is_said(
    shape: Shape, home: Path, profile: str
) -> None:
    ended = attempt(shape, home, "--", "id", profile=profile)
    assert ended.returncode == 0, ended.stderr
    uid = int(ended.stdout.split("=")[1].split(" ")[0].split("(")[0])
    if shape.name == "hosted":
        assert 60600 <= uid <= 60855
        assert uid not in uids.running_uids().values()
        require_released(uid)
    else:
        assert uid == shape.uid
    assert "/usr/bin/id" in told(ended)["mounted"]
    assert f"also mounted, for this command: {', '.join(told(ended)['mounted'])}\n" in ended.stderr
    assert "its worker socket is left out" in ended.stderr
    assert (
        "nothing is checked here as it is before a run; this shows what the profile asks for" in ended.stderr
    )
    assert not home.exists()


@pytest.mark.one_shape
def test_the_environment_holds_path_alone(shape: Shape, home: Path) -> None:
    assert attempt(shape, home, "--", "env").stdout == "PATH=/usr/bin\n"


@pytest.mark.parametrize("status", [1, 200])
@pytest.mark.one_shape
def test_a_commands_exit_status_is_given_back(shape: Shape, home: Path, status: int) -> None:
    ended = attempt(shape, home, "--no-trace", "--", "sh", "-c", f"exit {status}")
    assert (ended.returncode, told(ended)["status"]) == (status, status)
    assert told(ended)["refused"] is None


@pytest.mark.one_shape
def test_a_command_that_a_signal_ends_is_told_as_a_shell_does(shape: Shape, home: Path) -> None:
    ended = attempt(shape, home, "--", PYTHON, "-I", "-S", "-c", "import ctypes; ctypes.string_at(0)")
    assert ended.returncode == 128 + signal.SIGSEGV
    assert told(ended)["exit"] == {"signal": "SIGSEGV"}


@pytest.mark.parametrize("traced", [(), ("--no-trace",)], ids=["traced", "untraced"])
@pytest.mark.one_shape
def test_standard_input_and_output_are_the_callers(shape: Shape, home: Path, traced: tuple[str, ...]) -> None:
    ended = attempt(shape, home, *traced, "--", "cat", text="words\n" * 50_000)
    assert (ended.returncode, ended.stdout) == (0, "words\n" * 50_000)


@pytest.mark.parametrize("profile", PROFILES)
def test_what_a_command_is_refused_is_named_by_layer(shape: Shape, home: Path, profile: str) -> None:
    source = (
        "import ctypes, os, socket\n"
        "def attempt(act):\n"
        "    try: act()\n"
        "    except OSError as error: print(error.errno)\n"
        "    except MemoryError: print('memory')\n"
        "attempt(lambda: socket.socket(socket.AF_INET))\n"
        "attempt(lambda: os.kill(os.getppid(), 9))\n"
        "attempt(lambda: os.open('/etc/passwd', os.O_RDONLY))\n"
        "attempt(lambda: os.open('/made', os.O_WRONLY | os.O_CREAT))\n"
        "attempt(lambda: bytearray(1 << 30))\n"
    )
    ended = attempt(shape, home, "--", PYTHON, "-I", "-S", "-c", source, profile=profile)
    assert ended.stdout.split() == ["1", "1", "2", "30", "memory"], ended.stderr
    found = refused(ended)
    assert {("socket with argument 0 AF_INET", "EPERM"), ("kill", "EPERM")} <= found["syscalls"]
    assert {("/etc/passwd, which the host has", "ENOENT"), ("to change /made", "EROFS")} <= found["mounts"]
    size = {"worker": "512M", "strict": "64M"}[profile]
    assert (f"mmap, where address_space is {size}", "ENOMEM") in found["limits"]
    assert "refused by the layer syscalls: kill (EPERM)" in ended.stderr
    # What is refused on purpose is told first, and what nearly every program misses is one line, the last of them.
    said = [line for line in ended.stderr.splitlines() if " refused by the layer " in line]
    assert [("EPERM" in line) for line in said[:3]] == [True, True, False]
    assert not [line for line in said if "/etc/ld.so.cache" in line]
    assert not [line for line in said if "set_robust_list" in line]
    assert "missed by nearly every program without harm: /etc/ld.so.cache" in ended.stderr.splitlines()[-2]
    # A reason is told whole.
    assert "…" not in ended.stderr


def test_a_file_that_its_uid_cannot_read_is_refused_by_the_layer_of_that_uid(
    shape: Shape, home: Path
) -> None:
    path = home.parent / "data"
    path.mkdir(mode=0o755)
    (path / "closed").write_text("secret\n")
    (path / "closed").chmod(0o600)
    ended = attempt(shape, home, "--read-only", str(path), "--", "cat", f"{path}/closed")
    assert (ended.returncode, ended.stdout) == (1, "")
    row = (f"{path}/closed, which is closed to the command's own uid", "EACCES")
    # In the other shape it is this very user's permissions that refuse it, and no layer of the sandbox.
    assert (row in refused(ended).get("separate_user", set())) == (shape.name == "hosted")


@pytest.mark.parametrize("options", [[], ["--no-trace"]], ids=["watched", "unwatched"])
def test_a_command_of_one_process_is_alone_in_what_its_limit_counts(
    shape: Shape, home: Path, options: list[str]
) -> None:
    # Neither bubblewrap's monitor nor strace, which have its uid in the hosted shape.
    own(shape, home, "one", "[limits]\nprocesses = 1\n")
    ended = attempt(shape, home, *options, "--", "id", profile="one")
    assert ended.returncode == 0


@pytest.mark.one_shape
def test_a_command_that_the_filter_does_not_let_start_is_told_of(shape: Shape, home: Path) -> None:
    ended = attempt(shape, home, "--", "id", profile="base")
    assert ended.returncode != 0
    assert "below the floor: profile " in ended.stderr
    assert ("execve", "ENOSYS") in refused(ended)["syscalls"]


def test_a_path_that_is_asked_for_can_be_read_and_not_written(shape: Shape, home: Path) -> None:
    (home.parent / "data").mkdir(mode=0o777)
    (home.parent / "data").chmod(0o777)
    (home.parent / "data" / "words").write_text("given\n")
    (home.parent / "data" / "words").chmod(0o666)
    path = f"{home.parent}/data"
    ended = attempt(
        shape, home, "--read-only", path, "--", "sh", "-c", f"cat < {path}/words; echo no > {path}/words",
    )  # fmt: skip
    assert ("to change " + f"{path}/words", "EROFS") in refused(ended)["mounts"], ended.stderr
    ended = attempt(shape, home, "--read-only", path, "--", "cat", f"{path}/words")
    assert (ended.returncode, ended.stdout) == (0, "given\n")
    assert path in told(ended)["mounted"]


@pytest.mark.one_shape
def test_a_script_is_run_by_its_interpreter(shape: Shape, home: Path) -> None:
    path = script(home, "#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1], input())\nsys.exit(3)\n")
    ended = attempt(shape, home, "--", path, "got", text="this\n")
    assert (ended.returncode, ended.stdout) == (3, "got this\n")
    assert {path, "/usr/bin/python3"} <= set(told(ended)["mounted"])


@pytest.mark.one_shape
def test_what_cannot_be_had_for_a_command_is_said_before_it_starts(shape: Shape, home: Path) -> None:
    path = script(home, "#!/bin/sh\n")
    os.chmod(path, 0o644)
    assert attempt(shape, home, "--", path).returncode == errors.CommandNotExecutable.exit_status
    assert attempt(shape, home, "--", f"{path}-no").returncode == errors.CommandNotFound.exit_status
    listed = shape.run("profile", "try", "worker", "--home", str(home), "--read-only", "/proc", "--", "id")
    assert listed.returncode == errors.IsolationUnavailable.exit_status
    assert listed.stderr.count("spl: ISOLATION_UNAVAILABLE: the layer mounts ") == 1


@pytest.mark.one_shape
def test_the_worker_socket_is_there_while_a_daemon_runs(shape: Shape, home: Path) -> None:
    look = (
        "--",
        "sh",
        "-c",
        f"test -S {home}/run/spl-worker.sock && echo there; test -e {home}/token || echo empty",
    )
    with shape.daemon(home):
        assert attempt(shape, home, *look).stdout == "there\nempty\n"
    assert attempt(shape, home, *look).stdout == "empty\n"


# --- how it ends ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.one_shape
def test_a_signal_reaches_the_command(shape: Shape, home: Path, number: signal.Signals) -> None:
    with started(shape, home) as process:
        up(process)
        process.send_signal(number)
        assert process.wait(SECONDS) == 128 + number


@pytest.mark.one_shape
def test_a_signal_that_an_init_would_be_spared_ends_it_all_the_same(shape: Shape, home: Path) -> None:
    with started(shape, home, profile="strict") as process:
        up(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 128 + signal.SIGKILL


@pytest.mark.one_shape
def test_a_signal_that_the_command_handles_is_its_own_affair(shape: Shape, home: Path) -> None:
    words = shape.spl("profile", "try", "strict", "--home", str(home), "--", "sh", "-c")
    with subprocess.Popen(
        [*words, "trap 'echo caught; exit 9' INT; echo up; read line"],
        env=dict(shape.environment), user=shape.uid, group=shape.uid, extra_groups=[], cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "caught\n"
        assert process.wait(SECONDS) == 9


@pytest.mark.one_shape
def test_control_c_at_a_terminal_reaches_the_command(shape: Shape, home: Path) -> None:
    ours, theirs = pty.openpty()
    words = shape.spl("profile", "try", "worker", "--home", str(home), *CAT, "--", "sh", "-c", WAITING)
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", *words],
        env=dict(shape.environment), user=shape.uid, group=shape.uid, extra_groups=[], cwd="/",
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            up(process, ours)
            os.write(ours, b"\x03")
            assert process.wait(SECONDS) == 128 + signal.SIGINT
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("traced", [(), ("--no-trace",)], ids=["traced", "untraced"])
def test_the_death_of_spl_is_the_commands(
    shape: Shape, home: Path, profile: str, traced: tuple[str, ...]
) -> None:
    with started(shape, home, *traced, profile=profile) as process:
        up(process)
        found = {pid: os.pidfd_open(pid) for pid in descendants(process.pid)}
        owners = {os.stat(f"/proc/{pid}").st_uid for pid in found}
        process.kill()
        for pid, pidfd in found.items():
            wait_until_gone(pid, pidfd)
            os.close(pidfd)
    # bubblewrap's monitor, the command, and strace.
    assert len(found) == (2 if traced else 3)
    if shape.name == "hosted":
        (uid,) = owners
        require_released(uid)


def test_what_a_command_started_does_not_outlive_it(shape: Shape, home: Path) -> None:
    calls = '["clone", "vfork", "wait4", "setpgid", "setsid", "nanosleep", "clock_nanosleep"]'
    own(shape, home, "forks", f"[limits]\nprocesses = 8\n[syscalls]\nallow = {calls}\n")
    python = (
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    print(os.getpid(), flush=True)\n"
        "    os.close(1); os.close(2)\n"
        "    while True: os.read(0, 1)\n"
        "os._exit(4)\n"
    )
    ended = attempt(shape, home, "--", PYTHON, "-I", "-S", "-c", python, profile="forks")
    assert ended.returncode == 4, ended.stderr
    assert "below the floor" in ended.stderr
    for pid in ended.stdout.split():
        assert not os.path.exists(f"/proc/{pid}")
