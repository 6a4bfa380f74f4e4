"""Profiles under a live daemon: chosen, edited, refused, and what the next run's receipt says of them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from escape.instance import VERIFY_GOAL
from spl.errors import IsolationUnavailable, NotFound, ProfileBelowFloor, ProfileInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape

Json = dict[str, Any]

MEMBER = "did:sync:user:somebody"
LOWER = '[limits]\naddress_space = "64M"\n'
HARMLESS = '[syscalls]\nallow = ["getcpu"]\n'
NETWORK = "[namespaces]\nnet = false\n"
PTRACE = '[syscalls]\nallow = ["ptrace"]\n'
SOCKET = '[filesystem]\nsockets = ["/run/dbus/system_bus_socket"]\n'
BREACHES = [
    (NETWORK, "network", "its network devices and addresses are its own"),
    (PTRACE, "syscalls", "no call of the group '@trace' is allowed"),
    (SOCKET, "mounts", "there is no socket but the worker's"),
]


def write(shape: Shape, home: Path, text: str, name: str = "own") -> None:
    """Write a profile of the user's own, as that user would."""
    path = home / "profiles" / f"{name}.toml"
    path.write_text(f'description = "Own."\nextends = "worker"\n{text}')
    os.chown(path, shape.uid, shape.uid)
    path.chmod(0o600)


def choose(daemon: Daemon, profile: str | None, **tier: str) -> None:
    """Choose a profile for the runs that start from now on."""
    daemon.configure(topic="work_loop_profile", profile=profile, **tier)


def run(daemon: Daemon, **fields: str) -> tuple[Json, Json]:
    """Have a run completed; gives its anchor and its receipt, which name the same profile and digest."""
    row = daemon.finish(daemon.start(VERIFY_GOAL, **fields)["thread"])
    assert (row["transport"], row["state"], row["tool_calls_ok"]) == ("sandboxed", "done", 1)
    (anchor,) = daemon.bodies(row["thread"], "core.work.loop.v1")
    (receipt,) = daemon.bodies(row["thread"], "core.work.isolation.v1")
    assert row["profile"] == anchor["profile"] == receipt["profile"]
    assert anchor["profile_digest"] == receipt["profile_digest"]
    assert receipt["shape"]
    return anchor, receipt


def observed(receipt: Json, layer: str) -> str:
    """Give what was seen of a layer, as text."""
    (found,) = (each for each in receipt["layers"] if each["layer"] == layer)
    return json.dumps(found["observed"])


@pytest.mark.claim("I4", "I5")
def test_the_next_run_is_confined_by_the_profile_that_was_chosen_and_by_what_it_says_then(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home) as daemon:
        daemon.set_transport("sandboxed")
        _, before = run(daemon)
        assert before["profile"] == "worker"
        assert "536870912" in observed(before, "limits")

        write(shape, home, LOWER)
        choose(daemon, "own")
        _, lower = run(daemon)
        assert "67108864" in observed(lower, "limits")
        assert lower["profile_digest"] != before["profile_digest"]
        assert lower["filter_digest"] == before["filter_digest"]
        assert lower["shape"] == before["shape"] == shape.name

        # Edited, with no restart and no record.
        write(shape, home, HARMLESS)
        _, harmless = run(daemon)
        assert "536870912" in observed(harmless, "limits")
        assert len({each["profile_digest"] for each in (before, lower, harmless)}) == 3
        assert harmless["filter_digest"] != before["filter_digest"]
        described = daemon.request("GET", "/v1/profiles/own")
        assert (described["digest"], described["filter"]["digest"], described["argv_digest"]) == (
            harmless["profile_digest"],
            harmless["filter_digest"],
            harmless["argv_digest"],
        )

        choose(daemon, None)
        assert run(daemon)[1]["profile_digest"] == before["profile_digest"]


