from __future__ import annotations

import asyncio
import ctypes
import json
import os
import pwd
import select
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spl.tools import shell
from spl.tools.host import SCHEMAS, Host
from spl.tools.pieces import OUTPUT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spl.tools.mediated import Result

_PR_SET_CHILD_SUBREAPER = 36

DAEMON = """
import asyncio, os, sys
from spl import hardening
from spl.tools.host import Host
hardening.protect()
print(asyncio.run(Host(home=sys.argv[1]).bash({"command": sys.argv[2]})).output)
print("children:", open(f"/proc/self/task/{os.getpid()}/children").read())
"""
# One in a session of its own and one more that nobody waits for, both of which hold the FIFO; the last says so.
DETACHED = """
exec 3>fifo
setsid sleep 1000 &
(setsid bash -c 'setsid sleep 1000 & echo begun >&3; exec sleep 1000' &)
"""


@pytest.fixture
def reaper() -> Iterator[None]:
    """This process as the daemon is: what its children leave behind comes to it."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def bash(home: Path, command: str, **arguments: object) -> Result:
    return asyncio.run(Host(home=str(home)).bash({"command": command, **arguments}))


def use(home: Path, tool: str, **arguments: object) -> Result:
    result: Result = asyncio.run(getattr(Host(home=str(home)), tool)(arguments))
    return result


def daemon(home: Path, command: str) -> subprocess.Popen[str]:
    """Start a process that is protected as the daemon is, and runs a command."""
    program = [sys.executable, "-c", DAEMON, str(home), command]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)


def children() -> list[str]:
    """Give the pids of this process's children, zombies among them."""
    return [
        pid
        for task in os.listdir("/proc/self/task")
        for pid in Path(f"/proc/self/task/{task}/children").read_text().split()
    ]


def test_a_model_is_told_of_every_tool_and_of_no_argument_that_is_not_taken() -> None:
    assert list(SCHEMAS) == ["bash", "host_read_file", "host_write_file", "host_list_dir", "host_search"]
    for said in SCHEMAS.values():
        assert said["parameters"]["additionalProperties"] is False
        assert set(said["parameters"]["required"]) <= set(said["parameters"]["properties"])
    assert SCHEMAS["host_list_dir"]["parameters"]["required"] == ["path"]
    assert SCHEMAS["host_search"]["parameters"]["required"] == ["text", "path"]


# --- bash ---


def test_a_command_gives_output_and_errors_as_they_come_and_its_status_last(tmp_path: Path) -> None:
    result = bash(tmp_path, "echo one; echo two >&2; printf three")
    assert (result.status, result.output) == ("ok", "one\ntwo\nthree\n(exit status 0)")
    assert bash(tmp_path, "true").output == "(exit status 0)"


def test_a_command_that_fails_is_an_error_with_all_it_said(tmp_path: Path) -> None:
    result = bash(tmp_path, "echo no; exit 3")
    assert (result.status, result.output) == ("error", "no\n(exit status 3)")
    assert bash(tmp_path, "kill -SEGV $$").output == "(killed by SIGSEGV)"
    assert (
        bash(tmp_path, f"kill -{signal.SIGRTMIN + 3} $$").output
        == f"(killed by signal {signal.SIGRTMIN + 3})"
    )


def test_a_command_runs_in_the_home_folder_without_input_in_a_session_of_its_own(tmp_path: Path) -> None:
    assert bash(tmp_path, "pwd; cat; cut -d' ' -f6 /proc/$$/stat; echo $$").output.splitlines()[0] == str(
        tmp_path
    )
    *_, session, pid, _ = bash(tmp_path, "cat; cut -d' ' -f6 /proc/$$/stat; echo $$").output.splitlines()
    assert session == pid != str(os.getsid(0))


def test_a_command_has_six_variables_and_none_of_the_daemons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPL_TOKEN", "a secret")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a secret")
    monkeypatch.setenv("BASH_ENV", "/etc/profile")
    monkeypatch.setenv("LANG", "C")
    name = pwd.getpwuid(os.geteuid()).pw_name
    *lines, last = bash(tmp_path, "tr '\\0' '\\n' < /proc/$$/environ").output.splitlines()
    assert last == "(exit status 0)"
    assert dict(line.split("=", 1) for line in lines) == {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "USER": name,
        "LOGNAME": name,
        "LANG": "C",
        "TERM": "dumb",
    }


def test_a_command_inherits_no_descriptor_but_its_three(tmp_path: Path) -> None:
    ends = os.pipe()
    for end in ends:
        os.set_inheritable(end, True)
    # The last is the one that the listing itself uses.
    assert bash(tmp_path, "ls /proc/self/fd").output == "0\n1\n2\n3\n(exit status 0)"
    for end in ends:
        os.close(end)


