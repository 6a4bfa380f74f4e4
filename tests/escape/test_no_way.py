"""Nothing in the daemon lets a layer pass: only the suite builds a weakened launch, or can name another image."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import bwrap
import spl
from bwrap.launch import Launch, launch
from escape.weakened import Weakened

ROOMS = [Path(package.__file__).parent for package in (bwrap, spl) if package.__file__]


def _modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted(room.rglob("*.py"))]


@pytest.mark.claim("E2", "I12")
def test_a_daemon_starts_what_it_confines_by_one_function_that_takes_no_word_on_layers() -> None:
    assert list(inspect.signature(launch).parameters) == ["plan", "image", "ledger", "seconds"]
    called = []
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="Launch") | ast.Attribute(attr="Launch")):
                    called.append((path.name, "called"))
                case ast.ClassDef(bases=bases) if any("Launch" in ast.unparse(base) for base in bases):
                    called.append((path.name, "subclassed"))
    assert called == [("launch.py", "called")]


@pytest.mark.claim("E2", "I12")
def test_only_the_command_line_reaches_the_suite_and_only_for_its_own_command() -> None:
    reaching = {
        path.relative_to(room.parent).as_posix()
        for room in ROOMS
        for path in sorted(room.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "escape")
        or (isinstance(node, ast.Import) and any(each.name.split(".")[0] == "escape" for each in node.names))
    }
    assert reaching == {"spl/cli/escape.py"}


@pytest.mark.claim("E1", "M4")
def test_only_the_suite_names_an_image_to_a_daemon_that_is_assembled() -> None:
    named = [
        (path.name, [word.arg for word in node.keywords])
        for path in _modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"assemble", "daemon.assemble"}
    ]
    assert named == [("daemon.py", [])]


@pytest.mark.claim("E2")
def test_what_is_weakened_overrides_steps_of_the_real_launch_and_no_other() -> None:
    steps = {name for name, value in vars(Weakened).items() if inspect.isfunction(value)} - {"__init__"}
    assert steps == {"options", "command", "descriptors", "identity", "limits", "attempts", "confirm"}
    assert all(name in vars(Launch) for name in steps)
