from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bwrap import host as hosts
from bwrap import library
from bwrap.errors import LayerError
from bwrap.library import Library
from bwrap.plan import Places
from spl.errors import NotFound, ProfileBelowFloor, ProfileInvalid
from spl.transports.plans import Plans
from spl.transports.profiles import Profiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.plan import Plan

NOBODY = LayerError("network", expected="loopback alone", observed="eth0", remedy="mend the kernel")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder with a worker socket, a home and room for profiles of the user's own."""
    with (
        tempfile.TemporaryDirectory(prefix="spl-", dir="/tmp") as name,
        socket.socket(socket.AF_UNIX) as bound,
    ):
        os.chmod(name, 0o711)
        bound.bind(f"{name}/w.sock")
        Path(name, "profiles").mkdir()
        yield Path(name)


@pytest.fixture
def plans(folder: Path) -> Plans:
    places = Places(str(folder / "home"), str(folder / "w.sock"))
    return Plans(Library(own=folder / "profiles"), hosts.examine(), places)


def write(folder: Path, text: str, name: str = "own") -> None:
    (folder / "profiles" / f"{name}.toml").write_text(f'description = "Own."\nextends = "worker"\n{text}')


def plan(plans: Plans, name: str) -> Plan:
    return asyncio.run(plans.plan(name))


def refused(plans: Plans, name: str) -> LayerError:
    with pytest.raises(LayerError) as error:
        plan(plans, name)
    return error.value


def test_a_plan_is_made_once_for_as_long_as_its_profile_stays_the_same(plans: Plans, folder: Path) -> None:
    write(folder, '[limits]\naddress_space = "64M"\n')
    first = plan(plans, "own")
    assert plan(plans, "own") is first
    assert plan(plans, "worker") is not first
    write(folder, '[limits]\naddress_space = "96M"\n')
    second = plan(plans, "own")
    assert (first.limits.address_space, second.limits.address_space) == (64 << 20, 96 << 20)
    assert first.profile_digest != second.profile_digest


def test_starts_at_once_share_one_plan_and_leave_the_event_loop_free(plans: Plans) -> None:
    made: list[int] = []
    load = plans.library.load

    def loading(name: str) -> object:
        made.append(threading.get_ident())
        return load(name)

    plans.library.load = loading  # type: ignore[method-assign, assignment]

    async def talk() -> list[Plan]:
        return await asyncio.gather(*(plans.plan("worker") for _ in range(4)))

    found = asyncio.run(talk())
    assert len({id(each) for each in found}) == 1
    assert threading.get_ident() not in made


@pytest.mark.claim("I12")
def test_a_profile_that_cannot_be_used_is_refused_by_the_layer_profile_and_is_not_kept(
    plans: Plans, folder: Path
) -> None:
    write(folder, "")
    plan(plans, "own")
    write(folder, "[limits]\nmemory = 1\n")
    error = refused(plans, "own")
    assert error.layer == "profile"
    assert "own.toml:4:1: limits.memory" in error.observed
    (folder / "profiles" / "own.toml").unlink()
    assert "there is no profile 'own'" in refused(plans, "own").observed
    (folder / "profiles" / "own.toml").mkdir()
    assert "it cannot be read: Is a directory" in refused(plans, "own").observed


@pytest.mark.claim("I12")
def test_a_profile_below_the_floor_is_refused_with_the_floors_sentence(plans: Plans, folder: Path) -> None:
    write(folder, '[filesystem]\nsockets = ["/run/dbus/system_bus_socket"]\n')
    error = refused(plans, "own")
    assert (error.layer, error.expected) == ("mounts", "there is no socket but the worker's")
    assert "own.toml:4: filesystem.sockets" in error.observed


@pytest.mark.claim("M4")
def test_a_shipped_profile_that_is_replaced_on_disk_changes_no_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = folder / "shipped"
    shutil.copytree(library.SHIPPED, shipped)
    taken = Library(own=folder / "profiles", shipped=shipped)
    places = Places(str(folder / "home"), str(folder / "w.sock"))
    plans = Plans(taken, hosts.examine(), places)
    for path in shipped.glob("*.toml"):
        path.write_text("not even TOML")
    assert plan(plans, "worker").limits.address_space == 512 << 20


# --- what the daemon tells of profiles ---


def test_a_profile_may_be_chosen_when_a_run_could_start_with_it(plans: Plans, folder: Path) -> None:
    profiles = Profiles(plans.library, plans)
    write(folder, '[limits]\naddress_space = "64M"\n')
    for name in ("worker", "strict", "own"):
        asyncio.run(profiles.check(name))


