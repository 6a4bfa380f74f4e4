"""What a live worker is shown of the host, and how bubblewrap was told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.bwrap.conftest import Daemon


@pytest.mark.claim("I6")
def test_bubblewrap_has_no_environment_and_its_options_stand_in_no_command_line(daemon: Daemon) -> None:
    told = daemon.play("launcher", module="looks")

    assert told["environ"] == ""
    assert told["options"] == [told["bubblewrap"], "--args"]
    assert told["command_is_the_plans"]


def test_a_source_that_went_after_the_plan_was_made_is_refused_before_any_process(daemon: Daemon) -> None:
    told = daemon.play("gone_before_the_start", module="looks")

    assert (told["layer"], told["started"]) == ("mounts", 0)
    assert "/shown" in told["expected"]


@pytest.mark.claim("I3")
@pytest.mark.parametrize("called", ["plain", "a b\nc", "é#\\040", "--bind"])
def test_a_folder_of_any_name_is_shown_and_what_stands_in_it_is_not_made_on_the_host(
    daemon: Daemon, called: str
) -> None:
    told = daemon.play("shown", module="looks", called=called)

    assert told["seen"] == ["/empty", "/full", f"/full/{called}"]
    assert [path.rpartition("/")[2] for path in told["absent"]] == ["absent"]
    assert told["untouched"]


@pytest.mark.claim("I3")
def test_a_home_that_is_named_through_a_link_is_hidden_under_either_name(daemon: Daemon) -> None:
    seen = daemon.play("linked_home", module="looks")

    assert [path.split("-link", 1)[1] for path in seen] == [
        "",
        "/home",
        "/home/run",
        "/home/run/spl-worker.sock",
    ]
