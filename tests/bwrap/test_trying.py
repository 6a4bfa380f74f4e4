from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bwrap import trying
from bwrap.errors import LayerError
from bwrap.host import Shape
from bwrap.library import Library
from bwrap.mounts import Kind
from bwrap.plan import Places, Plan
from bwrap.supervise import Exit
from bwrap.trying import Tried
from tests.bwrap.stage import Stage, examine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.bwrap.conftest import Daemon


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        os.chmod(stage.folder, 0o755)
        yield stage


def script(stage: Stage, text: str, name: str = "script") -> str:
    path = Path(stage.folder, name)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def prepared(
    stage: Stage, command: Sequence[str], read_only: Sequence[str] = (), name: str = "worker"
) -> trying.Prepared:
    return trying.prepare(
        Library().load(name), examine(), Places(stage.home, f"{stage.folder}/w"), command, read_only
    )


def targets(plan: Plan) -> set[str]:
    return {mount.target for mount in plan.mounts}


def test_a_command_is_shown_with_its_file_and_what_it_loads_and_nothing_else_is_added(stage: Stage) -> None:
    found = prepared(stage, ("/usr/bin/id", "-u"))
    assert found.command == (examine().python.env, "-i", "PATH=/usr/bin", "/usr/bin/id", "-u")
    assert "/usr/bin/id" in found.added
    assert targets(found.plan) == (targets(stage.plan()) | set(found.added)) - {"/spl-worker.pyc"}


def test_no_worker_program_stands_in_a_sandbox_that_tries_a_command(stage: Stage) -> None:
    found = prepared(stage, ("/usr/bin/id",))
    assert not list(found.plan.find(Kind.IMAGE))
    assert found.plan.filter.digest == stage.plan().filter.digest
    assert found.plan.limits == stage.plan().limits


def test_what_the_profile_shows_already_is_not_said_to_be_added(stage: Stage) -> None:
    python = examine().python.path
    assert prepared(stage, (python,)).added == ()


def test_a_script_is_shown_with_its_interpreter_and_what_env_is_told_to_run(stage: Stage) -> None:
    plain = prepared(stage, (script(stage, "#!/bin/cat\n"),)).added
    assert {f"{stage.folder}/script", "/usr/bin/cat"} <= set(plain)
    through = prepared(stage, (script(stage, "#! /usr/bin/env -S A=1 cat -u\n"),)).added
    assert {f"{stage.folder}/script", "/usr/bin/cat"} <= set(through)


def test_scripts_that_are_run_by_each_other_come_to_an_end(stage: Stage) -> None:
    script(stage, f"#!{stage.folder}/two\n", "one")
    script(stage, f"#!{stage.folder}/one\n", "two")
    assert trying.needs(f"{stage.folder}/one") == [f"{stage.folder}/one", f"{stage.folder}/two"]


@pytest.mark.parametrize("line", ["#!", "#! \n", "#!/no/such/interpreter\n", "#!/etc\n", "#!/usr/bin/env\n"])
def test_a_first_line_that_names_no_program_needs_no_more_than_it_names(stage: Stage, line: str) -> None:
    found = trying.needs(script(stage, line))
    assert found[0] == f"{stage.folder}/script"
    assert found[1:2] == (["/usr/bin/env"] if "env" in line else [])


def test_a_path_that_is_asked_for_is_shown_read_only(stage: Stage) -> None:
    found = prepared(stage, ("/usr/bin/id",), ["/etc/passwd"])
    (mount,) = (each for each in found.plan.mounts if each.target == "/etc/passwd")
    assert (mount.kind, mount.source) == (Kind.READ_ONLY, "/etc/passwd")
    assert "/etc/passwd" in found.added


def test_a_folder_that_is_a_link_is_followed_to_the_program(stage: Stage) -> None:
    os.symlink("/usr/bin", f"{stage.folder}/link")
    assert prepared(stage, (f"{stage.folder}/link/id",)).command[3] == "/usr/bin/id"


@pytest.mark.parametrize("path", ["{home}", "{home}/token", "{folder}"])
def test_nothing_of_the_home_can_be_asked_for(stage: Stage, path: str) -> None:
    with pytest.raises(LayerError) as caught:
        prepared(stage, ("/usr/bin/id",), [path.format(home=stage.home, folder=stage.folder)])
    assert caught.value.layer in ("home", "separate_user")