def test_a_command_blocks_no_signal_and_ignores_none_that_python_does(tmp_path: Path) -> None:
    look = "exec grep -E '^Sig(Blk|Ign)' /proc/self/status"
    *lines, _ = bash(tmp_path, look).output.splitlines()
    blocked, ignored = (int(line.split()[1], 16) for line in lines)
    assert blocked == 0
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_the_first_of_much_output_is_kept_and_the_command_goes_on(tmp_path: Path) -> None:
    result = bash(tmp_path, "head -c 10000000 /dev/zero | tr '\\0' x; touch done")
    text, left_out, last = result.output.rsplit("\n", 2)
    assert set(text) == {"x"}
    assert left_out == f"({10_000_000 - len(text)} more bytes are left out)"
    assert last == "(exit status 0)"
    assert OUTPUT_LIMIT - 1024 < len(result.output) <= OUTPUT_LIMIT
    assert (tmp_path / "done").exists()


def test_what_a_command_writes_last_is_never_lost(tmp_path: Path) -> None:
    for _ in range(100):
        assert bash(tmp_path, "echo last >&2").output == "last\n(exit status 0)"
    assert bash(tmp_path, "printf '%060000d' 0").output == "0" * 60_000 + "\n(exit status 0)"


def test_output_that_is_no_text_is_shown_as_what_it_can_be(tmp_path: Path) -> None:
    assert bash(tmp_path, "printf 'a\\xff\\xe2\\x82'").output == "a\ufffd\ufffd\n(exit status 0)"


@pytest.mark.usefixtures("reaper")
@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000 & echo $! > pids",
        "(sleep 1000 & echo $! > pids; sleep 1000 & echo $! >> pids; wait) & until [ -s pids ]; do :; done",
        "set -m; sleep 1000 & echo $! > pids",
        "nohup sleep 1000 >/dev/null 2>&1 & echo $! > pids; disown",
        "trap '' TERM HUP; (echo $BASHPID > pids; while :; do :; done) & until [ -s pids ]; do :; done",
        "setsid bash -c 'echo $$ > pids; exec sleep 1000' & until [ -s pids ]; do :; done",
        "(setsid bash -c 'setsid sleep 1000 & echo $! $$ > pids; wait' &); until [ -s pids ]; do :; done",
        "(setsid bash -c '(echo $BASHPID > pids; exec sleep 1000) &' &); until [ -s pids ]; do :; done",
    ],
    ids=[
        "holds the pipe",
        "a tree",
        "a group of its own",
        "nohup",
        "deaf",
        "a session of its own",
        "a tree of sessions",
        "a service",
    ],
)
def test_what_a_command_leaves_in_the_background_ends_with_it(tmp_path: Path, command: str) -> None:
    before = children()
    assert bash(tmp_path, command).output.splitlines()[-1] == "(exit status 0)"
    for pid in (tmp_path / "pids").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert children() == before


@pytest.mark.usefixtures("reaper")
@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000",
        "trap '' TERM; while :; do :; done",
        "set -m; sleep 1000 | cat & wait",
        "setsid sleep 1000 & wait",
        "kill -STOP $PPID; setsid sleep 1000 & wait",
    ],
)
def test_a_command_is_stopped_at_its_time_limit_with_all_it_started(tmp_path: Path, command: str) -> None:
    before = children()
    result = bash(tmp_path, f"echo begun; {command}", timeout_secs=1)
    assert (result.status, result.output) == ("error", "begun\n(stopped after 1 s)")
    assert children() == before


@pytest.mark.usefixtures("reaper")
def test_a_command_dies_with_the_run_that_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reading = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)

    async def stop() -> None:
        begun = asyncio.Event()
        asyncio.get_running_loop().add_reader(reading, begun.set)
        command = {"command": f"{DETACHED} sleep 1000 & sleep 1000"}
        task = asyncio.ensure_future(Host(home=str(tmp_path)).bash(command))
        await begun.wait()
        asyncio.get_running_loop().remove_reader(reading)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = children()
    asyncio.run(stop())
    # At the end of file nobody holds the FIFO any more: neither bash nor what it started.
    assert select.select([reading], [], [], 0)[0]
    assert os.read(reading, 100) == b"begun\n"
    assert os.read(reading, 100) == b""
    os.close(reading)
    assert children() == before


@pytest.mark.usefixtures("reaper")
def test_a_command_that_is_cancelled_twice_is_cleared_up_all_the_same(tmp_path: Path) -> None:
    async def stop() -> None:
        begun = asyncio.Event()
        task = asyncio.ensure_future(Host(home=str(tmp_path)).bash({"command": "sleep 1000 & sleep 1000"}))
        asyncio.get_running_loop().call_soon(begun.set)
        await begun.wait()
        task.cancel()
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left)

    before = children()
    asyncio.run(stop())
    assert children() == before


