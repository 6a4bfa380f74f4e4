from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bwrap.uids import Pool
from tests.bwrap.conftest import ORDINARY, SHAPES, start

if TYPE_CHECKING:
    from escape.installation import Installation
    from tests.bwrap.conftest import Daemon

LAYERS = [
    "syscalls", "user_namespace", "separate_user", "network", "home", "mounts", "ipc", "uts", "cgroup", "landlock",
    "capabilities", "no_new_privs", "limits", "environment", "descriptors", "session", "parent_death", "credential",
]  # fmt: skip


@pytest.mark.claim("I12")
def test_a_receipt_names_every_layer_of_its_shape_with_what_was_seen(daemon: Daemon) -> None:
    told = daemon.play("receipt")

    receipt = told["receipt"]
    assert receipt["shape"] == daemon.shape
    expected = [name for name in LAYERS if daemon.shape == "hosted" or name != "separate_user"]
    assert [layer["layer"] for layer in receipt["layers"]] == expected
    assert all(layer["confirmed"] and layer["observed"] and layer["claim"] for layer in receipt["layers"])
    assert (receipt["profile"], receipt["pid"], receipt["uid"]) == ("worker", told["pid"], told["uid"])
    assert receipt["image_digest"] == told["image"]
    for name in ("profile_digest", "argv_digest", "filter_digest"):
        assert len(receipt[name]) == 64
    assert receipt["bubblewrap"]["version"]
    assert told["exit"] == {"code": None, "signal": "SIGKILL", "killed": "test"}


@pytest.mark.claim("I1", "I2", "I3", "I5", "I6", "I9", "I11")
def test_what_proc_says_of_a_live_worker_is_what_is_promised(daemon: Daemon) -> None:
    seen = daemon.play("live")

    assert seen["environ"] == "PATH=/usr/bin\0"
    assert seen["descriptors"] == ["0", "1", "2"]
    assert seen["kinds"] == ["pipe"] * 3
    assert seen["own_namespaces"] == ["user", "net", "mnt", "ipc", "uts", "cgroup"]
    assert seen["devices"] == ["lo"]
    assert seen["tty"] == "0"
    assert seen["session"] == seen["pid"]
    status = seen["status"]
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name][0], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])
    assert {
        name: seen["limits"][name][:2]
        for name in (
            "Max address space",
            "Max file size",
            "Max processes",
            "Max open files",
            "Max cpu time",
            "Max core file size",
        )
    } == {
        "Max address space": [str(512 << 20)] * 2,
        "Max file size": [str(16 << 20)] * 2,
        "Max processes": ["1"] * 2,
        "Max open files": ["64"] * 2,
        "Max cpu time": ["60"] * 2,
        "Max core file size": ["1"] * 2,
    }
    assert seen["under_home"] == ["/run/spl-worker.sock"]
    assert seen["secret_found"] == []
    assert seen["image_is_the_receipts"]
    # The interpreter is this one, wherever it lies.
    beside = Path(sys.base_prefix).parts[1]
    assert set(seen["root"]) <= {"bin", "lib", "lib64", "spl-worker.pyc", "tmp", "usr", beside}
    # Nothing of the daemon's: no project file, no package beyond the interpreter's own, no memory shared.
    own = (f"{sys.base_prefix}/bin/", f"{sys.base_prefix}/lib/")
    assert all(path.startswith(("/usr/bin/", "/usr/lib", *own)) for path in seen["mapped"])
    assert seen["uid_map"] == [str(seen["uid"])] * 2 + ["1"]
    assert status["Uid"] == [str(seen["uid"])] * 4
    if daemon.shape == "hosted":
        assert Pool().first <= seen["uid"] <= Pool().last
        assert status["Groups"] == []
    else:
        assert seen["uid"] == daemon.uid
    assert seen["uid"] != 0


@pytest.mark.claim("I7", "I14")
def test_a_credential_reaches_the_socket_from_that_process_and_stands_nowhere_else(daemon: Daemon) -> None:
    told = daemon.play("entrusted")

    assert "Authorization: Bearer c0ffee-c0ffee\r\n" in told["request"]
    assert told["peer"] == told["process"]
    assert not told["in_words"]
    assert told["files"] == []
    assert told["code"] == 11


@pytest.mark.claim("I7", "I13")
def test_end_of_input_before_a_credential_ends_a_worker(daemon: Daemon) -> None:
    assert daemon.play("end_of_input") == {"code": 10, "clean": False, "alive": False}


