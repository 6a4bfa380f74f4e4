"""What holds for every test: where CI runs them, a test that did not run is a test that failed.

With `--soak` what is left to `make soak` runs instead; see `left`. And `world_readable`, for the tests that start this
project under another uid.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from escape import installation
from tests.left import is_left

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from escape.installation import Installation

# No test modules by their names, but with assertions whose failures are to be explained too; before any is imported.
pytest.register_assert_rewrite(
    "tests.api.served",
    "tests.end_to_end.crash.checks",
    "tests.end_to_end.daemon",
    "tests.end_to_end.load",
    "tests.fuzz.attacked",
    "tests.kernel.doors",
    "tests.records.contract",
)

# The size that pytest-xdist gives its processes' terminal: a command that a test starts would go by it.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)


@pytest.fixture(scope="session")
def world_readable() -> Iterator[Installation]:
    """Give one copy for the session; this checkout may lie under a folder that is closed to others.

    A program of it runs as `subprocess.run([*copy.command, "-m", module], env=copy.env, user=uid, …)`.
    """
    with tempfile.TemporaryDirectory(prefix="spl-", dir="/tmp") as folder:
        copied = installation.copy(folder, rooms=(*installation.ROOMS, "contrib", "tests"))
        yield copied._replace(command=[*copied.command, "-W", "error"])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run what is left to make soak, and nothing else")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = bool(config.getoption("--soak"))
    config.hook.pytest_deselected(items=[item for item in items if is_left(item) != wanted])
    items[:] = [item for item in items if is_left(item) == wanted]


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
