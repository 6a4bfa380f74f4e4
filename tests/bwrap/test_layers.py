"""Each layer is taken away for real, and its probe must go red by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
    ("the daemon's IPC", "ipc", "outside: ns/ipc", True),
    ("the daemon's host name", "uts", "outside: ns/uts", True),
    ("the daemon's control groups", "cgroup", "outside: ns/cgroup", True),
    ("no filter", "syscalls", "outside: status Seccomp", False),
    ("a filter that allows all", "syscalls", "inside: ptrace", False),
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
@pytest.mark.parametrize(("taken", "layer", "seen", "alone"), TAKEN, ids=[row[0] for row in TAKEN])
def test_a_layer_that_is_taken_away_is_red_by_its_name(
    daemon: Daemon, taken: str, layer: str, seen: str, alone: bool
) -> None:
    told = daemon.play("remove", module="removals", taken=taken)

    assert seen in told["red"][layer]
    assert told["refused"] in told["red"]
    if alone:
        assert (list(told["red"]), told["refused"]) == ([layer], layer)


@pytest.mark.claim("I12")
def test_with_nothing_taken_away_nothing_is_red_and_every_layer_was_looked_at(daemon: Daemon) -> None:
    looked_at = daemon.play("findings")

    assert min(looked_at.values()) >= 1
    assert len(looked_at) == (17 if daemon.shape == "hosted" else 16)


@pytest.mark.claim("I12")
def test_where_nothing_is_confined_every_layer_that_bubblewrap_makes_is_red(daemon: Daemon) -> None:
    told = daemon.play("remove", module="removals", taken="nothing is confined")

    assert told["refused"] == "user_namespace"
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


def test_every_removal_has_its_test() -> None:
    elsewhere = {"nothing is confined", "uid 0 outside", "the daemon's user namespace, as root"}

    assert set(REMOVALS) == {row[0] for row in TAKEN} | elsewhere
