"""A release is refused while anything that it promises is not so, and otherwise built with what proves it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from bwrap import host
from escape import image, report
from spl import __version__
from tests.claims import ROOT
from tests.project.test_checkout import kept_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Change = Callable[[Path], None]

HEADING = f"## {__version__} (2030-01-01)"
NOTHING_YET = "- Nothing has been released yet.\n"


def git(root: Path, *arguments: str) -> None:
    named = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.org")
    subprocess.run(["git", *named, *arguments], cwd=root, capture_output=True, check=True)


def release(root: Path) -> subprocess.CompletedProcess[str]:
    """Run what `make release` does, in another checkout."""
    return subprocess.run(
        [sys.executable, "requirements/release.py"],
        cwd=root, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(root)}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a checkout of which a release may be made: this one, with what `make escape` and its like would write."""
    root = tmp_path_factory.mktemp("ready")
    for path in kept_files():
        target = root / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    rewrite(root / "CHANGELOG.md", "## Unreleased\n", f"{HEADING}\n")
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    (root / "CHANGELOG.md").write_text(text.replace(NOTHING_YET, ""), encoding="utf-8")
    with closing(image.seal(host.find_python(host.Shape.HOSTED))) as sealed:
        said = report.load()
        for here in said["hosts"].values():
            here["image"] = sealed.digest
    report.save(said, root / "escape" / "report.json")
    (root / "docs" / "soak.md").write_text(f"| spl | {__version__} |\n")
    (root / "docs" / "matrix.md").write_text(f"On this machine, with spl {__version__}:\n")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Everything")
    return root


@pytest.fixture
def checkout(ready: Path) -> Iterator[Path]:
    """Give the checkout, and put it back as it was."""
    yield ready
    git(ready, "reset", "--quiet", "--hard")
    git(ready, "clean", "--quiet", "--force", "-dx")


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, path
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def red_row(root: Path) -> None:
    said = report.load(root / "escape" / "report.json")
    said["rows"][0]["ok"] = False
    report.save(said, root / "escape" / "report.json")


def row_gone(root: Path) -> None:
    said = report.load(root / "escape" / "report.json")
    said["rows"].pop()
    said["mutations"] = [each for each in said["mutations"] if each["shape"] == "hosted"]
    report.save(said, root / "escape" / "report.json")


def unnoticed_layer(root: Path) -> None:
    said = report.load(root / "escape" / "report.json")
    said["mutations"][0]["ok"] = False
    report.save(said, root / "escape" / "report.json")


def other_worker(root: Path) -> None:
    rewrite(root / "spl" / "worker" / "program.py", "import annotations\n", "import annotations\nLATER = 1\n")


def other_attempt(root: Path) -> None:
    rewrite(
        root / "escape" / "attempts" / "network.py", "import annotations\n", "import annotations\nLATER = 1\n"
    )


def other_profile(root: Path) -> None:
    rewrite(root / "profiles" / "worker.toml", 'file_size = "16M"', 'file_size = "15M"')


def other_version(root: Path) -> None:
    rewrite(root / "spl" / "__init__.py", f'"{__version__}"', '"99.0.0"')


def notes_left(root: Path) -> None:
    rewrite(root / "CHANGELOG.md", HEADING, f"## Unreleased\n\n### New\n- More.\n\n{HEADING}")


def denied(root: Path) -> None:
    rewrite(root / "CHANGELOG.md", f"{HEADING}\n\n", f"{HEADING}\n\n### Before upgrading\n{NOTHING_YET}\n")


IN_THE_WAY: dict[str, tuple[tuple[Change, ...], tuple[str, ...]]] = {
    "the report is red, and of other programs": (
        (red_row, unnoticed_layer, other_worker, other_profile, denied, notes_left),
        (
            " is red (",
            " nothing turns red (",
            "report in the shape hosted is of another program",
            "report is of other profiles",
            "CHANGELOG.md says '### New' under 'Unreleased'",
            f"CHANGELOG.md says under {__version__} that nothing has been released yet",
        ),
    ),
    "the version and an attempt are others": (
        (other_version, other_attempt, row_gone),
        (
            "report lacks 2 parts of the suite, the first is ",
            f"report is of version {__version__}, not 99.0.0",
            "report in the shape same-user is of another program",
            "CHANGELOG.md has no heading '## 99.0.0 (YYYY-MM-DD)'",
            "docs/soak.md is of another version: run 'make soak'",
            "docs/matrix.md is of another version: run 'make matrix'",
        ),
    ),
}


@pytest.mark.claim("E3")
@pytest.mark.parametrize("name", IN_THE_WAY)
def test_a_release_is_refused_with_every_reason_and_nothing_is_built(checkout: Path, name: str) -> None:
    changes, reasons = IN_THE_WAY[name]
    for change in changes:
        change(checkout)
    git(checkout, "commit", "--quiet", "--all", "--message", "Something else")
    try:
        refused = release(checkout)
    finally:
        git(checkout, "reset", "--quiet", "--hard", "HEAD~1")

    assert refused.returncode == 1
    assert [reason for reason in reasons if reason not in refused.stderr] == []
    assert refused.stderr.endswith("release: nothing was built\n")
    assert not (checkout / "dist").exists()


def test_a_release_of_what_is_not_committed_is_refused(checkout: Path) -> None:
    (checkout / "spl" / "new.py").touch()
    git(checkout, "config", "status.showUntrackedFiles", "no")

    refused = release(checkout)

    assert (refused.returncode, (checkout / "dist").exists()) == (1, False)
    assert refused.stderr == (
        "release: 1 files are not as committed, the first is spl/new.py: commit them or take them away\n"
        "release: nothing was built\n"
    )


def test_a_release_is_built_with_sums_and_the_list_of_its_pins(checkout: Path) -> None:
    built = release(checkout)

    assert built.returncode == 0, built.stderr
    dist = checkout / "dist"
    lines = [line.split() for line in (dist / "SHA256SUMS").read_text().splitlines()]
    sums = {named: digest for digest, named in lines}
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in dist.iterdir()
        if path.name != "SHA256SUMS"
    }
    name = f"spl-{__version__}"
    assert set(sums) == {
        f"{name}-py3-none-any.whl",
        f"{name}.tar.gz",
        f"{name}.cdx.json",
        f"{name}.requirements.txt",
    }
    assert json.loads((dist / f"{name}.cdx.json").read_bytes())["bomFormat"] == "CycloneDX"
