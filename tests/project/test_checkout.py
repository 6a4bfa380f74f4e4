from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.claims import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


def kept_files() -> Iterator[Path]:
    """Yield the project's own files: no caches, no environment, no history."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name == ".ci" or not (name.startswith(".") or name in {"__pycache__", "dist"})
        ]
        yield from (Path(folder, name) for name in names)


def test_no_file_names_the_place_of_this_checkout() -> None:
    here = re.compile(rb"(?<![\w.-])" + re.escape(os.fsencode(ROOT)) + rb"(?![\w.-])")
    assert [path for path in kept_files() if here.search(path.read_bytes())] == []


NOT_RUN = {
    "mark": ("@pytest.mark.skip(reason='no user namespaces')\ndef test_it(): ...", "no user namespaces"),
    "call": ("def test_it():\n    pytest.skip('no bubblewrap')", "no bubblewrap"),
    "module": ("pytest.importorskip('no_such_module')\ndef test_it(): ...", "no_such_module"),
    "expected": ("@pytest.mark.xfail(reason='known')\ndef test_it():\n    assert False", "known"),
}
"""Each way of a test not to run, or to fail for nothing, with the reason it gives."""


def test_a_test_that_did_not_run_fails_in_ci_and_says_why(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    for name, (body, _) in NOT_RUN.items():
        (tmp_path / f"test_{name}.py").write_text(f"import pytest\n{body}\n")
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"),
        *("--rootdir", str(tmp_path), str(tmp_path)),
    ]
    outside = {name: value for name, value in os.environ.items() if name != "CI"}

    in_ci = subprocess.run(
        command, env={**outside, "CI": "true"}, cwd=tmp_path, capture_output=True, text=True
    )
    assert in_ci.returncode == pytest.ExitCode.TESTS_FAILED, in_ci.stdout
    assert "2 failed, 2 errors in " in in_ci.stdout  # errors: what is skipped before its call
    for name, (_, reason) in NOT_RUN.items():
        said = rf"test_{name}\.py\S* did not run to its end, which CI counts as a failure: .*{reason}"
        assert re.search(said, in_ci.stdout), in_ci.stdout

    elsewhere = subprocess.run(command, env=outside, cwd=tmp_path, capture_output=True, text=True)
    assert elsewhere.returncode == pytest.ExitCode.OK, elsewhere.stdout
    assert "3 skipped, 1 xfailed in " in elsewhere.stdout


def test_make_alone_lists_every_target_with_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert phony
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = dict(line.split(maxsplit=1) for line in listed.stdout.splitlines())
    assert set(phony[1].split()) == set(lines)
