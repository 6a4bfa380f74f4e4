"""What holds for every test: where CI runs them, a test that did not run is a test that failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


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