@pytest.mark.claim("I10")
def test_strict_runs_the_verify_goal_in_a_process_id_namespace(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        choose(daemon, "strict")
        _, receipt = run(daemon, actor=MEMBER)
        assert receipt["profile"] == "strict"
        assert "pid_namespace" in [each["layer"] for each in receipt["layers"]]


@pytest.mark.one_shape
def test_a_tiers_own_profile_goes_before_that_of_all(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        daemon.set_transport("sandboxed")
        choose(daemon, "strict", tier="trial")
        health = daemon.request("GET", "/v1/engine/health")["work_loop"]
        assert (health["profile"], health["tier_profiles"]) == ("worker", {"trial": "strict"})
        assert [run(daemon, actor=MEMBER)[0]["profile"], run(daemon)[0]["profile"]] == ["strict", "worker"]
        choose(daemon, None, tier="trial")
        assert run(daemon, actor=MEMBER)[0]["profile"] == "worker"


def test_a_profile_stays_chosen_over_a_restart(hosted: Shape, home: Path) -> None:
    with hosted.daemon(home) as daemon:
        choose(daemon, "strict")
        assert daemon.stop() == 0
    with hosted.daemon(home) as daemon:
        assert "pid_namespace" in daemon.announcement
        assert daemon.request("GET", "/v1/engine/health")["work_loop"]["profile"] == "strict"


@pytest.mark.claim("I12")
@pytest.mark.parametrize(("text", "layer", "sentence"), BREACHES)
@pytest.mark.one_shape
def test_a_profile_below_the_floor_is_refused_when_it_is_chosen_and_when_it_falls_later(
    shape: Shape, home: Path, text: str, layer: str, sentence: str
) -> None:
    with shape.daemon(home) as daemon:
        daemon.set_transport("sandboxed")
        write(shape, home, text)
        records = daemon.request("GET", "/v1/engine/health")["records"]
        with pytest.raises(ProfileBelowFloor) as error:
            choose(daemon, "own")
        assert sentence in error.value.message
        assert "own.toml:4:" in error.value.message
        assert error.value.fields["layer"] == layer
        health = daemon.request("GET", "/v1/engine/health")
        assert (health["records"], health["work_loop"]["profile"]) == (records, "worker")

        write(shape, home, LOWER)
        choose(daemon, "own")
        write(shape, home, text)
        # The operator's own runs and everyone else's.
        for count, fields in enumerate(({}, {"actor": MEMBER}), 1):
            with pytest.raises(IsolationUnavailable) as refused:
                daemon.start(**fields)
            assert refused.value.fields["layer"] == layer
            assert sentence in str(refused.value.fields["expected"])
            assert "own.toml:4: " in str(refused.value.fields["observed"])
            refusals = daemon.bodies("th_engine_isolation")
            assert len(refusals) == count
            assert (refusals[-1]["layer"], refusals[-1]["profile"]) == (layer, "own")
        assert daemon.request("GET", "/v1/runs")["data"] == []
        daemon.set_standby(0)
        assert list((home / "run" / "workers").iterdir()) == []
        assert daemon.request("GET", "/v1/engine/health")["work_loop"]["refused"]["layer"] == layer

        write(shape, home, LOWER)
        assert run(daemon)[0]["profile"] == "own"


@pytest.mark.claim("I12")
@pytest.mark.one_shape
def test_a_profile_that_is_broken_after_it_was_chosen_refuses_the_start_and_nothing_else_is_used(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home) as daemon:
        daemon.set_transport("sandboxed")
        with pytest.raises(ProfileInvalid, match="there is no profile 'own'") as unknown:
            choose(daemon, "own")
        assert unknown.value.fields["remedy"] == "'spl profile list' lists the profiles there are"
        write(shape, home, LOWER)
        choose(daemon, "own")
        write(shape, home, "[limits]\naddress_space = 64M\n")
        with pytest.raises(IsolationUnavailable) as refused:
            daemon.start()
        assert refused.value.fields["layer"] == "profile"
        assert "own.toml:4:" in str(refused.value.fields["observed"])
        (refusal,) = daemon.bodies("th_engine_isolation")
        assert (refusal["layer"], refusal["profile"]) == ("profile", "own")
        assert daemon.request("GET", "/v1/runs")["data"] == []


@pytest.mark.one_shape
def test_a_shipped_name_means_the_shipped_profile_and_is_not_chosen_while_a_file_of_ones_own_bears_it(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home) as daemon:
        daemon.set_transport("sandboxed")
        write(shape, home, NETWORK, name="worker")
        with pytest.raises(ProfileInvalid, match="'worker' is the name of a shipped profile") as stray:
            choose(daemon, "worker")
        assert "worker.toml" in stray.value.message
        rows = [row for row in daemon.request("GET", "/v1/profiles")["data"] if row["name"] == "worker"]
        assert [(row["source"], row["floor"]) for row in rows] == [("shipped", "ok"), ("own", None)]
        assert run(daemon)[1]["profile_digest"] == rows[0]["digest"]


@pytest.mark.one_shape
def test_a_profile_that_breaks_the_floor_more_than_once_is_refused_with_how_often(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home) as daemon:
        write(shape, home, f"{NETWORK}ipc = false\nuts = false\n")
        with pytest.raises(
            ProfileBelowFloor, match="; and 2 more, which 'spl profile lint own' names"
        ) as error:
            choose(daemon, "own")
        assert error.value.fields["breaches"] == 3
        rows = {row["name"]: row["floor"] for row in daemon.request("GET", "/v1/profiles")["data"]}
        assert rows == {"base": "below", "strict": "ok", "worker": "ok", "own": "below"}


def test_a_profile_that_this_host_cannot_confine_by_is_refused_with_one_remedy(
    same_user: Shape, home: Path
) -> None:
    with same_user.daemon(home) as daemon:
        write(same_user, home, '[filesystem]\nread_only = ["/no/such/folder"]\n')
        with pytest.raises(ProfileInvalid, match="on this host: layer mounts: expected ") as error:
            choose(daemon, "own")
        assert str(error.value.fields["remedy"]) not in error.value.message


@pytest.mark.one_shape
def test_the_daemon_lists_profiles_and_describes_each(shape: Shape, home: Path) -> None:
    # A name that is no text stands in the options of the description.
    odd = home.with_name("a b\udcff")
    with shape.daemon(odd) as daemon:
        write(shape, odd, "[limits", name="broken")
        write(shape, odd, LOWER)
        rows = {row["name"]: row for row in daemon.request("GET", "/v1/profiles")["data"]}
        assert set(rows) == {"base", "worker", "strict", "own", "broken"}
        assert (rows["own"]["source"], rows["own"]["extends"]) == ("own", ["worker", "base"])
        assert "broken.toml" in rows["broken"]["error"]["message"]
        own = daemon.request("GET", "/v1/profiles/own")
        assert own["digest"] == rows["own"]["digest"]
        assert (own["floor"]["ok"], rows["own"]["floor"], own["remarks"]) == (True, "ok", [])
        assert own["filter"]["rules"][-1] == "otherwise: ENOSYS"
        with pytest.raises(ProfileInvalid):
            daemon.request("GET", "/v1/profiles/broken")
        with pytest.raises(NotFound):
            daemon.request("GET", "/v1/profiles/nobody")
