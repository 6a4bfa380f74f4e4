"""What a live sandboxed run is confined by, seen by a test that trusts no receipt; what it cannot do from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.end_to_end import scripts
from tests.end_to_end.daemon import ask_raw, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.daemon import Daemon, Shape

POOL = range(60600, 60856)


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def status(pid: int, field: str) -> list[str]:
    (line,) = [line for line in proc(pid, "status").splitlines() if line.startswith(f"{field}:")]
    return line.split(":")[1].split()


@contextlib.contextmanager
def live_worker(shape: Shape, home: Path, **given: Any) -> Iterator[tuple[Daemon, str, int]]:
    """A sandboxed run that goes on, its worker held still while it is looked at; its daemon is given what is given."""
    provider = scripts.write(home.parent / "script", *scripts.endless())
    # Held still, it comes to no step when the daemon stops.
    with shape.daemon(home, "--provider", provider, **{"SPL_DRAIN_SECONDS": "0", **given}) as daemon:
        daemon.set_transport("sandboxed")
        thread = daemon.start("Go on.")["thread"]
        pid = daemon.worker_pid(thread)
        # It has its credential, and has used it, once the model has replied.
        while not daemon.bodies(thread, "core.work.turn.v1"):
            assert daemon.process.poll() is None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield daemon, thread, pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.claim("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I9", "I10", "I11", "M3")
def test_a_live_worker_is_confined_by_every_layer(shape: Shape, home: Path) -> None:
    with live_worker(shape, home) as (daemon, thread, pid):
        own = "/proc/self/ns"
        for name in ("user", "net", "mnt", "ipc", "uts", "cgroup"):
            assert os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"{own}/{name}"), name
        assert os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"{own}/pid")
        assert re.findall(r"^\s*(\S+):", proc(pid, "net/dev"), re.MULTILINE) == ["lo"]
        assert proc(pid, "environ") == "PATH=/usr/bin\0"
        # The three it was given, and its own connection to the worker socket.
        held = {name: os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
        assert {"0", "1", "2"} <= set(held)
        assert [link.split(":")[0] for name, link in held.items() if name not in "012"] in ([], ["socket"])
        assert status(pid, "NoNewPrivs") == ["1"]
        assert status(pid, "Seccomp") == ["2"]
        assert {status(pid, f"Cap{name}")[0] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        uids = {int(each) for each in status(pid, "Uid")}
        assert uids == {shape.uid} if shape.name == "same-user" else uids <= set(POOL)
        limits = proc(pid, "limits")
        for line in (
            r"Max address space +536870912 +536870912",
            r"Max processes +1 +1",
            r"Max core file size +1 +1",
        ):
            assert re.search(line, limits), line
        # Its own program: nothing of the daemon's, and no file of the home, is mapped.
        maps = proc(pid, "maps")
        assert str(home) not in maps
        assert "site-packages" not in maps
        assert not re.search(r"sqlite3|libssl|libseccomp", maps)
        root = f"/proc/{pid}/root"
        seen = [os.path.join(at, name) for at, _, names in os.walk(root + str(home)) for name in names]
        assert seen == [f"{root}{home}/run/spl-worker.sock"]
        assert not os.path.exists(f"{root}/etc")
        assert not os.path.exists(f"{root}/proc")
        assert int(proc(pid, "stat").rsplit(")", 1)[1].split()[4]) == 0  # no controlling terminal
        # The credential: in no argument, and in nothing the daemon wrote.
        secret = credential_of(pid)
        assert secret not in proc(pid, "cmdline")
        assert secret not in "".join(daemon.log.lines)
        assert secret not in json.dumps(daemon.bodies(thread))
        receipts = daemon.bodies(thread, "core.work.isolation.v1")
        assert [receipt["pid"] for receipt in receipts] == [pid]


@pytest.mark.claim("I14", "I7")
def test_a_stolen_credential_is_worth_nothing_to_another_process(shape: Shape, home: Path) -> None:
    with live_worker(shape, home) as (_, __, pid):
        secret = credential_of(pid)
        lines = (
            "GET /v1/worker/run HTTP/1.1",
            "Host: x",
            "Connection: close",
            f"Authorization: Bearer {secret}",
        )
        request = "\r\n".join(lines) + "\r\n\r\n"

        answer = ask_as(shape.uid, home / "run" / "spl-worker.sock", request)

    assert answer.startswith("HTTP/1.1 401 ")
    assert '"UNAUTHENTICATED"' in answer


ASK = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.argv[2].encode())
while piece := s.recv(65536): sys.stdout.buffer.write(piece)
"""


@pytest.mark.claim("I8", "M1")
def test_the_worker_socket_has_five_doors_and_they_need_a_live_bearer(shape: Shape, home: Path) -> None:
    doors = {
        "GET /v1/worker/run",
        "POST /v1/worker/infer",
        "POST /v1/worker/propose",
        "POST /v1/worker/call",
        "POST /v1/worker/records",
    }
    other = {
        "GET /health",
        "GET /v1/engine/health",
        "POST /v1/work/loop",
        "POST /v1/worker/run",
        "GET /v1/worker/infer",
        "HEAD /v1/worker/run",
        "GET /v1/worker/run/",
        "GET /v1//worker/run",
        "GET /v1/worker/%72un",
        "GET /v1/worker/run?x=1",
        "OPTIONS *",
        "GET /v1/worker/../worker/run",
    }
    with shape.daemon(home) as daemon:
        token = (home / "token").read_text().strip()

        def answer(line: str, *headers: str) -> str:
            head = "\r\n".join(
                (f"{line} HTTP/1.1", "Host: x", "Content-Length: 0", "Connection: close", *headers)
            )
            # Admitted: this is root, or in the same-user shape made the daemon's user.
            return ask_as(shape.uid, home / "run" / "spl-worker.sock", f"{head}\r\n\r\n")

        for line in sorted(doors):
            assert answer(line).startswith("HTTP/1.1 401 "), line
            assert answer(line, f"Authorization: Bearer {token}").startswith("HTTP/1.1 401 "), line
        bodies = set()
        for line in sorted(other):
            for headers in ((), (f"Authorization: Bearer {token}",)):
                said = answer(line, *headers)
                assert said.startswith("HTTP/1.1 404 "), line
                if not line.startswith("HEAD"):
                    bodies.add(said.split("\r\n\r\n", 1)[1])
        assert len(bodies) == 1
        assert daemon.process.poll() is None