@pytest.mark.claim("I9")
def test_two_workers_at_once_have_nothing_in_common_but_their_command_line(daemon: Daemon) -> None:
    one, other = daemon.play("side_by_side")

    assert one["user"] != other["user"]
    assert one["argv"] == other["argv"]
    if daemon.shape == "hosted":
        assert one["uid"] != other["uid"]
        # bubblewrap and the worker itself, and nobody else, run under a leased uid.
        assert [one["processes"], other["processes"]] == [2, 2]
    assert one["held"]
    assert other["held"]


@pytest.mark.claim("I10")
def test_a_worker_can_touch_no_other_process(daemon: Daemon) -> None:
    told = daemon.play("touching")

    assert {name: answer for name, answer in told["answers"].items() if answer != -1} == {}
    assert told["victim_lives"]


@pytest.mark.claim("I10")
def test_a_profile_with_a_process_id_namespace_is_confirmed_too(daemon: Daemon) -> None:
    told = daemon.play("receipt", extra="[namespaces]\npid = true\n")

    assert "pid_namespace" in [layer["layer"] for layer in told["receipt"]["layers"]]
    assert len(told["receipt"]["layers"]) == len(LAYERS) + 1 - (daemon.shape != "hosted")
    assert told["exit"]["signal"] == "SIGKILL"


@pytest.mark.claim("I3")
@pytest.mark.parametrize("home", [b"a home", b"a\nhome", b"a\thome\\", b"\xff\xfe", b"a\x0chome\xc2\x85"])
def test_a_home_may_have_any_name(daemon: Daemon, home: bytes) -> None:
    assert daemon.play("receipt", home=home)["receipt"]["layers"]


@pytest.mark.claim("I12")
@pytest.mark.parametrize(
    ("changes", "layer", "observed"),
    [
        (
            """_told = _write\ndef _write(to, line): _told(to, line.replace('"ready":"', '"ready":"0'))""",
            "image",
            "without this launch's nonce",
        ),
        ("def _digest(path): return '0' * 64", "image", "0" * 64),
        ("def _write(to, line): os.write(to, b'ready\\n')", "image", "without this launch's nonce"),
        ("def _write(to, line): os.write(to, b'[]\\n')", "image", "without this launch's nonce"),
        (
            "def _write(to, line): os.write(to, line[:-1].encode() + b', \"ready\": 1}\\n')",
            "image",
            "without this launch's nonce",
        ),
        ("def attempt_all(rows): raise SystemExit(0)", "sandbox", "it ended without a word"),
        ("def attempt_all(rows): raise OSError", "sandbox", "OSError"),
        (
            "def attempt_all(rows): os._exit(os.write(2, b'bwrap: Creating new namespace failed: not permitted'))",
            "sandbox",
            "bwrap: Creating new namespace failed: not permitted",
        ),
        ("def attempt_all(rows):\n    while True: os.write(1, b'x' * 4096)", "image", "more than 65536 bytes"),
        ("def attempt_all(rows): return {}", "syscalls", "not attempted"),
        ("def attempt_all(rows): return []", "image", "without this launch's nonce"),
        (
            "def attempt_all(rows): return {row[0]: -1 for row in rows}",
            "syscalls",
            "EPERM",
        ),
    ],
    ids=[
        "another nonce", "another image", "no JSON", "no object", "two answers", "exit 0", "fault",
        "bubblewrap's words", "flood", "nothing attempted", "no results", "all refused",
    ],
)  # fmt: skip
def test_a_program_that_does_not_prove_its_layers_is_refused_and_nothing_is_left(
    daemon: Daemon, changes: str, layer: str, observed: str
) -> None:
    refused = daemon.play("refusal", changes=changes)

    assert refused["layer"] == layer
    assert observed in refused["observed"]


@pytest.mark.claim("I12")
def test_another_program_altogether_is_refused(daemon: Daemon) -> None:
    assert (
        daemon.play("refusal", program='print(\'{"ready": "yes"}\', flush=True); input()')["layer"] == "image"
    )


@pytest.mark.claim("I12")
@pytest.mark.parametrize(
    "before", ["pass", "os.close(1)", "import signal; signal.signal(15, signal.SIG_IGN)"]
)
def test_a_program_that_says_nothing_is_refused_at_the_deadline(daemon: Daemon, before: str) -> None:
    silent = f"def attempt_all(rows):\n    {before}\n    os.write(2, b'still thinking')\n    os.read(0, 1)"

    refused = daemon.play("refusal", changes=silent, seconds=0.7)

    assert refused["layer"] == "sandbox"
    assert refused["expected"] == "a worker that is ready within 0.7 s"


