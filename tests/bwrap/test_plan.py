"""From a profile to a plan, on a host made of files that need not run: what is mounted where, and what is refused."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bwrap import sources
from bwrap.errors import LayerError, ProfileError
from bwrap.library import Library
from bwrap.mounts import Kind, Places, mounts
from bwrap.profile import Filesystem
from tests.bwrap import tree

if TYPE_CHECKING:
    from pathlib import Path

    from bwrap.plan import Plan

MIB = 1 << 20


def shown(plan: Plan) -> list[tuple[Kind, str]]:
    return [(mount.kind, mount.target) for mount in plan.mounts]


def reading(*paths: object, more: str = "") -> str:
    listed = ", ".join(f'"{path}"' for path in paths)
    return f"[filesystem]\nread_only = [{listed}]\n{more}"


# --- what stands where ---


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for name in ("a/b/c", "a/d", "e"):
        (folder / name).mkdir(parents=True)
    tree.host(folder)
    return folder


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_order_of_a_profiles_entries_changes_nothing(folders: Path, data: st.DataObject) -> None:
    entries: dict[str, list[Any]] = {
        "read_only": [
            "@python",
            f"{folders}/a",
            f"{folders}/a/b",
            f"{folders}/e",
            "?/not/there",
            "?/nor/there",
        ],
        "empty": ["@home", "/empty", "/empty/deeper", f"{folders}/a/d"],
        "sockets": ["@worker_socket"],
        "tmpfs": [{"path": "/room", "size": 1}, {"path": f"{folders}/a/b/c", "size": 2}],
    }
    mixed = {name: data.draw(st.permutations(words)) for name, words in entries.items()}
    profile, host = Library().load("worker"), tree.host(folders)

    one, other = (
        mounts(
            profile.model_copy(update={"filesystem": Filesystem.model_validate({"proc": "none", **words})}),
            host.python,
            tree.places(folders),
        )
        for words in (entries, mixed)
    )

    assert one == other
    depths = [mount.target.count("/") for mount in one.found]
    assert depths == sorted(depths)


def test_what_a_parent_shows_already_needs_no_mount_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    (tmp_path / "a" / "link").symlink_to("file")

    plan = tree.plan(tmp_path, reading(tmp_path / "a" / "link", tmp_path / "a" / "b", tmp_path / "a"))

    assert [target for _, target in shown(plan) if target.startswith(f"{tmp_path}/a")] == [f"{tmp_path}/a"]


def test_a_source_behind_a_symlink_stands_where_it_really_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "link").symlink_to("real")

    plan = tree.plan(tmp_path, reading(tmp_path / "link" / "file"))

    # Making a folder at the link's place would hide what the link leads to from all who go through it.
    mount = next(each for each, source in plan.shown if source.named == f"{tmp_path}/link/file")
    assert (mount.kind, mount.target) == (Kind.READ_ONLY, f"{tmp_path}/real/file")
    assert mount.source == f"{tmp_path}/real/file"


def test_lists_that_name_nothing_show_nothing_but_the_program(tmp_path: Path) -> None:
    plan = tree.plan(
        tmp_path, "[filesystem]\nread_only = []\nempty = []\nsockets = []\ntmpfs = []", extends="base"
    )

    assert shown(plan) == [(Kind.IMAGE, "/spl-worker.pyc")]


def test_slashes_too_many_mean_the_same_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    assert (
        tree.plan(tmp_path, reading(f"/{tmp_path}//a/")).mounts
        == tree.plan(tmp_path, reading(tmp_path / "a")).mounts
    )


@pytest.mark.parametrize("name", ["a b", "a\nb", "é", "--bind", "{filter}", "a\x85b", "a\\b"])
def test_a_source_may_have_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()

    plan = tree.plan(tmp_path, f"[filesystem]\nread_only = [{json.dumps(str(tmp_path / name))}]")

    assert (Kind.READ_ONLY, f"{tmp_path}/{name}") in shown(plan)


# --- what cannot stand there ---


def test_a_source_that_is_missing_is_a_refusal_by_the_layer_of_mounts(tmp_path: Path) -> None:
    with pytest.raises(LayerError) as caught:
        tree.plan(tmp_path, reading(tmp_path / "absent"))

    assert caught.value.layer == "mounts"
    assert f"{tmp_path}/absent" in caught.value.expected


def test_an_optional_source_is_mounted_where_it_is_there_and_named_as_absent_where_it_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "there").mkdir()
    text = reading(f"?{tmp_path}/there", f"?{tmp_path}/not")

    plan = tree.plan(tmp_path, text)
    (tmp_path / "not").mkdir()

    assert plan.absent == (f"{tmp_path}/not",)
    assert [target for _, target in shown(plan) if target in (f"{tmp_path}/there", f"{tmp_path}/not")] == [
        f"{tmp_path}/there"
    ]
    assert tree.plan(tmp_path, text).absent == ()


def test_a_source_that_went_since_is_a_refusal_before_each_start(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    plan = tree.plan(tmp_path, reading(f"?{tmp_path}/there"))
    plan.require_sources()
    (tmp_path / "there").rmdir()
    with pytest.raises(LayerError) as gone:
        plan.require_sources()
    os.mknod(tmp_path / "there", stat.S_IFSOCK | 0o600)
    with pytest.raises(LayerError) as another:
        plan.require_sources()

    assert (gone.value.layer, gone.value.observed) == ("mounts", "nothing there")
    assert "socket" in another.value.observed


@pytest.mark.claim("I3")
@pytest.mark.parametrize("swap", ["its link", "its folder", "itself"])
def test_a_source_that_became_another_is_refused_before_a_start_and_asks_for_a_new_plan(
    tmp_path: Path, swap: str
) -> None:
    for name in ("a/v1", "a/v2", "b/v1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "current").symlink_to("v1")
    plan = tree.plan(tmp_path, reading(tmp_path / "a" / "current"))
    plan.require_sources()
    assert plan.is_current()

    if swap == "its link":
        (tmp_path / "a" / "current").unlink()
        (tmp_path / "a" / "current").symlink_to("v2")
    elif swap == "its folder":
        (tmp_path / "a").rename(tmp_path / "c")
        (tmp_path / "a").symlink_to("c")
    else:
        (tmp_path / "a" / "v1").rename(tmp_path / "a" / "v0")
        (tmp_path / "b" / "v1").rename(tmp_path / "a" / "v1")

    assert not plan.is_current()
    with pytest.raises(LayerError, match="that was looked at, observed another") as caught:
        plan.require_sources()
    assert caught.value.layer == "mounts"


def test_a_link_is_followed_once_and_what_it_led_to_is_shown_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "current").symlink_to("v1")

    plan = tree.plan(tmp_path, reading(tmp_path / "current"))

    (mount,) = (each for each, source in plan.shown if source.named == f"{tmp_path}/current")
    assert (mount.target, mount.source) == (f"{tmp_path}/current", f"{tmp_path}/v1")


def test_an_optional_source_that_comes_or_goes_asks_for_a_new_plan(tmp_path: Path) -> None:
    text = reading(f"?{tmp_path}/there")
    without = tree.plan(tmp_path, text)
    assert without.is_current()
    (tmp_path / "there").mkdir()
    assert not without.is_current()
    with_it = tree.plan(tmp_path, text)
    assert with_it.is_current()
    (tmp_path / "there").rmdir()
    assert not with_it.is_current()


def test_a_worker_socket_that_is_no_socket_any_more_is_a_refusal_before_each_start(tmp_path: Path) -> None:
    plan = tree.plan(tmp_path)
    (tmp_path / "w").unlink()
    (tmp_path / "w").touch()

    with pytest.raises(LayerError, match="a unix socket"):
        plan.require_sources()


NESTED = {
    "a place that is not on the host": (
        'read_only = [{shown}]\nempty = ["{tree}/shown/absent"]',
        "nothing is made there",
    ),
    "a folder where a file is": ('read_only = [{shown}]\nempty = ["{tree}/shown/file"]', "is no folder"),
    "a place beneath a file": (
        'read_only = [{shown}]\nempty = ["{tree}/file/deeper"]',
        "nothing is made there",
    ),
    "a place behind a link that is shown": (
        'read_only = [{shown}]\nempty = ["{tree}/shown/link/deeper"]',
        "goes through a link",
    ),
    "a link that leads out of what is shown": (
        'read_only = [{shown}, "{tree}/shown/out"]',
        "goes through a link",
    ),
    "the root": ('empty = ["/"]', "can stand at '/'"),
    "over /proc": ('empty = ["/proc"]', "can stand at '/proc'"),
    "within /proc": ('tmpfs = [{{path = "/proc/sys", size = "1M"}}]', "can stand at '/proc/sys'"),
    "over the image": ('empty = ["/spl-worker.pyc"]', "two different things"),
    "beneath the image": ('empty = ["/spl-worker.pyc/deeper"]', "there can be nothing"),
    "over the worker socket": ('empty = ["{home}/run/spl-worker.sock"]', "two different things"),
    "beneath the worker socket": ('empty = ["{home}/run/spl-worker.sock/deeper"]', "but the worker socket"),
    "a folder in the home": ('empty = ["{home}/run"]', "nothing but the worker socket"),
    "a writable folder in the home": (
        'tmpfs = [{{path = "{home}/run", size = "1M"}}]',
        "but the worker socket",
    ),
    "a writable home": ('tmpfs = [{{path = "{home}", size = "1M"}}]', "two different things"),
    "a writable folder in the interpreter": (
        'tmpfs = [{{path = "{tree}/usr/lib/python3/json", size = "1M"}}]',
        "the interpreter's",
    ),
    "an empty folder over the interpreter": ('empty = ["{tree}/usr/lib/python3"]', "two different things"),
    "an empty folder beneath a program": ('empty = ["{tree}/usr/bin/python3/x"]', "the interpreter's"),
    "beneath a link at the root": (
        'read_only = ["{link}"]\nempty = ["{link}/deeper"]',
        "name where it leads to",
    ),
    "a folder of the host in one that can be written": (
        'read_only = [{shown}]\ntmpfs = [{{path = "{tree}", size = "1M"}}]',
        "nothing of the host can be shown",
    ),
    "one path for two things": (
        'empty = ["/tmp"]\ntmpfs = [{{path = "/tmp", size = "1M"}}]',
        "two different things at '/tmp'",
    ),
    "the interpreter, empty": ('empty = ["@python"]', "'@python' cannot stand here"),
    "scratch of the host": ('read_only = ["@scratch"]', "'@scratch' cannot stand here"),
    "the home, shown": ('read_only = ["@home"]', "'@home' cannot stand here"),
    "the worker socket, as a file": ('read_only = ["@worker_socket"]', "'@worker_socket' cannot stand here"),
    "the home as a socket": ('sockets = ["@home"]', "'@home' cannot stand here"),
    "a /proc that would be the host's": ('proc = "own"', "needs the pid namespace"),
}


@pytest.mark.claim("I3")
@pytest.mark.parametrize("case", NESTED)
def test_what_cannot_stand_there_is_refused_at_the_word_that_asks_for_it(tmp_path: Path, case: str) -> None:
    """bubblewrap would make the place on the host, fail without a reason, or undo what a layer claims."""
    text, reason = NESTED[case]
    (tmp_path / "shown" / "folder" / "deeper").mkdir(parents=True)
    (tmp_path / "shown" / "file").touch()
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "shown" / "link").symlink_to("folder")
    (tmp_path / "shown" / "out").symlink_to(tmp_path / "other")
    link = next(f"/{name}" for name in os.listdir("/") if os.path.islink(f"/{name}"))
    shown = f'"{tmp_path}/shown", "{tmp_path}/file"'
    before = sorted((tmp_path / "shown").rglob("*"))

    with pytest.raises(ProfileError) as caught:
        tree.plan(
            tmp_path, f"[filesystem]\n{text.format(tree=tmp_path, home=tree.HOME, link=link, shown=shown)}"
        )

    assert reason in str(caught.value)
    assert sorted((tmp_path / "shown").rglob("*")) == before


def test_folders_of_the_sandbox_may_stand_in_one_another(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    text = 'tmpfs = [{path = "/room", size = "1M"}]\nempty = ["/room/in", "' + f'{tmp_path}/a/b"]'

    plan = tree.plan(tmp_path, reading(tmp_path / "a", more=text))

    assert {
        (Kind.TMPFS, "/room"),
        (Kind.EMPTY, "/room/in"),
        (Kind.READ_ONLY, f"{tmp_path}/a"),
        (Kind.EMPTY, f"{tmp_path}/a/b"),
    } <= set(shown(plan))


# --- what of the host may be shown ---


@pytest.mark.claim("I3")
@pytest.mark.parametrize(
    "path", ["/", "{tree}", "{tree}/ada", "{tree}/ada/home", "{tree}/ada/home/run", "{tree}/link"]
)
@pytest.mark.parametrize("home", ["{tree}/ada/home", "{tree}/other-link/home"])
def test_a_source_that_holds_the_home_or_lies_in_it_is_refused_by_the_layer_of_the_home(
    tmp_path: Path, path: str, home: str
) -> None:
    (tmp_path / "ada" / "home" / "run").mkdir(parents=True)
    (tmp_path / "link").symlink_to("ada")
    (tmp_path / "other-link").symlink_to("ada")

    with pytest.raises(LayerError) as caught:
        tree.plan(tmp_path, reading(path.format(tree=tmp_path)), home=home.format(tree=tmp_path))

    assert caught.value.layer == "home"


@pytest.mark.claim("I3")
@pytest.mark.parametrize("path", ["shown", "shown/deep", "shown/deep/copy"])
def test_a_file_of_the_home_is_not_shown_under_a_second_name(tmp_path: Path, path: str) -> None:
    home = tmp_path / "ada" / "home"
    (home / "secrets").mkdir(parents=True)
    (home / "secrets" / "key").touch()
    (tmp_path / "shown" / "deep").mkdir(parents=True)
    (tmp_path / "shown" / "deep" / "copy").hardlink_to(home / "secrets" / "key")

    with pytest.raises(LayerError, match="under another name") as caught:
        tree.plan(tmp_path, reading(tmp_path / path), home=str(home))

    assert caught.value.layer == "home"


def test_a_folder_whose_name_begins_like_the_homes_is_apart_from_it(tmp_path: Path) -> None:
    (tmp_path / "home-of-others").mkdir()

    plan = tree.plan(tmp_path, reading(tmp_path / "home-of-others"), home=f"{tmp_path}/home")

    assert (Kind.READ_ONLY, f"{tmp_path}/home-of-others") in shown(plan)


@pytest.mark.claim("I3")
@pytest.mark.parametrize("within", ["", "deep/er"])
@pytest.mark.parametrize(("kind", "said"), [(stat.S_IFSOCK, "socket"), (stat.S_IFIFO, "named pipe")])
def test_a_socket_or_a_pipe_is_no_source_and_neither_is_a_folder_that_holds_one(
    tmp_path: Path, within: str, kind: int, said: str
) -> None:
    (tmp_path / "shown" / within).mkdir(parents=True)
    os.mknod(tmp_path / "shown" / within / "x", kind | 0o666)
    source = tmp_path / "shown" if within else tmp_path / "shown" / "x"

    with pytest.raises(LayerError) as caught:
        tree.plan(tmp_path, reading(source))

    assert caught.value.layer == "mounts"
    assert said in caught.value.observed


def test_a_link_to_a_socket_is_no_source_either(tmp_path: Path) -> None:
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o666)
    (tmp_path / "link").symlink_to("socket")

    with pytest.raises(LayerError, match="a socket, which"):
        tree.plan(tmp_path, reading(f"?{tmp_path}/link"))


@pytest.mark.parametrize("path", ["/dev/null", "/dev"])
def test_devices_are_no_sources(tmp_path: Path, path: str) -> None:
    with pytest.raises(LayerError) as caught:
        tree.plan(tmp_path, reading(path))

    assert caught.value.layer == "mounts"


@pytest.mark.parametrize("path", ["/proc", "/proc/self/status", "/proc/sys/kernel"])
def test_the_hosts_proc_is_no_source_under_any_name(tmp_path: Path, path: str) -> None:
    (tmp_path / "link").symlink_to(path)

    for source in (path, tmp_path / "link"):
        with pytest.raises(LayerError) as caught:
            sources.require(str(source), tree.HOME)
        assert (caught.value.layer, "/proc" in caught.value.observed) == ("mounts", True)


def innermost(folder: Path, name: str, depth: int) -> int:
    """Make so many folders of a name in each other; gives the descriptor of the last, which no path may reach.

    As a tool makes them: each from the descriptor of the one before.
    """
    outer = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=outer)
        inner = os.open(name, os.O_RDONLY, dir_fd=outer)
        os.close(outer)
        outer = inner
    return outer


def test_a_file_of_the_home_is_known_also_at_a_path_that_is_too_long_to_be_named(tmp_path: Path) -> None:
    home, shown = tmp_path / "home", tmp_path / "shown"
    home.mkdir()
    shown.mkdir()
    folder = innermost(home, "d" * 250, 20)
    os.close(os.open("f" * 250, os.O_CREAT, 0o600, dir_fd=folder))
    sources.require(str(shown), str(home))

    os.link("f" * 250, shown / "alias", src_dir_fd=folder)
    os.close(folder)
    with pytest.raises(LayerError, match="it holds some of it, under another name") as caught:
        sources.require(str(shown), str(home))

    assert caught.value.layer == "home"


def test_a_home_of_a_thousand_folders_in_each_other_is_looked_through(tmp_path: Path) -> None:
    home, shown = tmp_path / "home", tmp_path / "shown"
    home.mkdir()
    shown.mkdir()
    folder = innermost(home, "d", 1200)
    os.close(os.open("file", os.O_CREAT, 0o600, dir_fd=folder))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        sources.require(str(shown), str(home))
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with pytest.raises(LayerError, match="Too many open files"):
            sources.require(str(shown), str(home))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.link("file", shown / "alias", src_dir_fd=folder)
        with pytest.raises(LayerError, match="it holds some of it, under another name"):
            sources.require(str(shown), str(home))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(folder)
        # Python's own could not.
        subprocess.run(["rm", "-rf", str(home)], check=True)


def test_a_folder_with_another_file_system_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayerError, match="another is mounted at"):
        sources.require("/sys", tree.HOME)


def test_a_folder_that_holds_too_much_to_be_looked_through_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    for name in "abcd":
        (tmp_path / "shown" / name).touch()

    with patch.object(sources, "_MOST_ENTRIES", 4):
        tree.plan(tmp_path, reading(tmp_path / "shown"))
    with patch.object(sources, "_MOST_ENTRIES", 3), pytest.raises(LayerError, match="at most 3 entries"):
        tree.plan(tmp_path, reading(tmp_path / "shown"))


def test_a_folder_that_cannot_be_looked_through_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shown" / "closed").mkdir(parents=True)
    listed = os.scandir

    def closed(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    with patch("os.scandir", closed), pytest.raises(LayerError, match="closed: Permission denied"):
        tree.plan(tmp_path, reading(tmp_path / "shown"))


def test_an_interpreter_in_the_home_is_refused_by_the_layer_of_the_home(tmp_path: Path) -> None:
    with pytest.raises(LayerError) as caught:
        tree.plan(tmp_path, home=f"{tmp_path}/usr/lib")

    assert caught.value.layer == "home"


# --- what it costs ---


def test_the_worst_case_of_a_worker_is_its_one_process_its_file_systems_and_the_kernels_share(
    tmp_path: Path,
) -> None:
    plan = tree.plan(
        tmp_path,
        '[limits]\naddress_space = "100M"\nopen_files = 10\nprocesses = 7\n'
        '[filesystem]\ntmpfs = [{path = "/a", size = "3M"}, {path = "/b", size = "4M"}]',
    )

    # In each of the two file systems half as many files as the machine has pages, at 1 KiB.
    files = 2 * (os.sysconf("SC_PHYS_PAGES") // 2) * 1024
    # It cannot fork, so seven tasks are one process at most. The empty folder where the home is: 64 KiB.
    assert plan.worst_case == (100 + 10 // 2 + 8 + 3 + 4) * MIB + 65536 + files


ONE, SEVEN = 1, 7
FORKING = 'refuse = ["!@new-task"]\n'


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        ("", ONE),
        (f'{FORKING}allow = ["clone"]', SEVEN),
        (f'{FORKING}when = [{{call = "clone", argument = 0, has = "CLONE_THREAD"}}]', ONE),
        (f'{FORKING}when = [{{call = "clone", argument = 0, has = 256}}]', SEVEN),
        (f'{FORKING}when = [{{call = "clone", argument = 1, has = "CLONE_THREAD"}}]', SEVEN),
        (f'{FORKING}when = [{{call = "clone3", argument = 0, has = "CLONE_THREAD"}}]', SEVEN),
    ],
)
def test_the_worst_case_counts_as_many_processes_as_the_filter_lets_it_make(
    tmp_path: Path, words: str, processes: int
) -> None:
    plan = tree.plan(tmp_path, f"[limits]\nprocesses = 7\n[syscalls]\n{words}")
    each = plan.limits.address_space + plan.limits.open_files * MIB // 2 + 8 * MIB

    assert plan.worst_case == processes * each + 65536


def test_places_give_the_socket_as_the_worker_sees_it() -> None:
    assert Places("/home/ada", "/run/w").socket_inside == "/home/ada/run/spl-worker.sock"