@pytest.mark.usefixtures("reaper")
@pytest.mark.parametrize("first", ["", "kill -STOP $PPID"], ids=["a keeper", "a keeper that is stopped"])
def test_a_command_dies_with_the_daemon_with_all_it_started(tmp_path: Path, first: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    before = children()
    killed = daemon(tmp_path, f"{first}\n{DETACHED} sleep 1000")
    with killed, open(tmp_path / "fifo") as fifo:
        assert fifo.readline() == "begun\n"
        killed.kill()
        # At the end of file nobody holds the FIFO any more.
        assert fifo.read() == ""
    # The keeper has come to this process, and nothing else has.
    (keeper,) = set(children()) - set(before)
    assert os.waitpid(int(keeper), 0)[1] == 0
    assert children() == before


@pytest.mark.parametrize("number", ["TERM", "KILL"])
def test_a_command_that_kills_its_keeper_is_ended_with_all_it_started(tmp_path: Path, number: str) -> None:
    for name in ("gate", "fifo"):
        os.mkfifo(tmp_path / name)
    command = f"{DETACHED} read < gate; kill -{number} $PPID; sleep 1000"
    with daemon(tmp_path, command) as left, open(tmp_path / "fifo") as fifo:
        assert fifo.readline() == "begun\n"
        (tmp_path / "gate").write_text("go on\n")
        assert left.communicate()[0] == "(killed by SIGKILL)\nchildren: \n"
        assert fifo.read() == ""


def test_a_command_whose_daemon_died_before_it_was_bound_to_it_is_not_started(tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-S", "-c", shell._KEEPER, "1", "/bin/touch", str(tmp_path / "file")]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not (tmp_path / "file").exists()


def test_what_ends_while_a_command_runs_is_no_zombie_for_the_rest_of_it(tmp_path: Path) -> None:
    # Bash would wait for none of them; at last it is its keeper's only child.
    command = """
        for i in {1..20}; do (setsid true &); done
        until read -r all < /proc/$PPID/task/$PPID/children; [ "$all" = $$ ]; do :; done
    """
    assert bash(tmp_path, command, timeout_secs=20).output == "(exit status 0)"


@pytest.mark.usefixtures("reaper")
def test_one_that_begins_again_and_again_in_a_new_session_is_caught(tmp_path: Path) -> None:
    # Not for ever: it would outlive a test that fails.
    program = "import os; open('begun', 'w')\nfor _ in range(20000): os.fork() and os._exit(0); os.setsid()"
    before = children()
    command = f'{sys.executable} -I -S -c "{program}" & until [ -e begun ]; do :; done'
    assert bash(tmp_path, command).output == "(exit status 0)"
    assert children() == before


def test_the_event_loop_goes_on_while_a_command_runs_and_no_thread_is_made(tmp_path: Path) -> None:
    async def both() -> tuple[Result, Result]:
        (tmp_path / "gate").unlink(missing_ok=True)
        os.mkfifo(tmp_path / "gate")
        tool = Host(home=str(tmp_path))
        # Each waits for the other: neither could end if one kept the loop.
        found = await asyncio.gather(
            tool.bash({"command": "echo open > gate"}), tool.bash({"command": "cat gate"})
        )
        assert threading.active_count() == threads
        return found

    threads = threading.active_count()
    assert [result.output for result in asyncio.run(both())] == ["(exit status 0)", "open\n(exit status 0)"]


def test_no_command_leaves_a_descriptor_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    bash(tmp_path, "sleep 1000 &")
    bash(tmp_path, "exec >&- 2>&-; sleep 0")
    bash(tmp_path, "sleep 1000", timeout_secs=1)
    asyncio.run(Host(home=str(tmp_path), bash="/none").bash({"command": "true"}))
    assert os.listdir("/proc/self/fd") == before


def test_a_bash_or_home_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    result = asyncio.run(Host(home=str(tmp_path), bash="/none/bash").bash({"command": "true"}))
    assert (result.status, result.output) == (
        "error",
        'bash cannot be started: "/none/bash": No such file or directory',
    )
    result = bash(tmp_path / "gone", "true")
    assert (result.status, str(tmp_path / "gone") in result.output) == ("error", True)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"command": ""},
        {"command": 7},
        {"command": ["ls"]},
        {"command": "x" * 30_001},
        {"command": "true\0"},
        {"command": "\ud800"},
        {"command": "true", "timeout_secs": 0},
        {"command": "true", "timeout_secs": 601},
        {"command": "true", "timeout_secs": 1.5},
        {"command": "true", "timeout_secs": True},
        {"command": "true", "folder": "/"},
    ],
)
def test_a_call_that_is_none_runs_nothing(tmp_path: Path, arguments: dict[str, Any]) -> None:
    result = asyncio.run(Host(home=str(tmp_path), bash="/none").bash(arguments))
    assert (result.status, result.records) == ("error", ())
    assert result.output.startswith("bash takes ")


