"""`spl profile trace` on both shapes: what it drafts lets the command run, and not a line of it can go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from spl import errors
from spl.home import login
from tests.end_to_end.daemon import SECONDS, wait_until_gone
from tests.end_to_end.test_profile_commands import PYTHON, attempt, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.daemon import Json, Shape

FREE = {"PATH": "/usr/bin"}
UNCONFINED = f"spl: profile trace: running it free, NOT confined, as {login()}"
TWO_LINES = "import os; print(os.uname().machine, open('/etc/hostname').read())"


def trace(
    shape: Shape, home: Path, *words: str, given: IO[bytes] | int = subprocess.DEVNULL
) -> subprocess.CompletedProcess[str]:
    """Trace a command to its end; the last line of standard error is its document."""
    return subprocess.run(
        shape.spl("profile", "trace", "--home", str(home), "-o", "json", *words),
        env=dict(shape.environment), user=shape.uid, group=shape.uid, extra_groups=[], cwd="/",
        stdin=given, text=True, capture_output=True, timeout=SECONDS, check=False,
    )  # fmt: skip


def document(ended: subprocess.CompletedProcess[str]) -> Json:
    """Give the document, which an error may follow."""
    return next(
        found
        for line in ended.stderr.splitlines()
        if line[:1] == "{"
        if "toml" in (found := json.loads(line))
    )


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["cat", "/etc/hostname"], ['[filesystem]\nread_only = ["/etc/hostname"]']),
        (
            [PYTHON, "-I", "-S", "-c", TWO_LINES],
            ['[filesystem]\nread_only = ["/etc/hostname"]', '[syscalls]\nallow = ["uname"]'],
        ),
    ],
    ids=["cat", "python"],
)
def test_a_draft_lets_its_command_run_and_without_any_line_of_it_the_command_does_something_else(
    shape: Shape, home: Path, words: list[str], lines: list[str]
) -> None:
    free = subprocess.run(words, env=FREE, cwd="/", capture_output=True, text=True, check=True).stdout
    traced = trace(shape, home, "--name", "own", "--save", "--", *words)
    found = document(traced)
    assert (traced.returncode, traced.stdout) == (0, free), traced.stderr
    assert (found["same"], found["smallest"], found["lines"]) == (True, True, lines)
    path = Path(found["saved"])
    assert path == home / "profiles" / "own.toml"
    assert path.read_text() == found["toml"]
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (shape.uid, 0o600)
    assert attempt(shape, home, "--no-trace", "--", *words, profile="own").stdout == free
    said = found["toml"].splitlines(keepends=True)
    each = [at for at, line in enumerate(said) if line.startswith(("read_only", "allow"))]
    assert len(each) == len(lines)
    for at in each:
        path.write_text("".join([*said[:at], *said[at + 1 :]]))
        less = attempt(shape, home, "--no-trace", "--", *words, profile="own")
        assert (less.returncode, less.stdout) != (0, free)


@pytest.mark.one_shape
def test_a_draft_is_shown_as_what_it_adds_and_linted_as_any_profile(shape: Shape, home: Path) -> None:
    ended = trace(shape, home, "--save", "--read-only", "/etc/hosts", "--", "true")
    found = document(ended)
    assert (ended.returncode, found["name"], found["saved"]) == (0, "true", f"{home}/profiles/true.toml")
    assert found["lines"] == ['[filesystem]\nread_only = ["/etc/hosts"]']
    assert found["diff"][:2] == ["--- worker", "+++ true"]
    assert [line for line in found["diff"][2:] if not line.startswith("@@")] == [
        "+filesystem.read_only /etc/hosts = shown"
    ]
    assert shape.run("profile", "lint", "true", "--home", str(home)).returncode == 0
    assert [row["severity"] for row in found["remarks"]] == ["warning"]
    # Its name is taken now: nothing is run for it, and a draft is held against what has it.
    again = trace(shape, home, "--save", "--", "true")
    assert (again.returncode, '"toml": ' in again.stderr) == (errors.ProfileExists.exit_status, False)
    assert document(trace(shape, home, "--no-check", "--", "true"))["diff"][0] == "--- true"


@pytest.mark.one_shape
def test_a_command_that_needs_what_the_floor_forbids_is_told_so_and_not_drafted(
    shape: Shape, home: Path
) -> None:
    ended = trace(shape, home, "--save", "--", "sh", "-c", "true | cat")
    found = document(ended)
    assert (ended.returncode, found["same"], found["saved"]) == (
        errors.ProfileBelowFloor.exit_status, False, None,
    )  # fmt: skip
    assert "@new-task" in {row["floor"] for row in found["not_drafted"]}
    assert (
        '# not drafted: in [syscalls]: allow = ["clone"]: the floor forbids it (@new-task)' in found["toml"]
    )
    assert "PROFILE_BELOW_FLOOR: under the draft" in ended.stderr
    assert os.listdir(home / "profiles") == []


def test_an_untried_draft_takes_one_run_and_says_what_was_used(hosted: Shape, home: Path) -> None:
    count = home.parent / "count"
    ended = trace(hosted, home, "--no-check", "--", "sh", "-c", f"echo ran >> {count}; exit 3")
    found = document(ended)
    assert (ended.returncode, found["status"], found["same"], found["runs"]) == (0, 3, None, 1)
    assert count.read_text() == "ran\n"
    assert '[filesystem]\ntmpfs = [{ path = "@scratch", size = "16M" }]' in found["lines"]
    assert not (home / "profiles").exists()


def test_a_file_on_standard_input_is_read_anew_in_each_run(hosted: Shape, home: Path) -> None:
    words = home.parent / "words"
    words.write_bytes(b"one\ntwo\n" * 50_000)
    with words.open("rb") as given:
        ended = trace(hosted, home, "--", "sort", "-u", given=given)
    assert (ended.returncode, ended.stdout) == (0, "one\ntwo\n"), ended.stderr


def test_a_command_that_a_signal_ends_is_traced_to_that_end(hosted: Shape, home: Path) -> None:
    ended = trace(hosted, home, "--", PYTHON, "-I", "-S", "-c", "import ctypes; ctypes.string_at(0)")
    found = document(ended)
    assert (ended.returncode, found["status"], found["same"]) == (0, 128 + signal.SIGSEGV, True)


@contextmanager
def ended(process: subprocess.Popen[str], pids: list[int]) -> Iterator[list[int]]:
    """Give a pidfd for each of the processes; whatever becomes of the test, none of them nor `process` goes on."""
    pidfds = [os.pidfd_open(pid) for pid in pids]
    try:
        yield pidfds
    finally:
        process.kill()
        for pidfd in pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGHUP, 128 + signal.SIGHUP),
        (signal.SIGINT, 128 + signal.SIGINT),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_however_a_trace_is_ended_nothing_of_its_free_run_goes_on(
    hosted: Shape, home: Path, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    source = (
        "import os, signal\nif os.fork() == 0: os.setsid()\nprint(os.getpid(), flush=True)\nsignal.pause()\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        hosted.spl("profile", "trace", "--home", str(home), "--", PYTHON, "-I", "-S", "-c", source),
        env={**hosted.environment, "TMPDIR": str(scratch)}, cwd="/", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        with ended(process, pids) as pidfds:
            process.send_signal(number)
            assert process.wait(SECONDS) == status
            for pid, pidfd in zip(pids, pidfds, strict=True):
                wait_until_gone(pid, pidfd)
        # strace cannot say that nobody reads its trace when this is killed and it is not.
        assert number == signal.SIGKILL or process.stderr.read().strip() == UNCONFINED
    assert list(scratch.iterdir()) == []


UNTRACED = """
import ctypes, os, platform, signal
CLONE_UNTRACED = 0x00800000
number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
if ctypes.CDLL(None).syscall(number, CLONE_UNTRACED | signal.SIGCHLD, 0, 0, 0, 0) == 0:
    os.setsid()