@pytest.mark.parametrize(
    ("text", "error", "said", "place"),
    [
        ("[limits]\nmemory = 1\n", ProfileInvalid, "own.toml:4:1: limits.memory", ("limits.memory", 4, 1)),
        ("[namespaces]\nnet = false\n", ProfileBelowFloor, "devices and addresses", ("namespaces.net", 4, 7)),
        (
            '[syscalls]\nallow = ["ptrace"]\n',
            ProfileBelowFloor,
            "no call of the group '@trace' is allowed",
            ("syscalls.allow", 4, 10),
        ),
        (
            '[filesystem]\nempty = ["/spl-worker.pyc"]\n',
            ProfileInvalid,
            "two different things at",
            ("filesystem.empty", 4, 10),
        ),
    ],
)
def test_one_that_may_not_be_is_refused_with_file_line_and_reason(
    plans: Plans,
    folder: Path,
    text: str,
    error: type[Exception],
    said: str,
    place: tuple[str, int, int],
) -> None:
    write(folder, text)
    with pytest.raises((ProfileInvalid, ProfileBelowFloor)) as refusal:
        asyncio.run(Profiles(plans.library, plans).check("own"))
    assert type(refusal.value) is error
    assert said in refusal.value.message
    fields = refusal.value.fields
    assert str(fields["place"]).startswith(place[0])
    assert (fields["line"], fields["column"]) == place[1:]
    assert "^" in str(fields["excerpt"])


def test_one_that_this_host_cannot_have_is_refused_when_it_is_chosen(plans: Plans, folder: Path) -> None:
    write(folder, '[filesystem]\nread_only = ["/nowhere"]\n')
    profiles = Profiles(plans.library, plans)
    with pytest.raises(ProfileInvalid, match="'own' on this host") as refusal:
        asyncio.run(profiles.check("own"))
    assert refusal.value.fields["layer"] == "mounts"
    with pytest.raises(ProfileInvalid, match="did you mean 'strict'"):
        asyncio.run(profiles.check("strickt"))
    # Where nobody can be confined, what a profile says is all there is to judge.
    asyncio.run(Profiles(plans.library, NOBODY).check("own"))


def test_profiles_are_listed_with_those_that_cannot_be_used(plans: Plans, folder: Path) -> None:
    write(folder, "")
    write(folder, "[limits", name="broken")
    rows = {row["name"]: row for row in asyncio.run(Profiles(plans.library, plans).listed())}
    assert {"base", "worker", "strict", "own", "broken"} == set(rows)
    assert (rows["worker"]["source"], rows["own"]["source"]) == ("shipped", "own")
    assert (rows["own"]["extends"], rows["own"]["error"]) == (["worker", "base"], None)
    assert rows["own"]["digest"] == plan(plans, "own").profile_digest
    assert rows["broken"]["digest"] is None
    assert rows["broken"]["error"]["line"] == 3


def test_a_profile_is_described_with_its_origins_and_what_it_comes_to(plans: Plans, folder: Path) -> None:
    write(folder, '[limits]\naddress_space = "64M"\n')
    said = asyncio.run(Profiles(plans.library, plans).described("own"))
    made = plan(plans, "own")
    assert (said["digest"], said["filter"]["digest"]) == (made.profile_digest, made.filter.digest)
    (value,) = (each for each in said["values"] if each["path"] == "limits.address_space")
    assert (value["value"], value["profile"], value["line"]) == (64 << 20, "own", 4)
    assert said["floor"] == {"ok": True, "breaches": []}
    assert "--unshare-net" in said["argv"]
    assert "refused" not in said


def test_a_profile_that_comes_to_nothing_here_is_described_with_the_reason(
    plans: Plans, folder: Path
) -> None:
    write(folder, "[namespaces]\nnet = false\n")
    said = asyncio.run(Profiles(plans.library, plans).described("own"))
    assert "argv" not in said
    assert said["refused"]["layer"] == said["floor"]["breaches"][0]["layer"] == "network"
    said = asyncio.run(Profiles(plans.library, NOBODY).described("worker"))
    assert ("argv" in said, said["refused"], said["floor"]["ok"]) == (False, NOBODY.wire(), True)


def test_a_profile_that_is_not_there_or_cannot_be_used_is_not_described(plans: Plans, folder: Path) -> None:
    write(folder, "[limits")
    for profiles in (Profiles(plans.library, plans), Profiles(plans.library, NOBODY)):
        for name in ("nobody", "No Name", "../worker"):
            with pytest.raises(NotFound):
                asyncio.run(profiles.described(name))
        with pytest.raises(ProfileInvalid, match="not valid TOML"):
            asyncio.run(profiles.described("own"))
