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

from bwrap import floor, library
from bwrap import host as hosts
from bwrap.errors import LayerError
from bwrap.library import Library
from bwrap.plan import Places
from spl.errors import DaemonStopping, NotFound, ProfileBelowFloor, ProfileInvalid
from spl.transports.plans import Plans
from spl.transports.profiles import Profiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.plan import Plan
    from bwrap.profile import Profile

SECONDS = 20
"""How long anything here waits for may take."""

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


def showing(*paths: object) -> str:
    return "[filesystem]\nread_only = [" + ", ".join(f'"{path}"' for path in paths) + "]\n"


def shown(plan: Plan) -> list[str]:
    return [mount.source for mount, _ in plan.shown]


@pytest.mark.claim("I3")
def test_a_plan_is_made_anew_when_what_it_shows_became_another(plans: Plans, folder: Path) -> None:
    for name in ("v1", "v2"):
        (folder / name).mkdir(mode=0o755)
    (folder / "current").symlink_to("v1")
    write(folder, showing(folder / "current"))
    first = plan(plans, "own")
    assert plan(plans, "own") is first
    (folder / "current").unlink()
    (folder / "current").symlink_to("v2")
    assert f"{folder}/v1" in shown(first)
    assert f"{folder}/v2" in shown(plan(plans, "own"))


@pytest.mark.claim("I3")
def test_what_a_link_leads_to_now_is_looked_at_as_if_it_were_new(plans: Plans, folder: Path) -> None:
    (folder / "v1").mkdir(mode=0o755)
    (folder / "home").mkdir(mode=0o755)
    (folder / "current").symlink_to("v1")
    write(folder, showing(folder / "current"))
    plan(plans, "own")
    (folder / "current").unlink()
    for to, layer in (("home", "home"), ("/proc", "mounts")):
        (folder / "current").symlink_to(to)
        assert refused(plans, "own").layer == layer
        (folder / "current").unlink()
    (folder / "current").symlink_to("v1")
    assert f"{folder}/v1" in shown(plan(plans, "own"))


def test_an_optional_source_comes_and_goes_and_every_start_has_what_is_there(
    plans: Plans, folder: Path
) -> None:
    write(folder, showing(f"?{folder}/there"))
    for _ in range(2):
        assert plan(plans, "own").absent == (f"{folder}/there",)
        (folder / "there").mkdir(mode=0o755)
        assert plan(plans, "own").absent == ()
        assert f"{folder}/there" in shown(plan(plans, "own"))
        (folder / "there").rmdir()


@pytest.mark.claim("I3")
@pytest.mark.parametrize("what", ["socket", "second name"])
def test_a_folder_into_which_something_came_is_looked_through_anew(
    plans: Plans, folder: Path, what: str
) -> None:
    deep = folder / "shown" / "in" / "it"
    deep.mkdir(parents=True)
    for each in (deep, deep.parent, folder / "shown"):
        each.chmod(0o755)
    (folder / "home").mkdir(mode=0o755)
    (folder / "home" / "token").write_text("a secret")
    write(folder, showing(folder / "shown"))
    first = plan(plans, "own")
    assert plan(plans, "own") is first
    if what == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(deep / "s"))
            assert refused(plans, "own").layer == "mounts"
        (deep / "s").unlink()
    else:
        os.link(folder / "home" / "token", deep / "t")
        assert refused(plans, "own").layer == "home"
        (deep / "t").unlink()
    assert f"{folder}/shown" in shown(plan(plans, "own"))


@pytest.mark.claim("I12")
def test_a_profile_that_no_run_could_start_with_is_refused_by_the_layer_profile(
    plans: Plans, folder: Path
) -> None:
    write(folder, "[limits]\nopen_files = 3\n")
    error = refused(plans, "own")
    assert error.layer == "profile"
    assert "own.toml:4" in error.observed


@pytest.mark.parametrize(
    ("text", "layer"), [("[namespaces]\nnet = false\n", "network"), ("[limits]\nopen_files = 3\n", "profile")]
)
def test_a_profile_is_judged_once_for_as_long_as_it_stays_the_same(
    plans: Plans, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, layer: str
) -> None:
    judged: list[str] = []
    require = floor.require

    def requiring(profile: Profile) -> None:
        judged.append(profile.name)
        require(profile)

    monkeypatch.setattr(floor, "require", requiring)
    write(folder, text)
    assert {refused(plans, "own").layer for _ in range(3)} == {layer}
    assert judged == ["own"]
    write(folder, "")
    plan(plans, "own")
    assert judged == ["own", "own"]


def test_what_a_host_does_not_have_is_looked_for_at_every_start(plans: Plans, folder: Path) -> None:
    write(folder, showing(folder / "there"))
    assert refused(plans, "own").observed == "nothing there"
    (folder / "there").mkdir(mode=0o755)
    plan(plans, "own")


def slow(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Have the profile `own` take as long to be read as the test likes; gives what says that it began, and ends it."""
    begun, end = threading.Event(), threading.Event()
    load = plans.library.load

    def loading(name: str) -> Profile:
        if name == "own":
            begun.set()
            assert end.wait(SECONDS)
        return load(name)

    monkeypatch.setattr(plans.library, "load", loading)
    return begun, end


def test_a_profile_that_takes_long_keeps_nobody_waiting_but_its_own_starts(
    plans: Plans, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "")
    before = plan(plans, "own")
    begun, end = slow(plans, monkeypatch)

    async def talk() -> None:
        starting = asyncio.create_task(plans.plan("own"))
        await asyncio.to_thread(begun.wait, SECONDS)
        await plans.plan("worker")
        assert await plans.latest("own", seconds=SECONDS) is before
        assert not starting.done()
        end.set()
        assert await starting is before

    asyncio.run(talk())


def test_once_the_daemon_stops_nobody_waits_for_a_plan_any_more(
    plans: Plans, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "")
    begun, end = slow(plans, monkeypatch)

    async def talk() -> None:
        waiting = [asyncio.create_task(plans.plan("own")) for _ in range(2)]
        await asyncio.to_thread(begun.wait, SECONDS)
        plans.stop()
        for each in waiting:
            with pytest.raises(DaemonStopping, match="stopping"):
                await each
        with pytest.raises(DaemonStopping, match="stopping"):
            await plans.plan("worker")
        end.set()

    asyncio.run(talk())


def test_what_a_profile_came_to_last_is_told_where_a_look_takes_longer(
    plans: Plans, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "")
    before = plan(plans, "own")
    begun, end = slow(plans, monkeypatch)

    async def talk() -> None:
        write(folder, "[limits")
        assert await plans.latest("own", seconds=0) is before
        await asyncio.to_thread(begun.wait, SECONDS)
        end.set()
        (look,) = plans._looks
        await asyncio.wait({look})
        now = await plans.latest("own", seconds=SECONDS)
        assert isinstance(now, LayerError)
        assert now.layer == "profile"

    asyncio.run(talk())


def test_a_refusal_under_a_profile_of_ones_own_says_where_to_look(plans: Plans) -> None:
    assert plans.told("worker", NOBODY) is NOBODY
    told = plans.told("own", NOBODY)
    assert (told.layer, told.expected, told.observed) == (NOBODY.layer, NOBODY.expected, NOBODY.observed)
    assert told.remedy == (
        "mend the kernel; the profile 'own' is your own: see 'spl profile lint own' "
        "and 'spl profile try own -- COMMAND'"
    )


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
