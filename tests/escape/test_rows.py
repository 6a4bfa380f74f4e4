"""Each attempt, in each shape and under each profile that a run can start with: a red row has a name here."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from escape.attempts import ATTEMPTS
from escape.suite import SHAPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from escape.suite import Found

PROFILES = ("strict", "worker")
WHOLE = "run.whole"

_Test = TypeVar("_Test", bound="Callable[..., None]")
_covered: list[str] = []


def _attempts_of(*kinds: str) -> Callable[[_Test], _Test]:
    """Have a test made once for each attempt of some classes, in each shape, under each profile."""
    ids = [each.id for each in ATTEMPTS.values() if each.kind in kinds]
    assert {ATTEMPTS[name].kind for name in ids} == set(kinds)
    return _each(ids)


def _each(ids: list[str]) -> Callable[[_Test], _Test]:
    _covered.extend(ids)

    def mark(test: _Test) -> _Test:
        for name, values in (("name", ids), ("shape", SHAPES), ("profile", PROFILES)):
            test = pytest.mark.parametrize(name, values)(test)
        marked: _Test = pytest.mark.timeout(300)(test)
        return marked

    return mark


def _require_green(found: Found, name: str, shape: str, profile: str) -> None:
    key = {"id": name, "shape": shape, "profile": profile}
    rows = [row for row in found.rows if key.items() <= row.items()]
    if not rows:
        # Listed apart, since the host has nothing to attempt there, or nothing is claimed that would have to stop it.
        assert any(key.items() <= each.items() for each in found.lacks), "it was never made"
        return
    (row,) = rows
    assert row["ok"], f"{row['layer']} must answer {row['expected']!r}, and {row['got']!r} came"


@pytest.mark.claim("E1", "I12")
@_each([WHOLE])
def test_the_installed_worker_does_a_whole_run_confined(
    found: Found, name: str, shape: str, profile: str
) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I2")
@_attempts_of("network", "families", "sockets")
def test_it_reaches_no_network(found: Found, name: str, shape: str, profile: str) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I3")
@_attempts_of("home")
def test_it_finds_nothing_of_the_home(found: Found, name: str, shape: str, profile: str) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I1")
@_attempts_of("host", "shown", "changes", "execution", "folders")
def test_it_finds_and_changes_nothing_of_the_hosts_files(
    found: Found, name: str, shape: str, profile: str
) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I4")
@_attempts_of("mounts", "trees", "namespaces", "keyrings", "kernel", "memory", "sweeps", "abi", "ipc")
def test_it_makes_no_call_that_is_refused(found: Found, name: str, shape: str, profile: str) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I5")
@_attempts_of("limits", "resources")
def test_it_takes_no_more_than_its_share(found: Found, name: str, shape: str, profile: str) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I1", "I6", "I7")
@_attempts_of("credential")
def test_it_was_started_with_nothing_but_its_credential(
    found: Found, name: str, shape: str, profile: str
) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I8", "K5", "K7")
@_attempts_of("paths", "framing", "words", "calls", "load")
def test_it_finds_five_doors_and_says_nothing_there_that_is_not_its_own(
    found: Found, name: str, shape: str, profile: str
) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I14")
@_attempts_of("bearers")
def test_no_credential_but_its_own_opens_a_door(found: Found, name: str, shape: str, profile: str) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I9", "I11")
@_attempts_of("privilege")
def test_it_becomes_nobody_else(found: Found, name: str, shape: str, profile: str) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I10")
@_attempts_of("tracing", "signals", "scheduling", "neighbours")
def test_it_touches_no_other_process(found: Found, name: str, shape: str, profile: str) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I11")
@_attempts_of("descriptors", "commands", "terminals")
def test_it_has_no_descriptor_and_no_terminal_to_go_out_by(
    found: Found, name: str, shape: str, profile: str
) -> None:
    _require_green(found, name, shape, profile)


@pytest.mark.claim("E1", "I13")
@_attempts_of("lifetime")
def test_it_outlives_nobody(found: Found, name: str, shape: str, profile: str) -> None:
    _require_green(found, name, shape, profile)


def test_every_attempt_is_made_and_is_in_one_of_these_tests(found: Found) -> None:
    assert sorted(_covered) == sorted([WHOLE, *ATTEMPTS])
    assert {row["id"] for row in found.rows} | {each["id"] for each in found.lacks} == {*_covered, "*"}
    # The one profile that is there to be extended.
    assert {each["profile"] for each in found.lacks if each["id"] == "*"} == {"base"}