def test_in_the_hosted_shape_a_command_that_its_uid_cannot_reach_is_refused_by_its_path(stage: Stage) -> None:
    assert examine().shape is Shape.HOSTED
    os.mkdir(f"{stage.folder}/closed", 0o700)
    path = script(stage, "#!/bin/sh\n", "closed/script")
    with pytest.raises(LayerError, match="closed to others") as caught:
        prepared(stage, (path,))
    assert (caught.value.layer, path in caught.value.expected) == ("separate_user", True)


def test_a_profile_without_the_worker_socket_says_everything_else() -> None:
    profile = Library().load("worker")
    without = trying.without_worker_socket(profile)
    assert without.filesystem.sockets == []
    assert without.filesystem.read_only == profile.filesystem.read_only
    assert profile.filesystem.sockets == ["@worker_socket"]
    assert (
        without.fault(("limits", "open_files"), "x").line == profile.fault(("limits", "open_files"), "x").line
    )


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (Exit(0, None), 0),
        (Exit(200, None), 200),
        (Exit(None, "SIGKILL"), 137),
        (Exit(None, "SIGINT"), 130),
        (Exit(None, f"SIG{signal.SIGRTMIN + 1}"), 128 + signal.SIGRTMIN + 1),
        (Exit(None, signal.Signals(signal.SIGRTMAX).name), 128 + signal.SIGRTMAX),
    ],
)
def test_an_exit_status_is_a_shells(ended: Exit, status: int) -> None:
    assert Tried(ended, None, "").status == status


# --- live, on both shapes; that nothing is left is checked with each ---


def test_a_command_is_watched_from_its_first_call_to_its_last(daemon: Daemon) -> None:
    source = "import os\ntry: os.kill(os.getpid(), 0)\nexcept OSError: os._exit(3)"
    found = daemon.play("tried", module="tries", strace="strace", source=source)
    assert (found["status"], found["unseen"]) == (3, "")
    assert ["syscalls", "kill", "EPERM", 1] in found["refused"]


@pytest.mark.parametrize("strace", ["strace", None], ids=["watched", "unwatched"])
@pytest.mark.one_shape
def test_a_command_that_its_limit_of_processor_time_killed_is_told_of(
    daemon: Daemon, strace: str | None
) -> None:
    found = daemon.play("spun", module="tries", strace=strace)
    row = ["limits", "processor time, where cpu_time is 1s", "SIGKILL", 1]
    assert (found["status"], found["killed"]) == (128 + signal.SIGKILL, row)
    assert (found["refused"] is None) == (strace is None)
    assert strace is None or row in found["refused"]


def test_a_command_that_is_killed_with_time_left_is_not_said_to_be_out_of_it(daemon: Daemon) -> None:
    found = daemon.play("killed", module="tries")
    assert (found["status"], found["killed"]) == (128 + signal.SIGKILL, None)


def test_a_command_that_nobody_watches_is_not_said_to_be_refused_nothing(daemon: Daemon) -> None:
    found = daemon.play("tried", module="tries")
    assert (found["status"], found["refused"], bool(found["unseen"])) == (0, None, True)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/no/such/strace", "strace cannot be started: No such file or directory"),
        ("/usr/bin/true", "strace cannot be attached: it ended without a word"),
    ],
)
def test_a_strace_that_does_not_work_keeps_no_command_from_running(
    daemon: Daemon, path: str, said: str
) -> None:
    found = daemon.play("tried", module="tries", strace=path)
    assert found == {"status": 0, "unseen": said, "refused": None, "killed": None}


@pytest.mark.parametrize("path", ["/no/such/bwrap", "/usr/bin/false", "/usr/bin/true"])
def test_a_sandbox_that_cannot_be_set_up_is_refused(daemon: Daemon, path: str) -> None:
    found = daemon.play("with_bubblewrap", module="tries", path=path)
    assert found["layer"] in ("sandbox", "separate_user")
    assert found["expected"].startswith("bubblewrap to ")


def test_a_command_that_is_called_off_while_it_is_held_never_runs(daemon: Daemon) -> None:
    assert daemon.play("cancelled", module="tries")
