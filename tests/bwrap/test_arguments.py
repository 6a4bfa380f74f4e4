"""The options made of a plan: pure, on a host made of files that need not run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bwrap import arguments
from bwrap.library import SHIPPED, Library
from bwrap.plan import resolve
from tests.bwrap import tree

GOLDEN = Path(__file__).parent / "golden"
PROFILES = sorted(path.stem for path in SHIPPED.glob("*.toml"))


def one_a_line(said: tuple[str, ...]) -> str:
    return "".join(f"\n{word}" if word.startswith("--") else f" {word}" for word in said).lstrip() + "\n"


@pytest.mark.parametrize("name", PROFILES)
def test_each_shipped_profile_gives_the_options_of_its_golden_file(tmp_path: Path, name: str) -> None:
    plan = resolve(Library().load(name), tree.host(tmp_path), tree.places(tmp_path))

    said = one_a_line(arguments.arguments(plan)).replace(str(tmp_path), "<tree>")

    assert said == (GOLDEN / f"{name}.args").read_text(encoding="utf-8")


def test_every_golden_file_is_that_of_a_shipped_profile() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == PROFILES


def test_the_same_plan_gives_the_same_options_and_one_digest(tmp_path: Path) -> None:
    one, other = tree.plan(tmp_path), tree.plan(tmp_path)

    assert one == other
    assert arguments.arguments(one) == arguments.arguments(other)
    assert arguments.digest(arguments.arguments(one), one.command) == arguments.digest(
        arguments.arguments(other), other.command
    )


def test_the_digest_tells_options_from_command() -> None:
    assert arguments.digest(["a", "b"], ["c"]) != arguments.digest(["a"], ["b", "c"])
    assert arguments.digest(["ab"], []) != arguments.digest(["a", "b"], [])


def test_options_are_packed_with_a_nul_after_each_and_come_back_whole() -> None:
    words = ["--ro-bind", "/a b", "/a\nb", "\udcff\udcfe", "é", "", "--"]

    packed = arguments.packed(words)

    assert [os.fsdecode(word) for word in packed.split(b"\0")[:-1]] == words
    assert packed.endswith(b"--\0")


def test_descriptors_stand_in_the_options_by_name_until_a_launch_numbers_them(tmp_path: Path) -> None:
    said = arguments.arguments(tree.plan(tmp_path))
    numbers = {name: at for at, name in enumerate(arguments.DESCRIPTORS, 20)}

    numbered = arguments.numbered(said, numbers)

    assert [said.count(name) for name in arguments.DESCRIPTORS] == [1, 1, 1, 1]
    assert numbered[numbered.index("--seccomp") + 1] == "20"
    assert not set(numbered) & set(arguments.DESCRIPTORS)


@pytest.mark.parametrize(
    "home", ["/home/a b", "/home/a\nb", "/home/\udcff", "/home/{filter}", "/home/--dev-bind"]
)
def test_a_home_of_any_name_stands_in_the_options_as_it_is(tmp_path: Path, home: str) -> None:
    said = arguments.arguments(tree.plan(tmp_path, home=home))

    assert said[said.index("--tmpfs") + 1] in {"/tmp", home}
    assert [said[at + 1] for at, word in enumerate(said) if word == "--remount-ro"] == [home, "/"]
    assert os.fsencode(home) + b"\0" in arguments.packed(said)


@pytest.mark.claim("I3")
def test_the_root_the_home_and_proc_become_read_only_after_everything_is_mounted(tmp_path: Path) -> None:
    said = arguments.arguments(tree.plan(tmp_path, '[namespaces]\npid = true\n[filesystem]\nproc = "own"'))

    first = said.index("--remount-ro")
    assert not {"--ro-bind", "--tmpfs", "--symlink", "--ro-bind-data", "--proc"} & set(said[first:])
    assert [said[at + 1] for at, word in enumerate(said) if word == "--remount-ro"] == [
        tree.HOME,
        "/proc",
        "/",
    ]
    assert "--bind" not in said


@pytest.mark.claim("I10")
def test_a_process_id_namespace_comes_with_the_worker_as_its_first_process(tmp_path: Path) -> None:
    assert "--unshare-pid" not in arguments.arguments(tree.plan(tmp_path))
    said = arguments.arguments(tree.plan(tmp_path, '[namespaces]\npid = true\n[filesystem]\nproc = "own"'))

    assert {"--unshare-pid", "--as-pid-1", "--proc"} <= set(said)


@pytest.mark.claim("I6")
def test_the_command_clears_the_environment_and_reads_nothing_but_its_image(tmp_path: Path) -> None:
    command = tree.plan(tmp_path).command

    assert command[1:3] == ("-i", "PATH=/usr/bin")
    assert command[-4:] == ("-I", "-S", "-B", "/spl-worker.pyc")
