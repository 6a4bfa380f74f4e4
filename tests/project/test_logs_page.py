from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.logs_page import Event, events

if TYPE_CHECKING:
    from pathlib import Path

LOGGER = '_log = structlog.get_logger("spl.test")\n'


def written(folder: Path, *calls: str) -> dict[str, Event]:
    """Give the events of a module that makes these calls."""
    (folder / "module.py").write_text(LOGGER + "\n".join(calls))
    return events(folder)


def test_an_event_has_its_level_its_logger_and_each_field_that_a_call_gives_it(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        '_log.info("begun", thread=1)',
        '_log.exception("failed", thread=1)',
        '_log.error("failed", error=2)',
        '_log.error("refused", actor=1, **refusal.wire())',
    )
    assert found == {
        "begun": Event("info", "spl.test", ["thread"]),
        "failed": Event("error", "spl.test", ["thread", "exception", "error"]),
        "refused": Event("error", "spl.test", ["actor", "layer", "expected", "observed", "remedy"]),
    }


@pytest.mark.parametrize(
    "call",
    [
        '_log.info(f"run {thread} begun")',
        '_log.info("run %s begun", thread)',
        '_log.info("begun", run=1)',
        '_log.info("begun", level=1)',
        '_log.info("begun", **more)',
        '_log.debug("begun")',
        'log.info("begun")',
        'logging.warning("begun")',
        '_log.info("begun")\n_log.error("begun")',
    ],
)
def test_a_call_that_cannot_be_told_of_is_refused_with_its_place(tmp_path: Path, call: str) -> None:
    with pytest.raises(ValueError, match=r"/module\.py:[23]: "):
        written(tmp_path, call)
