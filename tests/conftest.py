"""What holds for every test: where CI runs them, a test that did not run is a test that failed.

And `world_readable`, for the tests that start this project under another uid.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_HERE = Path(__file__).resolve().parent.parent


class Copy(NamedTuple):
    """A copy of this project and of all it imports that any uid can read: how to start a Python on it."""

    folder: str
    command: list[str]
    env: dict[str, str]


@pytest.fixture(scope="session")
def world_readable() -> Iterator[Copy]:
    """Give one copy for the session; this checkout may lie under a folder that is closed to others.

    A program of it runs as `subprocess.run([*copy.command, "-m", module], env=copy.env, user=uid, …)`.
    """
    with tempfile.TemporaryDirectory(prefix="spl-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        packages = f"{folder}/packages"
        shutil.copytree(sysconfig.get_path("purelib"), packages, copy_function=_link, symlinks=True)
        without = shutil.ignore_patterns("__pycache__", ".*")
        for room in ("spl", "bwrap", "profiles", "tests"):
            shutil.copytree(_HERE / room, f"{folder}/{room}", ignore=without)
        for path, _, names in os.walk(folder):
            os.chmod(path, 0o755)
            if not path.startswith(packages):
                for name in names:
                    os.chmod(f"{path}/{name}", 0o644)
        # The interpreter under the virtual environment, whose own folder may be closed too. Python names its
        # packages by version and ABI, so it must be the very one that runs this.
        command = [os.path.realpath(sys.executable), "-s", "-P", "-W", "error"]
        yield Copy(folder, command, {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder}:{packages}"})


def _link(source: str, target: str) -> str:
    """Copy a file, as a second name of it where that is possible and everyone may read it."""
    if os.stat(source).st_mode & 0o004:
        try:
            os.link(source, target)
        except OSError:
            pass  # another file system, or one that knows no links
        else:
            return target
    shutil.copyfile(source, target)
    os.chmod(target, 0o644)
    return target


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a report of a skip or an expected failure into that of a failure which says why."""
    if not (os.environ.get("CI") and report.outcome == "skipped"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
    # pytest tells an expected failure from a skip by this attribute
    vars(report).pop("wasxfail", None)
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid} did not run to its end, which CI counts as a failure: {reason}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report
