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


def test_what_is_closed_to_a_worker_is_refused_when_the_plan_is_made(daemon: Daemon) -> None:
    file, folder, within = daemon.play("closed", module="showing")

    layer, whom = ("separate_user", "others") if daemon.shape == "hosted" else ("mounts", "this user")
    for refused in (file, folder, within):
        assert refused["layer"] == layer
        assert refused["remedy"] == f"open it to {whom}, or take it out of the profile"
        assert "closed to" in refused["observed"] or "Permission denied" in refused["observed"]


@pytest.mark.claim("I3")
def test_the_home_is_not_shown_under_the_name_that_a_bind_mount_gives(mounting: Daemon) -> None:
    lies, holds = "home: it lies in it, under another name", "home: it holds some of it, under another name"

    assert mounting.play("aliases", module="showing") == {
        "/alias beside /ada/home": f"{holds}: /alias/home",
        "/alias/home beside /ada/home": lies,
        "/alias/home/run beside /ada/home": lies,
        "/other beside /ada/home": lies,
        "/ada beside /alias/home": f"{holds}: /ada/home",
        "/ada/home beside /alias/home": lies,
    }


@pytest.mark.claim("I3")
def test_what_is_mounted_beneath_a_shown_folder_later_can_not_be_written(mounting: Daemon) -> None:
    told = mounting.play("mounted_later", module="showing")

    # It does come along, and by its mode and its mount anyone could write there: EACCES is Landlock's.
    assert told["seen"] == ["tmpfs rw"]
    assert told["said"] == ["written", "13", "30"]
    assert told["made"] == []


def test_without_landlock_it_could_be_written_as_the_page_says(mounting: Daemon) -> None:
    told = mounting.play("mounted_later", module="showing", landlock=False)

    assert (told["said"], told["made"]) == (["written", "written", "30"], ["file"])
