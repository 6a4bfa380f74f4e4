"""Each layer is taken away for real, and its probe must go red by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bwrap import landlock
from bwrap.layers import every_layer
from tests.bwrap.removals import REMOVALS

if TYPE_CHECKING:
    from tests.bwrap.conftest import Daemon

# What is taken away, the layer that must be red, one thing that must be seen there, and whether it is the only one.
TAKEN = [
    ("the daemon's network", "network", "outside: ns/net", True),
    ("a filter that allows sockets", "network", "inside: socket(AF_INET)", False),
    ("a writable home", "home", "inside: write in the home", False),
    ("no file system over the home", "home", "outside: mountinfo of the home", False),
    ("a file in the home", "home", "outside: files under the home", False),
    ("a writable root", "mounts", "inside: write in /", True),
    ("a writable host folder", "mounts", "outside: writable mounts not planned so", True),
    ("a read-only host folder", "mounts", "outside: mount points", True),
    ("a folder with devices", "mounts", "outside: mounts without nosuid and nodev", True),
    ("a source that was looked at", "mounts", "outside: what is shown and was not examined", True),
    ("the daemon's IPC", "ipc", "outside: ns/ipc", True),
    ("the daemon's host name", "uts", "outside: ns/uts", True),
    ("the daemon's control groups", "cgroup", "outside: ns/cgroup", True),
    ("no filter", "syscalls", "outside: status Seccomp", False),
    ("a filter that allows all", "syscalls", "inside: ptrace", False),
    ("no restriction of its own", "landlock", "inside: execve", True),
    ("a kernel that has no Landlock, by the worker's word", "landlock", "inside: restrict itself", True),
    ("a profile without the calls of Landlock", "landlock", "inside: restrict itself", True),
    ("the daemon's process ids", "pid_namespace", "outside: ns/pid", False),
    ("the daemon's process ids", "pid_namespace", "outside: status NSpid", False),
    ("the daemon's process ids", "pid_namespace", "inside: getpid", False),
    ("the host's /proc", "pid_namespace", "outside: first two processes in its /proc", True),
    ("a writable /proc", "mounts", "outside: writable mounts not planned so", True),
    ("capabilities kept", "capabilities", "outside: status CapEff", True),
    ("no limits", "limits", "outside: limits 'Max processes'", True),
    ("one limit missing", "limits", "outside: limits 'Max file size'", True),
    ("bubblewrap's environment", "environment", "outside: environ", True),
    ("one descriptor more", "descriptors", "outside: fd", True),
    ("the daemon's session", "session", "outside: stat session", True),
    ("no death with the parent", "parent_death", "inside: PR_GET_PDEATHSIG", True),
    ("a word on standard input too soon", "credential", "inside: look at standard input", True),
]

# Where bubblewrap itself stands in the way of leaving a layer out, a stand-in for it that confines nothing does.
UNCONFINED = {
    "user_namespace": "inside: unshare",  # which worked, so that by now it is in another than the daemon's
    "network": "outside: net/dev",
    "home": "inside: list the home",
    "mounts": "outside: ns/mnt",
    "ipc": "inside: shmget",
    "uts": "outside: ns/uts",
    "cgroup": "outside: ns/cgroup",
    "syscalls": "outside: status Seccomp",
    "no_new_privs": "outside: status NoNewPrivs",
    "descriptors": "outside: fd",
    "session": "outside: stat session",
    "parent_death": "inside: PR_GET_PDEATHSIG",
}


@pytest.mark.claim("I12")
@pytest.mark.parametrize(
    ("taken", "layer", "seen", "alone"), TAKEN, ids=[f"{row[0]}: {row[2]}" for row in TAKEN]
)
def test_a_layer_that_is_taken_away_is_red_by_its_name(
    daemon: Daemon, taken: str, layer: str, seen: str, alone: bool
) -> None:
    told = daemon.play("remove", module="removals", taken=taken)

    assert seen in told["red"][layer]
    assert told["refused"] == layer
    if alone:
        assert (list(told["red"]), told["refused"]) == ([layer], layer)


def layers_of(daemon: Daemon) -> set[str]:
    """Give all layers of the table that there are in a shape."""
    return {layer.name for layer in every_layer() if daemon.shape in layer.shapes}


@pytest.mark.claim("I12")
def test_with_nothing_taken_away_nothing_is_red_and_every_layer_was_looked_at(daemon: Daemon) -> None:
    looked_at = daemon.play("findings")

    assert min(looked_at.values()) >= 1
    assert set(looked_at) == layers_of(daemon) - {"pid_namespace"}


@pytest.mark.claim("I12")
def test_what_cannot_be_read_outside_is_no_layer_whatever_way_it_fails(daemon: Daemon) -> None:
    told = daemon.play("blind_judgments", module="looks")

    assert told["green"] == []
    # What has no outside is not to be seen from there: the worker's own restriction, and that it was told nothing.
    assert {name for name, count in told["readings"].items() if count == 0} == {"landlock", "credential"}
    assert set(told["readings"]) == layers_of(daemon)


@pytest.mark.claim("I12")
def test_a_start_is_refused_by_the_name_of_the_layer_that_cannot_be_read(daemon: Daemon) -> None:
    told = daemon.play("blind_launches", module="looks")

    assert told["outside"] == {name: name for name in layers_of(daemon) - {"landlock", "credential"}}
    # Seen from outside alone: nothing inside could tell them, or all it could say would be hearsay.
    only_outside = {"separate_user", "uts", "cgroup", "environment"}
    assert told["inside"] == {name: name for name in layers_of(daemon) - only_outside}


@pytest.mark.claim("I12")
def test_a_kernel_without_landlock_is_reported_as_such_by_the_daemons_own_examination(daemon: Daemon) -> None:
    receipt = daemon.play("without_landlock", module="looks")

    assert (receipt["landlock_abi"], receipt["absent_layers"]) == (0, ["landlock"])
    assert "landlock" not in [layer["layer"] for layer in receipt["layers"]]


@pytest.mark.claim("I12")
def test_what_a_kernel_has_is_claimed_and_nothing_is_reported_absent(daemon: Daemon) -> None:
    receipt = daemon.play("receipt")["receipt"]

    assert (receipt["landlock_abi"], receipt["absent_layers"], receipt["absent"]) == (landlock.abi(), [], [])


@pytest.mark.claim("I12")
def test_a_worker_that_did_not_change_is_as_claimed_when_looked_at_again(daemon: Daemon) -> None:
    assert daemon.play("again", module="looks") == {"refused": None}


@pytest.mark.claim("I12")
def test_a_look_reads_a_file_once_and_the_next_one_reads_all_of_them_anew(daemon: Daemon) -> None:
    first, second = daemon.play("readings", module="looks")

    assert len(first) == len(set(first)) > 10
    assert [path for path in second if path.endswith("/status")]
    assert second == first


@pytest.mark.claim("I12")
@pytest.mark.parametrize(
    ("change", "layer", "observed"),
    [
        ("its limits are lowered", "limits", "32 32"),
        ("it opens a connection", "descriptors", "0 1 2 3"),
        ("it ends", "sandbox", "it ended without a word"),
    ],
)
def test_a_worker_that_changed_after_its_receipt_is_refused_by_that_layer_and_killed(
    daemon: Daemon, change: str, layer: str, observed: str
) -> None:
    told = daemon.play("again", module="looks", change=change)

    assert (told["refused"], told["observed"]) == (layer, observed)
    assert told["killed"] == "a layer that changed"


@pytest.mark.claim("I12")
def test_where_nothing_is_confined_every_layer_that_bubblewrap_makes_is_red(daemon: Daemon) -> None:
    told = daemon.play("remove", module="removals", taken="nothing is confined")

    assert told["refused"] == "syscalls"
    assert {layer: how for layer, how in UNCONFINED.items() if how not in told["red"].get(layer, {})} == {}


@pytest.mark.claim("I9", "I12")
def test_a_hosted_worker_that_is_root_outside_is_red_by_the_layer_of_its_own_user(hosted: Daemon) -> None:
    told = hosted.play("remove", module="removals", taken="uid 0 outside")

    assert list(told["red"]) == ["separate_user"]
    assert told["refused"] == "separate_user"


@pytest.mark.claim("I9", "I12")
def test_a_hosted_worker_in_the_daemons_user_namespace_is_red_by_that_layer(hosted: Daemon) -> None:
    told = hosted.play("remove", module="removals", taken="the daemon's user namespace, as root")

    assert told["refused"] == "user_namespace"
    assert "outside: ns/user" in told["red"]["user_namespace"]


@pytest.mark.claim("I12")
def test_only_the_one_answer_that_proves_a_layer_counts_and_none_is_no_answer(daemon: Daemon) -> None:
    green = daemon.play("attempts_that_do_not_count")

    assert green == {"red with its own answers": [], "not made": [], "another errno": [], "a word": []}


def test_every_layer_is_taken_away_by_some_test() -> None:
    by_another = {"separate_user"}  # in a shape that has it: a worker that is root outside

    assert {layer.name for layer in every_layer()} == {row[1] for row in TAKEN} | set(UNCONFINED) | by_another


def test_every_removal_has_its_test() -> None:
    elsewhere = {"nothing is confined", "uid 0 outside", "the daemon's user namespace, as root"}

    assert set(REMOVALS) == {row[0] for row in TAKEN} | elsewhere
