"""Plans and the options made of them: pure, on a host made of files that need not run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bwrap import arguments, profile
from bwrap.errors import LayerError, ProfileError
from bwrap.host import Bubblewrap, Host, Python, Shape
from bwrap.plan import Kind, Places, Plan, resolve
from bwrap.profile import SHIPPED

GOLDEN = Path(__file__).parent / "golden" / "worker.args"


def fake_host(tree: Path) -> Host:
    for name in (
        "usr/bin/python3",
        "usr/bin/env",
        "usr/lib/libc.so.6",
        "usr/lib/python3/os.py",
        "run/w.sock",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    python = Python(
        f"{tree}/usr/bin/python3",
        f"{tree}/usr/lib/python3",
        (f"{tree}/usr/lib/libc.so.6",),
        "3.11.2",
        f"{tree}/usr/bin/env",
    )
    return Host(Shape.SAME_USER, Bubblewrap("/usr/bin/bwrap", "0.8.0", "00", ()), python, "/usr/bin/prlimit")


def one_a_line(said: tuple[str, ...]) -> str:
    return "".join(f"\n{word}" if word.startswith("--") else f" {word}" for word in said).lstrip() + "\n"


def plan(tree: Path, text: str = "", home: str = "/home/ada/.syncro") -> Plan:
    (tree / "own.toml").write_text(f'extends = "worker"\n{text}')
    found = profile.load("own", (tree, SHIPPED))
    return resolve(found, fake_host(tree), Places(home, f"{tree}/run/w.sock"))


def test_the_worker_profile_gives_the_options_of_the_golden_file(tmp_path: Path) -> None:
    said = arguments.arguments(plan(tmp_path))

    assert one_a_line(said).replace(str(tmp_path), "<tree>") == GOLDEN.read_text(encoding="utf-8")


def test_the_same_plan_gives_the_same_options_and_one_digest(tmp_path: Path) -> None:
    one, other = plan(tmp_path), plan(tmp_path)

    assert one.filter == other.filter
    assert arguments.arguments(one) == arguments.arguments(other)
    assert arguments.digest(arguments.arguments(one), one.command) == arguments.digest(
        arguments.arguments(other), other.command
    )


def test_the_digest_tells_options_from_command() -> None:
    assert arguments.digest(["a", "b"], ["c"]) != arguments.digest(["a"], ["b", "c"])
    assert arguments.digest(["ab"], []) != arguments.digest(["a", "b"], [])


def test_the_order_of_a_profiles_entries_changes_nothing(tmp_path: Path) -> None:
    for name in ("a", "a/b", "c"):
        (tmp_path / name).mkdir()
    entries = [f'"{tmp_path}/{name}"' for name in ("a", "a/b", "c")]

    one, other = (
        plan(tmp_path, f"[filesystem]\nread_only = [{', '.join(said)}]") for said in (entries, entries[::-1])
    )

    assert arguments.arguments(one) == arguments.arguments(other)
    targets = [mount.target for mount in one.mounts]
    assert targets.index(f"{tmp_path}/a") < targets.index(f"{tmp_path}/a/b")


def test_options_are_packed_with_a_nul_after_each_and_come_back_whole() -> None:
    words = ["--ro-bind", "/a b", "/a\nb", "\udcff\udcfe", "é", "", "--"]

    packed = arguments.packed(words)

    assert [os.fsdecode(word) for word in packed.split(b"\0")[:-1]] == words
    assert packed.endswith(b"--\0")


def test_descriptors_stand_in_the_options_by_name_until_a_launch_numbers_them(tmp_path: Path) -> None:
    said = arguments.arguments(plan(tmp_path))
    numbers = {name: at for at, name in enumerate(arguments.DESCRIPTORS, 20)}

    numbered = arguments.numbered(said, numbers)

    assert [said.count(name) for name in arguments.DESCRIPTORS] == [1, 1, 1, 1]
    assert numbered[numbered.index("--seccomp") + 1] == "20"
    assert not set(numbered) & set(arguments.DESCRIPTORS)


@pytest.mark.parametrize(
    "home", ["/home/a b", "/home/a\nb", "/home/\udcff", "/home/{filter}", "/home/--dev-bind"]
)
def test_a_home_of_any_name_stands_in_the_options_as_it_is(tmp_path: Path, home: str) -> None:
    said = arguments.arguments(plan(tmp_path, home=home))

    assert said[said.index("--tmpfs") + 1] in {"/tmp", home}
    assert [said[at + 1] for at, word in enumerate(said) if word == "--remount-ro"] == [home, "/"]
    assert os.fsencode(home) + b"\0" in arguments.packed(said)


@pytest.mark.claim("I3")
def test_the_root_and_the_home_become_read_only_after_everything_is_mounted(tmp_path: Path) -> None:
    said = arguments.arguments(plan(tmp_path))

    first = said.index("--remount-ro")
    assert not {"--ro-bind", "--tmpfs", "--symlink", "--ro-bind-data"} & set(said[first:])
    assert "--bind" not in said


def test_a_source_behind_a_symlink_stands_where_it_really_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "link").symlink_to("real")

    found = plan(tmp_path, f'[filesystem]\nread_only = ["{tmp_path}/link/file"]')

    # Making a folder at the link's place would hide what the link leads to from all who go through it.
    mount = next(mount for mount in found.mounts if mount.source == f"{tmp_path}/link/file")
    assert (mount.kind, mount.target) == (Kind.READ_ONLY, f"{tmp_path}/real/file")


def test_a_source_that_is_missing_is_a_refusal_by_the_layer_of_mounts(tmp_path: Path) -> None:
    with pytest.raises(LayerError) as caught:
        plan(tmp_path, f'[filesystem]\nread_only = ["{tmp_path}/absent"]')

    assert caught.value.layer == "mounts"
    assert f"{tmp_path}/absent" in caught.value.expected


def test_two_things_at_one_place_are_an_error(tmp_path: Path) -> None:
    twice = '[filesystem]\nempty = ["/tmp"]\n[[filesystem.tmpfs]]\npath = "/tmp"\nsize = "1M"'
    with pytest.raises(ProfileError, match="two different things at '/tmp'"):
        plan(tmp_path, twice)


@pytest.mark.claim("I10")
def test_a_process_id_namespace_comes_with_the_worker_as_its_first_process(tmp_path: Path) -> None:
    assert "--unshare-pid" not in arguments.arguments(plan(tmp_path))
    said = arguments.arguments(plan(tmp_path, '[namespaces]\npid = true\n[filesystem]\nproc = "own"'))

    assert {"--unshare-pid", "--as-pid-1", "--proc"} <= set(said)


@pytest.mark.claim("I6")
def test_the_command_clears_the_environment_and_reads_nothing_but_its_image(tmp_path: Path) -> None:
    command = plan(tmp_path).command

    assert command[1:3] == ("-i", "PATH=/usr/bin")
    assert command[-4:] == ("-I", "-S", "-B", "/spl-worker.pyc")
