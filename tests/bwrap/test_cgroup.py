from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from bwrap import cgroup, supervise
from bwrap.cgroup import Group, Groups, Place
from bwrap.doctor import Machine, Severity, examine
from bwrap.host import Shape
from tests.bwrap.conftest import ORDINARY, SHAPES, Daemon
from tests.delegated import delegated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from escape.installation import Installation
    from tests.delegated import Delegated


class Divided(NamedTuple):
    """A child in a daemon's place, and the cgroup that is delegated to it."""

    daemon: Daemon
    root: Delegated


@pytest.fixture(scope="module", params=SHAPES)
def divided(request: pytest.FixtureRequest, world_readable: Installation) -> Iterator[Divided]:
    """Give a child of each shape in turn, moved into a cgroup of its own before it does anything."""
    with ExitStack() as stack:
        root = stack.enter_context(delegated(ORDINARY if request.param == "same-user" else 0))
        daemon = Daemon(world_readable, request.param)
        stack.callback(daemon.stop)
        root.enter(daemon.pid)
        yield Divided(daemon, root)


@pytest.mark.claim("I5", "A1")
def test_a_worker_and_its_monitor_have_a_group_which_bounds_them_and_goes_with_them(divided: Divided) -> None:
    told = divided.daemon.play("lived", module="grouped")

    able, path = divided.root.controllers, divided.root.path
    missing = [each for each in ("memory", "pids") if each not in able]
    assert {**told["groups"], "reason": ""} == {
        "delegated": True,
        "controllers": able,
        "kill": True,
        "reason": "",
    }
    assert told["groups"].get("reason", "") == " and ".join(
        f"without the controller {each}" for each in missing
    )
    assert told["daemon"] == f"{path}/daemon"
    assert [f"{path}/{name}" for name in told["made"]] == [told["path"]]
    assert told["paths"] == [told["path"]] * 2
    expected = {
        "memory": {
            "memory.max": str(told["worst_case"] // 4096 * 4096),
            "memory.swap.max": "0",
            "memory.oom.group": "1",
        },
        "pids": {"pids.max": str(told["processes"] + 1)},
    }
    assert told["files"] == {name: value for each in able for name, value in expected[each].items()}
    observed = [observed for _, observed in told["said"]]
    assert observed[0] == "a group of its own"
    assert [f"the controller {each} is not there" in observed for each in missing] == [True] * len(missing)
    assert set(told["files"].values()) <= set(observed)
    assert (told["changed"], told["left"]) == ("limits", [])


@pytest.mark.claim("I13")
@pytest.mark.parametrize("how", ["killed", "ended"])
def test_whatever_it_forked_and_let_go_of_ends_with_it(divided: Divided, how: str) -> None:
    told = divided.daemon.play("forking", module="grouped", how=how)

    assert told == {
        "pids": 6,
        "alive": [],
        "signal": "SIGKILL" if how == "killed" else None,
        "left": [],
    }


@pytest.mark.one_shape
@pytest.mark.claim("I5")
def test_the_kernel_kills_all_of_a_group_that_takes_too_much_memory_where_it_can(divided: Divided) -> None:
    told = divided.daemon.play("starving", module="grouped")

    bounded = "memory" in divided.root.controllers
    assert told == {
        "pids": 3,
        "alive": [],
        "ended": {"signal": "SIGKILL"} if bounded else {"code": 0},
        "killed": "memory" if bounded else None,
        "left": [],
    }


@pytest.mark.claim("I12", "I13")
def test_no_group_is_left_of_a_launch_that_came_to_nothing(divided: Divided) -> None:
    told = divided.daemon.play("refused", module="grouped")

    assert told == {
        "impostor": ["syscalls", []],
        "ended": ["sandbox", []],
        "late": ["sandbox", []],
        "no bubblewrap": ["bwrap: Unknown option --no-such-option", []],
        "cancelled before it forked": [None, []],
        "cancelled while it was held": [None, []],
        "unbounded": ["limits", []],
    }


@pytest.mark.claim("I12", "I13")
def test_without_a_descriptor_more_a_worker_is_killed_all_the_same_and_a_launch_leaves_nothing(
    divided: Divided,
) -> None:
    told = divided.daemon.play("out_of_descriptors", module="grouped")

    refusals = told.pop("refusals")
    assert len(refusals) > 10
    assert {tuple(each) for each in refusals} == {("sandbox", "Too many open files")}
    assert told == {"died": True, "killed": "test", "made": 1, "left": []}


@pytest.mark.claim("I5")
def test_the_kernel_refuses_a_group_one_process_too_many_where_it_can(divided: Divided) -> None:
    told = divided.daemon.play("one_too_many", module="grouped")

    assert told["controllers"] == divided.root.controllers
    if "pids" in told["controllers"]:
        assert told["said"] == f"{int(told['most']) - 1} Resource temporarily unavailable\n"
    else:
        assert (told["said"], told["most"]) == ("20\n", None)


def test_a_worker_without_a_delegated_cgroup_says_so_in_its_receipt(daemon: Daemon) -> None:
    layers = daemon.play("receipt")["receipt"]["layers"]

    (limits,) = [each for each in layers if each["layer"] == "limits"]
    assert [each["observed"] for each in limits["observed"] if "cgroup" in each["how"]] == [
        "no cgroup is delegated"
    ]


# --- what is delegated, by what the files of a host say ---

UNIFIED = "25 1 0:22 / {at} rw shared:4 - cgroup2 cgroup2 rw\n"
PART = "25 1 0:22 /a.service {at} rw - cgroup2 cgroup2 rw\n"
HYBRID = (
    "24 1 0:21 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n30 1 0:9 / /sys/fs/cgroup/memory rw - cgroup cgroup rw\n"
)


def planted(root: Path, own: str, mounts: str, groups: Mapping[str, str | None]) -> str:
    """Make a host's files: each group by its path below `at`, with its mark or none."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"4:memory:/x\n{own}")
    (root / "proc/self/mountinfo").write_text(mounts.format(at="/at"))
    for path, mark in groups.items():
        folder = root / "at" / path
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.kill"):
            (folder / name).touch()
        (folder / "cgroup.controllers").write_text("cpu memory pids\n")
        if mark is not None:
            os.setxattr(folder, "user.delegate", mark.encode())
    return str(root)


@pytest.mark.parametrize(
    ("own", "mounts", "groups", "found"),
    [
        ("0::/a.service", UNIFIED, {"a.service": "1"}, "a.service"),
        ("0::/a.service", HYBRID + UNIFIED, {"a.service": "1"}, "a.service"),
        ("0::/a.service/daemon", UNIFIED, {"a.service": "1", "a.service/daemon": None}, "a.service"),
        ("0::/a.service/deep", PART, {"deep": "1"}, "deep"),
        ("0::/", UNIFIED, {"": "1"}, ""),
    ],
    ids=[
        "its own",
        "on a host with both versions",
        "above its own",
        "a part that is mounted",
        "a namespace's root",
    ],
)
def test_what_is_delegated_is_found_by_its_mark(
    tmp_path: Path, own: str, mounts: str, groups: Mapping[str, str | None], found: str
) -> None:
    groups_found = cgroup.look(planted(tmp_path, own, mounts, groups))

    assert groups_found.place is not None
    assert groups_found.place.folder == f"{tmp_path}/at/{found}".rstrip("/")
    assert groups_found.wire() == {"delegated": True, "controllers": ["memory", "pids"], "kill": True}


@pytest.mark.parametrize(
    ("own", "mounts", "groups", "reason"),
    [
        ("", UNIFIED, {}, "its cgroup cannot be told: this host has no hierarchy of version 2"),
        (
            "0::/a",
            HYBRID,
            {},
            "its cgroup cannot be told: no file system of version 2 that shows it is mounted",
        ),
        (
            "0::/../a",
            UNIFIED,
            {"a": "1"},
            "its cgroup cannot be told: no file system of version 2 that shows it",
        ),
        ("0::/b", PART, {"b": "1"}, "its cgroup cannot be told: no file system of version 2 that shows it"),
        ("0::/a", UNIFIED, {"a": None}, "its cgroup /a is not delegated to it"),
        ("0::/a", UNIFIED, {"a": "0"}, "its cgroup /a is not delegated to it"),
        ("0::/a/b", UNIFIED, {"a": "1", "a/b": None}, "its cgroup /a/b is not delegated to it"),
        ("0::/daemon", UNIFIED, {"": None, "daemon": None}, "its cgroup /daemon is not delegated to it"),
    ],
)
def test_where_nothing_is_delegated_the_reason_is_told(
    tmp_path: Path, own: str, mounts: str, groups: Mapping[str, str | None], reason: str
) -> None:
    found = cgroup.look(planted(tmp_path, own, mounts, groups))

    assert (found.place, found.asked, found.at("x")) == (None, False, None)
    assert found.reason.startswith(reason)
    assert found.wire() == {"delegated": False, "reason": found.reason}


MIB = 1 << 20


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        ({}, None),
        ({"a": ("max", 9, 0)}, None),
        ({"a/b": ("100", 60, 0)}, 40),
        ({"a/b": ("100", 60, 25)}, 65),
        ({"a/b": ("100", 60, 0), "a": ("110", 80, 5)}, 35),
        ({"a/b": ("max", 60, 0), "a": ("70", 80, 0)}, 0),
        ({"other": ("1", 1, 0)}, None),
    ],
)
@pytest.mark.parametrize("name", ["memory.max", "memory.high"])
def test_the_memory_that_is_left_is_the_least_that_a_bound_above_leaves(
    tmp_path: Path, name: str, bounds: Mapping[str, tuple[str, int, int]], left: int | None
) -> None:
    root = planted(tmp_path, "0::/a/b", UNIFIED, {"a/b": None})
    for path, (most, used, dropped) in bounds.items():
        folder = tmp_path / "at" / path
        folder.mkdir(exist_ok=True)
        for each in ("memory.max", "memory.high"):
            (folder / each).write_text(str(int(most) * MIB) if each == name and most != "max" else "max")
        (folder / "memory.current").write_text(str(used * MIB))
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {dropped * MIB}\n")

    assert cgroup.memory_left(root) == (None if left is None else left * MIB)


def test_without_a_hierarchy_of_version_2_nothing_bounds_the_memory(tmp_path: Path) -> None:
    assert cgroup.memory_left(planted(tmp_path, "", HYBRID, {})) is None


def test_a_delegated_cgroup_that_lacks_a_controller_is_a_warning_of_the_doctors(tmp_path: Path) -> None:
    root = planted(tmp_path, "0::/a", UNIFIED, {"a": "1"})
    machine = Machine(Shape.SAME_USER, None, root)
    (found,) = [each for each in examine(machine) if each.name == "cgroup"]
    assert (found.severity, found.observed) == (Severity.OK, str(cgroup.look(root)))
    (tmp_path / "at/a/cgroup.controllers").write_text("cpu memory\n")
    (found,) = [each for each in examine(machine) if each.name == "cgroup"]
    assert (found.severity, bool(found.remedy)) == (Severity.WARNING, True)
    assert found.observed.endswith("bounded by memory and ended by cgroup.kill; without the controller pids")


def test_a_cgroup_that_another_process_sits_in_is_divided_without_controllers_and_says_which(
    world_readable: Installation,
) -> None:
    with delegated(ORDINARY) as root, ExitStack() as stack:
        daemon, other = Daemon(world_readable, "same-user"), Daemon(world_readable, "same-user")
        for each in (daemon, other):
            stack.callback(each.stop)
            root.enter(each.pid)
        told = daemon.play("lived", module="grouped")

        assert told["groups"]["delegated"]
        if root.controllers:
            assert told["groups"]["controllers"] == []
            assert f"process {other.pid} sits in the cgroup that is delegated" in told["groups"]["reason"]
        assert told["paths"] == [told["path"]] * 2
        assert root.groups() == ["daemon"]


def test_a_folder_that_bears_another_name_is_no_group_to_sweep(tmp_path: Path) -> None:
    (tmp_path / "worker-1").mkdir()

    assert cgroup.sweep(str(tmp_path / "worker-1"), "2") == []
    assert (tmp_path / "worker-1").is_dir()


def test_a_group_that_is_not_delegated_or_is_led_to_is_not_swept(tmp_path: Path) -> None:
    with delegated(0) as root, subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as other:
        inner = f"{root.folder}/worker-1/worker-2"
        os.makedirs(inner)
        Path(inner, "cgroup.procs").write_text(str(other.pid))
        (tmp_path / "worker-2").symlink_to(inner)
        (tmp_path / "worker-1").symlink_to(f"{root.folder}/worker-1")

        assert cgroup.sweep(inner, "2") == []
        assert cgroup.sweep(str(tmp_path / "worker-2"), "2") == []
        assert cgroup.sweep(str(tmp_path / "worker-1"), "1") == []
        assert other.poll() is None
        # By its own name it would end.
        os.setxattr(f"{root.folder}/worker-1", "user.delegate", b"1")
        assert cgroup.sweep(inner, "2") == [other.pid]
        assert other.wait() == -9


def test_a_kill_by_the_kernel_for_memory_is_told_from_any_other(tmp_path: Path) -> None:
    group = Group(Place("/g", str(tmp_path), "/"), {})
    assert group.starved() is None
    # That nothing in a group met its own bound is what a kill for a bound above it looks like, or for the host's.
    for oom, killed, told in ((3, 0, None), (3, 2, "memory"), (0, 1, "host_memory")):
        (tmp_path / "memory.events").write_text(f"low 0\nmax 9\noom {oom}\noom_kill {killed}\n")
        assert group.starved() == told
    by_the_kernel = supervise.read_exit(-9).because("memory")
    assert by_the_kernel.because("stop").killed == "memory"
    assert supervise.read_exit(3).because("memory").killed is None


def test_what_may_be_divided_is_said_in_a_line() -> None:
    place = Place("/a", "/at/a", "/at")
    assert str(Groups(reason="none is here")) == "no group for each worker: none is here"
    assert (
        str(Groups(place, ("memory", "pids"), kill=True, reason=""))
        == "a group for each worker, bounded by memory and pids and ended by cgroup.kill"
    )
    assert (
        str(Groups(place, reason="without the controller memory"))
        == "a group for each worker, neither bounded nor ended as one; without the controller memory"
    )
