"""Nothing in the daemon lets a layer pass: only the suite weakens a launch, and it and bench name other images."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bwrap
import spl
from bwrap.launch import Launch, launch
from escape.weakened import Weakened
from spl.bench.phases import Timed

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMS = [Path(package.__file__).parent for package in (bwrap, spl) if package.__file__]
_STEPS = {"within", "options", "command", "descriptors", "identity", "limits", "attempts", "confirm"}
"""The steps of a launch that the suite takes layers out of."""


_BENCH = "spl/bench/"
"""Measures daemons of its own, in a process of its own: no daemon that a person starts has anything of it."""


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for room in ROOMS:
        for path in sorted(room.rglob("*.py")):
            yield path.relative_to(room.parent).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def _without_bench() -> Iterator[tuple[str, ast.Module]]:
    return (each for each in _modules() if not each[0].startswith(_BENCH))


@pytest.mark.claim("E2", "I12")
def test_a_daemon_starts_what_it_confines_by_one_function_that_takes_no_word_on_layers() -> None:
    assert list(inspect.signature(launch).parameters) == ["plan", "image", "ledger", "seconds"]
    named = []
    for path, tree in _without_bench():
        for node in ast.walk(tree):
            match node:
                case (
                    ast.Name(id="Launch", ctx=ast.Load())
                    | ast.Attribute(attr="Launch")
                    | ast.alias(name="Launch")
                ):
                    named.append(path)
    # Its own definition's module calls it, and a confined process's type names it; under no other name, nowhere else.
    assert set(named) == {"bwrap/launch.py", "bwrap/confined.py"}
    assert named.count("bwrap/launch.py") == 1
    assert "Launch(plan, image, ledger).within(seconds)" in inspect.getsource(launch)
    assert len(inspect.getsource(launch).partition('"""')[2].partition('"""')[2].split()) == 5


@pytest.mark.claim("E2", "I12")
def test_nothing_that_a_daemon_was_started_with_reaches_a_launch_or_its_judgment() -> None:
    for path, tree in _without_bench():
        if path.split("/")[1] in {"launch.py", "receipt.py", "findings.py", "layers.py", "confined.py"}:
            read = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
            assert not [each for each in read if each.startswith(("os.environ", "os.getenv", "sys.argv"))], (
                path
            )
        assigned = [
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in _STEPS
        ]
        assert assigned == [], path


@pytest.mark.claim("E2", "I12")
def test_only_the_command_line_reaches_the_suite_and_only_for_its_own_command() -> None:
    assert _reaching("escape", "spl.cli.escape:escape") == {"spl/cli/escape.py", "spl/cli/commands.py"}


@pytest.mark.claim("E2", "I12")
def test_only_the_command_line_reaches_bench_and_only_for_its_own_command() -> None:
    reaching = _reaching("spl.bench", "spl.cli.bench:bench")
    assert {path for path in reaching if not path.startswith(_BENCH)} == {
        "spl/cli/bench.py",
        "spl/cli/commands.py",
    }


@pytest.mark.claim("I12")
def test_what_bench_times_is_the_real_launch_with_every_check_of_it() -> None:
    steps = {name for name, value in vars(Timed).items() if inspect.isfunction(value)}
    assert steps == {"__init__", "confirm"}
    assert "confirmed = super().confirm(process, answer)\n" in inspect.getsource(Timed.confirm)
    assert inspect.getsource(Timed.confirm).rstrip().endswith("return confirmed")


def _reaching(package: str, command: str) -> set[str]:
    """Give the modules that import a package, or name it in a string: import_module, __import__, -m."""

    def inside(name: object) -> bool:
        return isinstance(name, str) and (name == package or name.startswith(f"{package}."))

    return {
        path
        for path, tree in _modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and inside(node.module))
        or (
            isinstance(node, ast.ImportFrom)
            and any(inside(f"{node.module}.{each.name}") for each in node.names)
        )
        or (isinstance(node, ast.Import) and any(inside(each.name) for each in node.names))
        or (isinstance(node, ast.Constant) and (inside(node.value) or node.value == command))
    }


@pytest.mark.claim("E1", "M4")
def test_only_the_suite_and_bench_name_an_image_to_a_daemon_that_is_assembled() -> None:
    named = [
        (path, len(node.args), [word.arg for word in node.keywords])
        for path, tree in _modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"assemble", "daemon.assemble"}
    ]
    assert named == [("spl/bench/child.py", 3, ["image"]), ("spl/daemon.py", 3, ["log"])]


@pytest.mark.claim("E2")
def test_what_is_weakened_overrides_steps_of_the_real_launch_and_no_other() -> None:
    steps = {name for name, value in vars(Weakened).items() if inspect.isfunction(value)} - {"__init__"}
    assert steps == _STEPS - {"within"}
    assert all(name in vars(Launch) for name in steps)
