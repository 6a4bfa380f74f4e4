from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.claims import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# hashlib's own module, which Python 3.12 renamed: the worker takes whichever there is, to stay small.
STANDARD_LIBRARY = sys.stdlib_module_names | {"_sha256", "_sha2"}
PINS = sorted((ROOT / "requirements").glob("*.txt"))


def pyproject_names(*, of: str) -> set[str]:
    """Give the names that pyproject.toml asks for, of one kind."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    requirements: list[str] = {
        "runtime": pyproject["project"]["dependencies"],
        "bwrap": pyproject["project"]["optional-dependencies"]["bwrap"],
        "dev": pyproject["dependency-groups"]["dev"],
        "pipx": pyproject["dependency-groups"]["pipx"],
        "build": pyproject["build-system"]["requires"],
    }[of]
    return {re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in requirements}


def pins(path: Path) -> dict[str, str]:
    """Give the pinned names of a requirements file, each with the rest of its entry."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    entries = text.replace("\\\n", " ").splitlines()
    return {name: rest for name, _, rest in (entry.partition("==") for entry in entries)}


@pytest.mark.parametrize("path", PINS, ids=lambda path: path.name)
def test_every_pin_carries_hashes_and_nothing_says_where_to_download_it(path: Path) -> None:
    entries = pins(path)
    assert entries
    for name, rest in entries.items():
        assert re.fullmatch(r"[a-z0-9-]+", name), name
        assert re.fullmatch(r"\S+( ;[^;]*?)?(\s+--hash=sha256:[0-9a-f]{64})+", rest.rstrip()), name


@pytest.mark.parametrize("kind", ["runtime", "dev", "build", "bwrap", "pipx"])
def test_every_dependency_is_pinned(kind: str) -> None:
    assert pyproject_names(of=kind) <= set(pins(ROOT / "requirements" / f"{kind}.txt"))


def test_files_that_are_installed_together_pin_the_same_releases() -> None:
    seen: dict[str, str] = {}
    for path in PINS:
        for name, rest in pins(path).items():
            assert seen.setdefault(name, rest) == rest, name


def test_the_installed_packages_meet_the_ranges_that_the_project_asks_for() -> None:
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout


@pytest.mark.parametrize("kind", ["runtime", "dev", "build", "bwrap", "pipx"])
def test_every_dependency_has_its_reason_in_a_row(kind: str) -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    reasons = dict(re.findall(r"^\| `([^`]+)` \| (\S[^|]*) \|$", page, flags=re.MULTILINE))
    assert pyproject_names(of=kind) <= set(reasons)


def imports(source: Path) -> Iterator[str]:
    """Yield the absolute name of every module that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", ["loop", "worker"])
def test_what_runs_in_the_confined_process_needs_the_standard_library_and_the_loop_alone(room: str) -> None:
    sources = sorted((ROOT / "spl" / room).rglob("*.py"))
    assert sources
    foreign = {
        (source.name, name)
        for source in sources
        for name in imports(source)
        if name.partition(".")[0] not in STANDARD_LIBRARY
        and not f"{name}.".startswith(("spl.loop.", f"spl.{room}."))
    }
    assert not foreign