print(os.getpid(), flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pause()
"""


@pytest.mark.parametrize(
    ("first", "number"),
    [
        ("strace", signal.SIGTERM),
        ("keeper", signal.SIGTERM),
        (None, signal.SIGTERM),
        (None, signal.SIGKILL),
    ],
)
def test_nothing_of_a_free_run_goes_on_when_strace_or_its_keeper_is_killed_or_has_not_seen_it_begin(
    hosted: Shape, home: Path, first: str | None, number: signal.Signals
) -> None:
    with subprocess.Popen(
        hosted.spl("profile", "trace", "--no-check", "--home", str(home), "--", PYTHON, "-I", "-S", "-c", UNTRACED),
        env=dict(hosted.environment), cwd="/", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        tracers = {pid: int(_status(pid)["TracerPid"]) for pid in pids}
        assert sorted(map(bool, tracers.values())) == [False, True]
        strace = max(tracers.values())
        with ended(process, pids) as pidfds:
            if first == "strace":
                os.kill(strace, signal.SIGKILL)
            elif first == "keeper":
                os.kill(int(_status(strace)["PPid"]), signal.SIGKILL)
            else:
                process.send_signal(number)
            for pid, pidfd in zip(pids, pidfds, strict=True):
                wait_until_gone(pid, pidfd)
            process.send_signal(number)
            process.wait(SECONDS)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.one_shape
def test_input_that_only_the_free_run_had_is_named_as_the_cause(shape: Shape, home: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"abc\n")
    os.close(writing)
    with os.fdopen(reading, "rb") as given:
        ended = trace(shape, home, "--", "cat", given=given)
    assert (ended.returncode, ended.stdout) == (errors.ProfileInvalid.exit_status, "abc\n")
    assert (
        "PROFILE_INVALID: only the free run had standard input, which was read and is no file: "
        in ended.stderr
    )
    assert "PROFILE_BELOW_FLOOR" not in ended.stderr


@pytest.mark.one_shape
def test_a_command_that_fails_free_is_said_to_and_a_draft_that_adds_nothing_is_not_saved(
    shape: Shape, home: Path
) -> None:
    ended = trace(shape, home, "--save", "--", "sh", "-c", "exit 2")
    found = document(ended)
    assert (ended.returncode, found["same"], found["lines"], found["saved"]) == (0, True, [], None)
    assert "run free it ended with 2: what it needs to end otherwise is not in the draft" in ended.stderr
    assert "not saved: it adds nothing to 'worker', which will do" in ended.stderr
    assert os.listdir(home / "profiles") == []
    # What nearly every program misses is neither a cause nor a remark, and has no line.
    assert "set_robust_list" not in found["toml"]
    assert {row["what"]: (row["line"], row["floor"]) for row in found["refused"] if row["usual"]} == {
        "set_robust_list": (None, None), "/etc/ld.so.cache, which the host has": (None, None),
    }  # fmt: skip


@pytest.mark.one_shape
def test_a_standard_output_that_is_closed_is_named_before_anything_runs(shape: Shape, home: Path) -> None:
    words = shape.spl("profile", "trace", "--home", str(home), "--", "touch", str(home.parent / "ran"))
    ended = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "sh", *words],
        env=dict(shape.environment), user=shape.uid, group=shape.uid, extra_groups=[], cwd="/",
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == errors.HostRefused.exit_status
    assert "refused on 'standard output': it is closed" in ended.stderr
    assert not (home.parent / "ran").exists()


def test_a_name_cannot_steer_the_terminal_nor_leave_its_comment(hosted: Shape, home: Path) -> None:
    path = home.parent / 'x\x1b[2J\n[limits]\nopen_files = 9 "'
    path.write_text("here\n")
    path.chmod(0o644)
    ended = trace(hosted, home, "--save", "--", "cat", str(path))
    assert ended.returncode != 0
    assert "\x1b" not in ended.stderr
    found = document(ended)
    assert "\x1b" not in found["toml"]
    assert not [line for line in found["toml"].splitlines() if line.startswith("open_files")]


def test_what_a_command_is_refused_is_told_with_what_would_lift_it(shape: Shape, home: Path) -> None:
    ended = attempt(shape, home, "--", "sh", "-c", "kill -0 $PPID; true > /tmp/x; read x < /etc/hostname")
    rows = {row["what"]: (row["line"], row["floor"]) for row in told(ended)["refused"]}
    assert rows["kill"] == (None, "@other-process")
    assert rows["/etc/hostname, which the host has"] == ('[filesystem]\nread_only = ["/etc/hostname"]', None)
    assert rows["to change /tmp/x"] == ('[filesystem]\ntmpfs = [{ path = "/tmp", size = "16M" }]', None)
    assert 'this allows it, in [filesystem]: read_only = ["/etc/hostname"]' in ended.stderr
    assert "no line of a profile can allow it in a run: the floor forbids it (@other-process)" in ended.stderr
