"""A bubblewrap that is another than the one whose digest stands in the receipt, or means harm to a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.bwrap.conftest import Daemon


@pytest.mark.claim("I12")
def test_a_bubblewrap_that_was_replaced_or_removed_after_the_plan_starts_nothing(daemon: Daemon) -> None:
    told = daemon.play("replaced", module="impostors")

    assert (told["receipt"]["path"], told["receipt"]["digest"]) == (told["path"], told["digest"])
    for now in ("replaced", "gone"):
        assert told[now] == {
            "layer": "sandbox",
            "expected": f"the {told['path']} that was examined when the daemon started",
            "observed": "another file, or none",
        }, now


@pytest.mark.claim("I12")
def test_a_process_that_is_not_the_monitors_child_is_neither_confined_nor_harmed(daemon: Daemon) -> None:
    told = daemon.play("names_a_foreign_process", module="impostors")

    assert told["expected"] == "a process that lives until it is released"
    assert not told["limited"]
    assert told["answer"] == "here\n"
