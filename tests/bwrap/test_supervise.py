from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from bwrap import supervise, uids
from bwrap.host import Shape
from bwrap.ledger import Ledger
from bwrap.process import Process
from bwrap.supervise import Exit, read_exit, unfold
from bwrap.uids import Pool
from tests.disk import disk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.plan import Plan

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that lives until it is killed, and was started by nobody here."""
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    yield process
    process.communicate()


def gone() -> int:
    """Give the pid of a process that has ended."""
    with subprocess.Popen(["/bin/true"]) as process:
        return process.pid


NONCE = "0123456789abcdef" * 2


def entry(folder: Path, pid: int, **said: object) -> None:
    """Write down a launch and the worker that it came to."""
    launch = {"boot": BOOT, "uid": None, "group": None, **said}
    worker = {"pid": pid, "start_time": supervise.started(pid), **said}
    (folder / f"start-{NONCE}").write_text(f"{json.dumps(launch)}\n{json.dumps(worker)}\n")


def reserved(folder: Path, uid: int) -> None:
    """Write down a launch and the uid that it leased."""
    (folder / f"start-{NONCE}").write_text(json.dumps({"boot": BOOT, "uid": uid, "group": None}) + "\n")


@pytest.mark.parametrize(
    ("status", "code", "name"),
    [
        (0, 0, None), (12, 12, None), (137, 137, None), (255, 255, None), (-9, None, "SIGKILL"), (-15, None, "SIGTERM"),
        (-11, None, "SIGSEGV"), (-40, None, "SIG40"),
    ],
)  # fmt: skip
def test_an_exit_is_a_code_or_a_signal(status: int, code: int | None, name: str | None) -> None:
    assert read_exit(status) == Exit(code, name)


@pytest.mark.parametrize(
    ("status", "code", "name"),
    [
        (0, 0, None), (12, 12, None), (63, 63, None), (128, 128, None), (137, None, "SIGKILL"), (139, None, "SIGSEGV"),
        (159, None, "SIGSYS"), (193, 193, None), (255, 255, None), (-9, None, "SIGKILL"),
    ],
)  # fmt: skip
def test_an_exit_is_unfolded_from_what_bubblewrap_says(
    status: int, code: int | None, name: str | None
) -> None:
    assert unfold(status) == Exit(code, name)


def test_only_an_exit_of_its_own_with_0_is_clean() -> None:
    assert read_exit(0).clean
    assert not read_exit(10).clean
    assert not read_exit(-9).clean


def test_a_reason_stands_with_the_kill_alone_and_not_with_an_end_that_came_before_it() -> None:
    assert read_exit(-9).because("stop") == Exit(None, "SIGKILL", "stop")
    assert read_exit(-9).because(None) == Exit(None, "SIGKILL", None)
    assert read_exit(0).because("stop") == Exit(0, None, None)
    assert read_exit(-11).because("stop") == Exit(None, "SIGSEGV", None)


def test_an_exit_stands_in_a_record_as_a_code_or_a_signal() -> None:
    assert read_exit(10).wire() == {"code": 10}
    assert read_exit(-9).because("stop").wire() == {"signal": "SIGKILL"}


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("exit 0", Exit(0, None)),
        ("exit 137", Exit(137, None)),
        ("kill -9 $$", Exit(None, "SIGKILL")),
        ("kill -35 $$", Exit(None, "SIG35")),
    ],
)
def test_a_process_that_was_left_to_this_one_is_read_as_it_is_reaped(script: str, ended: Exit) -> None:
    child = subprocess.Popen(["/bin/sh", "-c", script])
    pidfd = os.pidfd_open(child.pid)
    try:
        assert supervise._own_exit(pidfd) == ended
        with pytest.raises(ChildProcessError):
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        child.returncode = 0  # it is reaped: nothing is left for this object to wait for
    finally:
        os.close(pidfd)


def test_how_a_process_ended_is_not_made_up_while_it_lives_or_where_the_kernel_does_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")

    pidfd = os.pidfd_open(os.getppid())  # no child of this process, and it lives
    try:
        assert supervise._own_exit(pidfd) is None
        monkeypatch.setattr("fcntl.ioctl", unknown)
        assert supervise._own_exit(pidfd) is None
    finally:
        os.close(pidfd)


def test_a_sweep_kills_what_is_recorded_and_still_the_same_process(
    tmp_path: Path, foreign: subprocess.Popen[bytes]
) -> None:
    ledger = Ledger(str(tmp_path))
    entry(tmp_path, foreign.pid)

    assert ledger.sweep() == [foreign.pid]
    assert foreign.wait() == -9
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_does_not_say_that_it_killed_what_had_ended_by_itself(
    tmp_path: Path, foreign: subprocess.Popen[bytes]
) -> None:
    ledger = Ledger(str(tmp_path))
    entry(tmp_path, foreign.pid)
    assert foreign.stdin is not None
    foreign.stdin.close()
    os.waitid(os.P_PID, foreign.pid, os.WEXITED | os.WNOWAIT)

    assert ledger.sweep() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "said",
    [{"start_time": 1}, {"start_time": None}, {"boot": "another"}, {"boot": "another", "start_time": 1}],
    ids=["another start", "no start", "another boot", "neither"],
)
def test_a_sweep_leaves_a_process_that_only_has_the_number(
    tmp_path: Path, foreign: subprocess.Popen[bytes], said: dict[str, object]
) -> None:
    ledger = Ledger(str(tmp_path))
    entry(tmp_path, foreign.pid, **said)

    assert ledger.sweep() == []
    assert foreign.poll() is None
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_goes_by_what_was_written_before_a_line_that_was_cut_off(
    tmp_path: Path, foreign: subprocess.Popen[bytes]
) -> None:
    ledger = Ledger(str(tmp_path))
    entry(tmp_path, foreign.pid)
    with (tmp_path / f"start-{NONCE}").open("a") as file:
        file.write('{"start_time": 1')

    assert ledger.sweep() == [foreign.pid]
    assert foreign.wait() == -9
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_reads_the_entries_of_a_worker_and_a_uid_that_earlier_versions_wrote(
    tmp_path: Path, foreign: subprocess.Popen[bytes]
) -> None:
    start_time = supervise.started(foreign.pid)
    (tmp_path / str(foreign.pid)).write_text(json.dumps({"boot": BOOT, "start_time": start_time}))
    (tmp_path / "uid-12345").write_text(json.dumps({"boot": BOOT, "start_time": None}))

    assert Ledger(str(tmp_path)).sweep() == [foreign.pid]
    assert foreign.wait() == -9
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"boot": "b"}', '{"boot": 1, "start_time": {}, "uid": "x"}', "\udcff"]
)
def test_a_sweep_strikes_an_entry_that_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / f"start-{NONCE}").write_bytes(os.fsencode(text))
    (tmp_path / "17").write_bytes(os.fsencode(text))
    (tmp_path / "no number").write_text("{}")

    assert Ledger(str(tmp_path)).sweep() == []
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_leaves_what_is_no_file_and_waits_for_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1")
    (tmp_path / "2").mkdir()
    (tmp_path / "3").symlink_to("/dev/zero")

    assert Ledger(str(tmp_path)).sweep() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]


@pytest.mark.skipif(os.getuid() != 0, reason="a process under another uid needs root")
def test_a_sweep_kills_what_else_runs_under_a_recorded_uid_that_nobody_holds(tmp_path: Path) -> None:
    before = Ledger(str(tmp_path), Pool(60980, 60981))
    lease = before.lease()
    with subprocess.Popen(
        ["/bin/cat"], stdin=subprocess.PIPE, user=lease.uid, group=lease.uid, extra_groups=[]
    ) as other:
        assert before.sweep() == []
        assert other.poll() is None

        lease.release()
        reserved(tmp_path, lease.uid)
        # The next daemon may have been given another range.
        assert Ledger(str(tmp_path), Pool(60990, 60990)).sweep() == [other.pid]
        assert other.wait() == -9


@pytest.mark.skipif(os.getuid() != 0, reason="a process under another uid needs root")
@pytest.mark.parametrize("uid", [0, 12345, 61000])
def test_a_sweep_kills_nothing_for_a_uid_that_was_never_leased(tmp_path: Path, uid: int) -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=uid, group=uid, extra_groups=[]) as other:
        reserved(tmp_path, uid)

        assert Ledger(str(tmp_path)).sweep() == []
        assert other.poll() is None


@pytest.mark.skipif(os.getuid() != 0, reason="a process under another uid needs root")
def test_a_sweep_kills_nothing_for_a_uid_with_a_name_even_if_it_was_leased(tmp_path: Path) -> None:
    pool = Pool(folder=str(tmp_path / "uids"))
    pool.lease().release()
    (tmp_path / "uids" / "1").touch()
    (tmp_path / "ledger").mkdir()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=1, group=1, extra_groups=[]) as other:
        reserved(tmp_path / "ledger", 1)

        assert Ledger(str(tmp_path / "ledger"), pool).sweep() == []
        assert other.poll() is None


@pytest.mark.skipif(os.getuid() != 0, reason="a lock that only root can make")
def test_a_sweep_kills_what_runs_under_the_uid_of_an_entry_that_earlier_versions_wrote(
    tmp_path: Path,
) -> None:
    lease = Pool(60980, 60981).lease()
    with subprocess.Popen(
        ["/bin/cat"], stdin=subprocess.PIPE, user=lease.uid, group=lease.uid, extra_groups=[]
    ) as other:
        lease.release()
        (tmp_path / f"uid-{lease.uid}").write_text(json.dumps({"boot": BOOT, "start_time": None}))

        assert Ledger(str(tmp_path)).sweep() == [other.pid]
        assert other.wait() == -9


@pytest.mark.skipif(os.getuid() != 0, reason="a lock that only root can make")
def test_a_launch_is_written_down_with_the_uid_that_is_leased_for_it(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), Pool(60980, 60981))
    lease = ledger.lease()
    ledger.begin(NONCE, lease.uid)
    (written,) = tmp_path.iterdir()
    assert written.name == f"start-{NONCE}"
    assert json.loads(written.read_text()) == {"boot": BOOT, "uid": lease.uid, "group": None}

    ledger.end(NONCE)
    lease.release()

    assert list(tmp_path.iterdir()) == []
    again = Pool().take(lease.uid)
    assert again is not None
    again.release()


def test_a_launch_that_could_not_be_written_down_whole_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", lambda _, line: len(line) - 1)

    with pytest.raises(OSError, match="No space left on device"):
        Ledger(str(tmp_path)).begin(NONCE)


@pytest.mark.skipif(os.getuid() != 0, reason="a disk of the test's own needs root")
@pytest.mark.claim("A3")
def test_what_a_worker_held_is_given_back_on_a_disk_that_cannot_be_written_and_its_entries_go_once_it_can(
    tmp_path: Path,
) -> None:
    with disk(tmp_path, 16) as drive:
        folder = drive.seen(drive.path / "workers")
        ledger = Ledger(str(folder), Pool(60980, 60981))
        lease = ledger.lease()
        ledger.begin("a" * 32, lease.uid)
        drive.sync()
        drive.fail()

        ledger.end("a" * 32)
        lease.release()

        again = Pool().take(lease.uid)
        assert again is not None
        again.release()
        assert len(list(folder.iterdir())) == 1
        drive.unmount()
        drive.mount()
        ledger.begin("b" * 32)
        ledger.end("b" * 32)
        assert list(folder.iterdir()) == []


def test_nothing_belongs_to_a_worker_that_cannot_be_told_from_its_daemon() -> None:
    own = os.readlink("/proc/self/ns/mnt")

    assert list(supervise.belonging(Shape.SAME_USER, os.getuid(), own)) == []
    assert list(supervise.belonging(Shape.SAME_USER, os.getuid(), None)) == []
    assert list(supervise.belonging(Shape.HOSTED, os.getuid(), own)) == []
    assert list(supervise.belonging(Shape.HOSTED, 0, None)) == []


def test_killing_by_number_wants_the_same_start(foreign: subprocess.Popen[bytes]) -> None:
    started = supervise.started(foreign.pid)
    assert started is not None

    assert not supervise.kill_pid(foreign.pid, lambda: supervise.started(foreign.pid) == started + 1)
    assert supervise.kill_pid(foreign.pid, lambda: supervise.started(foreign.pid) == started)
    assert foreign.wait() == -9
    assert not supervise.kill_pid(foreign.pid, lambda: supervise.started(foreign.pid) == started)
    assert supervise.started(foreign.pid) is None


def test_a_start_time_is_read_past_any_name(tmp_path: Path) -> None:
    program = tmp_path / ") 1 2 (x"
    program.symlink_to("/bin/cat")
    with subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:
        assert named.stdin is not None
        assert named.stdout is not None
        # It has answered, so it is past its exec and bears its name.
        named.stdin.write(b"x\n")
        named.stdin.flush()
        assert named.stdout.readline() == b"x\n"
        assert "(x" in Path(f"/proc/{named.pid}/comm").read_text()
        assert abs((supervise.started(named.pid) or 0) - (supervise.started(os.getpid()) or 0)) < 1_000_000


def test_the_ledgers_folder_is_its_owners_alone(tmp_path: Path) -> None:
    Ledger(str(tmp_path / "workers"))

    assert (tmp_path / "workers").stat().st_mode & 0o777 == 0o700


@pytest.mark.claim("I13")
def test_a_sweep_kills_the_child_of_a_bubblewrap_that_was_killed_before_it_was_set_up(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    status, telling = os.pipe()
    held, holding = os.pipe()
    options = ["--ro-bind", "/", "/", "--json-status-fd", str(telling), "--block-fd", str(held)]
    monitor = subprocess.Popen(
        ["/usr/bin/bwrap", *options, "--", "/bin/cat", NONCE], pass_fds=[telling, held]
    )
    ledger.begin(NONCE)
    with open(status, "rb") as told:
        child = json.loads(told.readline())["child-pid"]
    pidfd = os.pidfd_open(child)
    try:
        monitor.kill()
        monitor.wait()
        assert not select.select([pidfd], [], [], 0)[
            0
        ]  # it waits to be released, and nobody is there to do it

        assert ledger.sweep() == [child]
        assert select.select([pidfd], [], [], 10)[0]
        assert list(tmp_path.iterdir()) == []
    finally:
        for descriptor in (pidfd, telling, held, holding):
            os.close(descriptor)


@pytest.mark.parametrize(
    "name", ["start-", "start-cat", "start-..", "start-0123456789ABCDEF0123456789ABCDEF"]
)
def test_a_sweep_spares_everything_when_an_entry_names_no_launch(tmp_path: Path, name: str) -> None:
    with subprocess.Popen(["/bin/cat", "-"], stdin=subprocess.PIPE) as other:
        (tmp_path / name).write_text(json.dumps({"boot": BOOT, "start_time": None}))
        assert Ledger(str(tmp_path)).sweep() == []
        assert other.poll() is None


def test_while_a_workers_end_is_cleared_up_its_namespaces_number_means_no_others() -> None:
    command = ["unshare", "-m", "/bin/cat"] if os.getuid() == 0 else ["unshare", "-Um", "/bin/cat"]

    def view(process: subprocess.Popen[bytes]) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        process.stdout.read(1)  # it is cat by now, in its own namespace
        return os.readlink(f"/proc/{process.pid}/ns/mnt")

    with ExitStack() as held:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
            seen = view(worker)
            assert supervise._hold_view(worker.pid, held) == seen
            worker.kill()
        for _ in range(20):
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
                assert view(stranger) != seen
                stranger.kill()


def test_what_cannot_be_looked_for_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_descriptors() -> dict[int, int]:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(uids, "running_uids", out_of_descriptors)
    monkeypatch.setattr(supervise, "_CLEAR_SECONDS", 0)
    with (
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as monitor,
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as worker,
    ):
        process = Process(
            cast("Plan", None), Shape.SAME_USER, worker.pid, monitor.pid, os.getuid(), os.getgid()
        )
        pidfds = [os.pidfd_open(each.pid) for each in (monitor, worker)]
        monitor.kill()
        with pytest.raises(OSError, match="too many open files"):
            asyncio.run(supervise.reap(monitor, pidfds[0], pidfds[1], process))
        for pidfd in pidfds:
            os.close(pidfd)