def test_a_launch_that_is_cancelled_leaves_nothing(daemon: Daemon) -> None:
    assert daemon.play("cancelled")


def test_a_bubblewrap_that_went_away_is_a_refusal(daemon: Daemon) -> None:
    assert daemon.play("no_bubblewrap")["layer"] in {"sandbox", "separate_user"}


@pytest.mark.claim("I12", "M4")
def test_another_program_that_says_what_the_sealed_one_would_is_refused_by_what_stands_there(
    daemon: Daemon,
) -> None:
    told = daemon.play("another_image")

    assert (told["layer"], told["expected"]) == ("image", f"the sealed program {told['sealed']}")
    assert told["observed"] == told["started"]


@pytest.mark.claim("I12")
def test_what_bubblewrap_says_before_the_program_runs_names_the_layer_that_failed(daemon: Daemon) -> None:
    refused = daemon.play("complaint", said="seccomp")

    assert refused["layer"] == "mounts"
    assert refused["observed"].startswith("bwrap: Can't find source path")


def test_a_process_too_many_is_told_as_that(hosted: Daemon) -> None:
    refused = hosted.play("crowded")

    assert (refused["layer"], refused["expected"]) == ("limits", "room for one more process")
    assert "Resource temporarily unavailable" in refused["observed"]


@pytest.mark.claim("I4", "I12")
@pytest.mark.parametrize(
    "words",
    [
        'default = "EPERM"',
        'default = "EACCES"\nrefuse = [{ group = "@mount", errno = "ENOSYS" }]',
        'refuse = ["!@mount", "!@trace", "!@keyring", "!@namespace", "!@identity", "!@host"]',
        'allow = ["inotify_init1", "eventfd2"]',
    ],
)
def test_a_profile_that_refuses_in_its_own_way_is_confirmed_as_it_says(daemon: Daemon, words: str) -> None:
    told = daemon.play("receipt", extra=f"[syscalls]\n{words}\n")

    assert "syscalls" in [layer["layer"] for layer in told["receipt"]["layers"]]


def test_a_source_that_went_away_is_a_refusal_by_the_layer_of_mounts(daemon: Daemon) -> None:
    assert daemon.play("no_source")["layer"] == "mounts"


def test_a_worker_whose_monitor_is_killed_by_someone_goes_with_it(daemon: Daemon) -> None:
    ended = daemon.play("killed_from_outside")

    assert ended == {"signal": "SIGKILL", "code": None, "killed": None, "clean": False}


@pytest.mark.claim("I13")
@pytest.mark.parametrize("moment", ["held", "ready", "entrusted"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_worker_that_ignores_everything_dies_with_its_daemon(
    world_readable: Installation, shape: str, moment: str
) -> None:
    if os.getuid() != 0 and shape == "hosted":
        pytest.skip("the hosted shape needs root")
    uid = ORDINARY if shape == "same-user" and os.getuid() == 0 else os.getuid()
    with start(world_readable, uid, "tests.bwrap.doomed", moment) as daemon:
        assert daemon.stdout is not None
        folder = daemon.stdout.readline().decode().strip()
        pidfds = [os.pidfd_open(int(word)) for word in daemon.stdout.readline().split()]
        assert len(pidfds) == 2

        daemon.kill()

        ended = [bool(select.select([pidfd], [], [], 10)[0]) for pidfd in pidfds]
        for pidfd, gone in zip(pidfds, ended, strict=True):
            if not gone:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
    assert all(ended), "it outlived its daemon"
    assert daemon.returncode == -signal.SIGKILL
    shutil.rmtree(folder)


def test_a_monitor_that_dies_before_it_has_set_its_child_up_leaves_nothing(daemon: Daemon) -> None:
    refused = daemon.play("monitor_gone_early")

    assert refused["observed"]


@pytest.mark.claim("I9", "I13")
def test_a_worker_that_could_not_be_seen_to_be_gone_stays_written_down_and_its_uid_leased(
    daemon: Daemon,
) -> None:
    told = daemon.play("not_seen_to_be_gone")

    assert told == {"errno": errno.EMFILE, "named": True, "held": True}


def test_a_refusal_is_told_whatever_became_of_its_worker(daemon: Daemon) -> None:
    assert daemon.play("refused_and_not_seen_to_be_gone")["layer"] == "syscalls"