def test_the_longest_command_of_the_widest_letters_fits(tmp_path: Path) -> None:
    assert bash(tmp_path, "#" + "𝄞" * 29_999).output == "(exit status 0)"


# --- files ---


def test_a_path_is_absolute_or_from_the_home_folder_on(tmp_path: Path) -> None:
    assert use(tmp_path, "write_file", path="~/a/b", content="text").output == (
        f'Wrote 4 bytes to "{tmp_path}/a/b".'
    )
    for path in ("~/a/b", f"{tmp_path}/a/b", f"{tmp_path}/a/../a//b"):
        assert use(tmp_path, "read_file", path=path).output == "text"
    assert use(tmp_path, "list_dir", path="~").output == 'folder - "a"'
    assert use(tmp_path, "search", path="~/", text="ex").output == f'"{tmp_path}/a/b":1: text'
    for path in ("a/b", "", ".", "~root/x", "~/a\0"):
        result = use(tmp_path, "read_file", path=path)
        assert (result.status, json.dumps(path) in result.output) == ("error", True)
    assert use(tmp_path, "list_dir").output == "host_list_dir takes path, and no other argument"
    assert "host_search takes its text" in use(tmp_path, "search", path="/", text=7).output


def test_a_symlink_is_followed_and_stays_one_when_it_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/file").write_text("old")
    (tmp_path / "name").symlink_to("link/file")
    assert use(tmp_path, "read_file", path="~/name").output == "old"
    assert use(tmp_path, "write_file", path="~/name", content="new").status == "ok"
    assert use(tmp_path, "write_file", path="~/link/other", content="x").status == "ok"
    assert (tmp_path / "name").is_symlink()
    assert (tmp_path / "real/file").read_text() == "new"
    assert (tmp_path / "real/other").exists()
    (tmp_path / "loop").symlink_to("loop")
    assert "symlink" in use(tmp_path, "read_file", path="~/loop").output


def test_a_script_stays_one_when_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "script").touch()
    (tmp_path / "script").chmod(0o4755)
    use(tmp_path, "write_file", path="~/script", content="new")
    assert stat.S_IMODE((tmp_path / "script").stat().st_mode) == 0o755
    use(tmp_path, "write_file", path="~/secret", content="new")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_device_and_a_fifo_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert "it is a FIFO" in use(tmp_path, "read_file", path="~/fifo").output
    assert "it is a device" in use(tmp_path, "read_file", path="~/zero").output
    assert "it is a device" in use(tmp_path, "write_file", path="/dev/null", content="x").output


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/mem",
        "/proc/self/environ",
        "/proc/thread-self/maps",
        "~/link/self/mem",
        "/proc/self/root/proc/self/maps",
        "/proc/PID/environ",
        "/proc/self/task/PID/environ",
    ],
)
def test_the_daemons_own_memory_and_environment_are_no_file_of_the_host(tmp_path: Path, path: str) -> None:
    path = path.replace("PID", str(os.getpid()))
    (tmp_path / "link").symlink_to("/proc")
    for tool, more in (("read_file", {}), ("search", {"text": "a"}), ("write_file", {"content": "x"})):
        result = use(tmp_path, tool, path=path, **more)
        assert result.status == "error"
    assert "only bash may read" in use(tmp_path, "list_dir", path="/proc").output
    assert "only bash may read" in use(tmp_path, "search", path="/proc/self", text="a").output


def test_another_proc_file_system_is_known_for_one_too(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    program = (
        "import asyncio, sys; from spl.tools.host import Host\n"
        "print(asyncio.run(Host(home=sys.argv[1]).read_file({'path': '~/proc/version'})).output)\n"
    )
    bind = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", str(tmp_path / "proc")]
    done = subprocess.run(
        [*bind, sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == '"~/proc/version" cannot be read: it is in /proc, which only bash may read\n'


def test_the_host_is_the_users_own_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/elsewhere")
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert asyncio.run(Host().bash({"command": "pwd"})).output == f"{home}\n(exit status 0)"
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_999_999)
    assert asyncio.run(Host().bash({"command": "pwd; echo $USER"})).output == "/\n3999999999\n(exit status 0)"
