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


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("@pytest.mark.skip(reason='no user namespaces')\ndef test_it(): ...", "no user namespaces"),
        ("def test_it():\n    pytest.skip('no bubblewrap')", "no bubblewrap"),
        (
            "pytest.importorskip('a_module_that_is_not_there')\ndef test_it(): ...",
            "a_module_that_is_not_there",
        ),
        ("@pytest.mark.xfail(reason='known')\ndef test_it():\n    assert False", "known"),
    ],
    ids=["mark", "call", "module", "expected-failure"],
)
def test_a_test_that_did_not_run_fails_in_ci_and_says_why(tmp_path: Path, body: str, reason: str) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_skipping.py").write_text(f"import pytest\n{body}\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    outside = {name: value for name, value in os.environ.items() if name != "CI"}

    in_ci = subprocess.run(
        command, env={**outside, "CI": "true"}, cwd=tmp_path, capture_output=True, text=True
    )
    assert in_ci.returncode in {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}, in_ci.stdout
    assert "which CI counts as a failure" in in_ci.stdout
    assert reason in in_ci.stdout

    elsewhere = subprocess.run(command, env=outside, cwd=tmp_path, capture_output=True, text=True)
    assert elsewhere.returncode in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}, elsewhere.stdout


def test_make_alone_lists_every_target_with_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert phony
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = dict(line.split(maxsplit=1) for line in listed.stdout.splitlines())
    assert set(phony[1].split()) == set(lines)