def ask_as(uid: int, path: Path | str, request: str) -> str:
    """Send bytes to a unix socket as another user; gives all that came back until it was closed."""
    if uid == os.getuid():
        return ask_raw(str(path), request.encode()).decode()
    command = ["python3", "-c", ASK, str(path), request]
    done = subprocess.run(command, user=uid, group=uid, extra_groups=[], capture_output=True, check=False)
    # It connected, sent what it had and saw the end; a peer that is closed unread may be reset instead.
    assert done.returncode == 0 or b"ConnectionResetError" in done.stderr or b"BrokenPipeError" in done.stderr
    return done.stdout.decode()


@pytest.mark.claim("I8")
def test_a_uid_that_is_no_live_workers_is_closed_unread(hosted: Shape, home: Path) -> None:
    with hosted.daemon(home):
        path = os.readlink(home / "run" / "spl-worker.sock")
        request = "GET /v1/worker/run HTTP/1.1\r\nHost: x\r\n\r\n"
        for uid in (23456, POOL[0], 65534):
            assert ask_as(uid, path, request) == "", uid


@pytest.mark.claim("M1")
def test_the_operators_socket_is_its_users_alone_and_the_workers_is_beside_it(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home) as daemon:
        own = os.lstat(home / "run" / "spl.sock")
        assert stat.S_ISSOCK(own.st_mode)
        assert (stat.S_IMODE(own.st_mode), own.st_uid) == (0o600, shape.uid)
        assert stat.S_ISSOCK(os.stat(home / "run" / "spl-worker.sock").st_mode)
        assert daemon.stop() == 0
    assert not os.path.lexists(home / "run" / "spl-worker.sock")
    assert not os.path.lexists(home / "run" / "spl.sock")


@pytest.mark.claim("I13")
def test_a_worker_dies_with_its_daemon_even_on_sigkill_and_the_run_gets_its_outcome_later(
    shape: Shape, home: Path
) -> None:
    with live_worker(shape, home) as (daemon, thread, pid):
        pidfd = os.pidfd_open(pid)
        daemon.process.kill()
        daemon.process.wait()
        wait_until_gone(pid, pidfd)  # though it was stopped, and so could not have ended by itself
        os.close(pidfd)
    with shape.daemon(home) as daemon:
        row = daemon.request("GET", f"/v1/runs/{thread}")
        assert (row["state"], row["outcome"]) == ("stopped_short", "failed")
        assert "daemon ended" in row["summary"]


def test_a_daemon_that_is_stopped_leaves_no_worker_and_no_run_without_an_outcome(
    shape: Shape, home: Path
) -> None:
    with live_worker(shape, home) as (daemon, thread, pid):
        pidfd = os.pidfd_open(pid)
        assert daemon.stop() == 0
        wait_until_gone(pid, pidfd)
        os.close(pidfd)
    with shape.daemon(home) as daemon:
        (outcome,) = daemon.bodies(thread, "core.work.loop_outcome.v1")
        assert outcome["outcome"] == "failed"
        assert outcome["exit"] == {"signal": "SIGKILL"}
    assert list((home / "run" / "workers").iterdir()) == []


def test_a_run_past_its_wall_clock_is_killed_and_its_budget_said_to_be_exhausted(
    shape: Shape, home: Path
) -> None:
    provider = scripts.write(home.parent / "script", *scripts.endless())
    with shape.daemon(home, "--provider", provider) as daemon:
        for transport in ("sandboxed", "in_process"):
            daemon.set_transport(transport)
            row = daemon.finish(daemon.start("Go on.", wall_clock_secs=0.3)["thread"])
            (outcome,) = daemon.bodies(row["thread"], "core.work.loop_outcome.v1")
            assert (outcome["outcome"], outcome["budget_kind"]) == ("budget_exhausted", "wall_clock")
            assert row["state"] == "stopped_short"


def credential_of(pid: int) -> str:
    """Read the credential out of a worker's memory, as only root can: nowhere else is it to be found."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in proc(pid, "maps").splitlines():
            if " rw" not in line:
                continue
            start, end = (int(each, 16) for each in line.split(" ")[0].split("-"))
            memory.seek(start)
            with contextlib.suppress(OSError):
                if found := re.search(rb"spl_run_[A-Za-z0-9_-]{43}", memory.read(end - start)):
                    return found[0].decode()
    raise AssertionError("the worker holds no credential")


def test_a_network_worker_would_not_help_anyone_the_daemons_port_needs_a_bearer(
    hosted: Shape, home: Path
) -> None:
    with hosted.daemon(home) as daemon, socket.create_connection(("127.0.0.1", daemon.port)) as connection:
        connection.sendall(b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")
