"""`spl console` in a real terminal, of a real daemon, with keys sent and screens read."""

from __future__ import annotations

import os
import re
import shlex
import signal
from typing import TYPE_CHECKING

import pytest

from spl.errors import IsolationUnavailable
from tests.end_to_end import scripts
from tests.end_to_end.screen import terminal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape
    from tests.end_to_end.model import Model
    from tests.end_to_end.screen import Screen

RED = "[31m"
GONE = "the daemon does not answer; trying again"


def environ(shape: Shape, home: Path, **more: str) -> Mapping[str, str]:
    return {**shape.environment, "SPL_HOME": str(home), **more}


def console(shape: Shape, *arguments: str) -> str:
    return shlex.join(shape.spl("console", *arguments))


def paste(screen: Screen, text: str) -> None:
    screen.tmux("set-buffer", text)
    screen.tmux("paste-buffer")


def begin(daemon: Daemon, goal: str) -> str:
    return str(daemon.start(goal)["thread"])


def test_a_run_is_watched_denied_and_stopped(hosted: Shape, home: Path, model: Model) -> None:
    impatient = {"SPL_RUN_GRACE_SECONDS": "0.2"}
    with (
        model.daemon(hosted, home, **impatient) as daemon,
        terminal(environ(hosted, home), width=180) as screen,
    ):
        daemon.set_transport("sandboxed")
        daemon.configure(
            topic="permission_rule", name="no-notes", action="deny", priority=5,
            expression='resource == "tool:record_note"', enabled=True,
        )  # fmt: skip
        screen.type(console(hosted))
        screen.until("operator sandboxed", "members sandboxed", "shape hosted", "connected")
        thread = begin(daemon, "Count \x1b[31m[red]the\u202e stars.")
        asked = model.asked()
        screen.until("running", "1 running", r"Count \x1b[31m")
        asked.answer(scripts.calling(scripts.NOTE))
        asked = model.asked()
        screen.until("deny rule no-notes: record_note")
        screen.press("Enter")
        screen.until(
            thread,
            r"profile worker: Count \x1b[31m[red]the\u202e stars.",
            "18 of 18 layers",
            "record_note by layer rule, rule no-notes",
        )
        screen.press("Tab")
        screen.until("LAYER", "FINDINGS", "landlock")
        screen.press("Tab")
        shown = screen.until("pid", "MiB", gone="LAYER")
        assert str(daemon.worker_pid(thread)) in shown
        screen.press("Tab", "x")
        screen.until(
            f"stop the run {thread} of", f"POST /v1/runs/{thread}/events", 'type: "stop"', "y does it"
        )
        assert daemon.request("GET", f"/v1/runs/{thread}")["state"] == "running"
        screen.press("y")
        screen.until("the run was told to stop")
        asked.wait_until_broken_off()
        screen.until("ended", "cancelled, stopped", "stopped by did:sync:user:")
        screen.press("3")
        # Its hits are read anew when a verdict names a rule.
        shown = screen.until("no-notes", "deny", "EXPRESSION")
        assert re.search(r"no-notes +deny +on +1 ", shown)
        screen.press("4")
        screen.until("run ended", thread)
        screen.press("q")
        screen.until("$ ")


def test_rules_transports_and_profiles_are_changed_from_the_console(hosted: Shape, home: Path) -> None:
    with hosted.daemon(home) as daemon, terminal(environ(hosted, home)) as screen:
        screen.type(console(hosted))
        screen.until("members sandboxed", "connected")
        screen.press("T")
        screen.until("WARNING", "no layer would confine it")
        # A terminal that does not tell a paste from keys: neither what it opens nor what is open is confirmed by it.
        paste(screen, "yes")
        screen.press("n")
        screen.until("nothing was changed")
        paste(screen, "Ty")
        screen.until("WARNING", "no layer would confine it")
        screen.press("n")
        screen.until("nothing was changed")
        screen.press("t")
        screen.until('"sandboxed"')
        screen.press("y")
        screen.until("operator sandboxed")
        screen.press("a")
        screen.tmux("send-keys", "-l", "no-sums")
        screen.press("Tab", "Tab", "Tab")
        screen.tmux("send-keys", "-l", 'resourc == "tool:calculate"')
        screen.press("Enter")
        screen.until("write the rule no-sums, enabled?")
        screen.press("y")
        # What was typed is there again, under what is wrong with it.
        screen.until("EXPRESSION_INVALID", 'resourc == "tool:calculate"')
        screen.press(*["BSpace"] * 20)
        screen.tmux("send-keys", "-l", 'e == "tool:calculate"')
        screen.press("Enter")
        screen.until("write the rule no-sums, enabled?")
        screen.press("y")
        screen.until("the rule no-sums is written, enabled", "deny    on")
        screen.press("d")
        screen.until("write the rule no-sums, disabled?")
        screen.press("y")
        screen.until("the rule no-sums is written, disabled", "deny    off")
        screen.press("p")
        screen.until("base (can't be chosen: it is below the floor)", "worker (in force)", "strict")
        screen.press("k", "Enter", "Enter")
        screen.until("confine sandboxed runs by the profile strict?")
        screen.press("y")
        screen.until("profile strict", "is in force")
        loop = daemon.request("GET", "/v1/engine/health")["work_loop"]
        (rule,) = daemon.request("GET", "/v1/rules")["data"]
    assert (loop["transport"], loop["member_transport"], loop["profile"]) == (
        "sandboxed",
        "sandboxed",
        "strict",
    )
    assert (rule["expression"], rule["enabled"]) == ('resource == "tool:calculate"', False)


def test_a_refused_start_is_shown_and_a_restart_is_survived(hosted: Shape, home: Path) -> None:
    with terminal(environ(hosted, home)) as screen:
        with hosted.daemon(home) as daemon:
            screen.type(console(hosted))
            screen.until("connected")
            own = home / "profiles" / "mine.toml"
            own.write_text('extends = "worker"\ndescription = "Mine."\n')
            daemon.set_transport("sandboxed")
            daemon.configure(topic="work_loop_profile", profile="mine")
            done = daemon.finish(begin(daemon, "First."))["thread"]
            own.write_text('extends = "nothing"\n')
            with pytest.raises(IsolationUnavailable):
                daemon.start("Second.")
            screen.until("refused", "layer profile", done[-8:])
            screen.press("Home", "Enter")
            screen.until("a start that was refused", "remedy:")
            screen.press("Escape")
            daemon.stop()
            # What was known stays on the screen.
            screen.until(GONE, "layer profile", "2 of 2 rows")
        own.write_text('extends = "worker"\ndescription = "Mine."\n')
        with hosted.daemon(home) as daemon:
            screen.until("connected", "layer profile", "2 of 2 rows", gone=GONE)
            third = daemon.finish(begin(daemon, "Third."))["thread"]
            screen.until(third[-8:], "3 of 3 rows")
            screen.press("4")
            # The log of the daemon before is still there, and each line once.
            shown = screen.until("sandboxed start refused", "stopping", "run ended")
            assert shown.count("the log is open") == 2


def test_a_member_watches_its_own_runs_over_tcp_and_a_pipe_gets_one_plain_frame(
    hosted: Shape, home: Path
) -> None:
    with hosted.daemon(home) as daemon:
        theirs = daemon.finish(begin(daemon, "Not yours."))["thread"]
        token = daemon.request("POST", "/v1/members", {"label": "mia"})["token"]
        mine = daemon.client_of(token).request("POST", "/v1/work/loop", {"goal": "Mine."})["thread"]
        daemon.finish(mine)
        where = {"SPL_URL": f"http://127.0.0.1:{daemon.port}", "SPL_TOKEN": token}
        with terminal({**hosted.environment, **where}, width=100) as screen:
            screen.type(console(hosted))
            shown = screen.until("this token sees its own runs", mine[-8:], "1 of 1 rows")
            assert theirs[-8:] not in shown
            screen.press("x", "q")
            screen.until("$ ", gone="1 of 1 rows")
            screen.type(f"clear; TERM=dumb {console(hosted)}")
            screen.until("1 of 1 rows", "\n$\n")
            assert not screen.flag("alternate_on")
        once = hosted.run("console", "--home", str(home))
    assert (once.returncode, once.stderr) == (0, "")
    assert "\x1b" not in once.stdout
    assert "2 of 2 rows" in once.stdout
    gone = hosted.run("console", "--once", "--home", str(home))
    assert gone.returncode == 16
    assert "DAEMON_UNREACHABLE" in gone.stderr


@pytest.mark.parametrize(
    ("ending", "status"), [("q", 0), ("C-c", 130), ("C-\\", 131), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_terminal_is_as_it_was_however_the_console_ends(
    hosted: Shape, home: Path, ending: str | signal.Signals, status: int
) -> None:
    assert hosted.run("init", "--home", str(home)).returncode == 0
    with terminal(environ(hosted, home)) as screen:
        screen.type("ulimit -c 0; before=$(stty -g)")
        screen.type(f'{console(hosted)}; echo status $?; [ "$before" = "$(stty -g)" ] && echo as it was')
        screen.until(GONE)
        assert screen.flag("alternate_on")
        assert not screen.flag("cursor_flag")
        if isinstance(ending, str):
            screen.press(ending)
        else:
            os.kill(screen.job(), ending)
        screen.until(f"status {status}\nas it was\n", gone=GONE)
        assert not screen.flag("alternate_on")
        assert screen.flag("cursor_flag")
        assert screen.flag("wrap_flag")


def test_the_console_is_suspended_continued_and_resized(hosted: Shape, home: Path) -> None:
    assert hosted.run("init", "--home", str(home)).returncode == 0
    with terminal(environ(hosted, home)) as screen:
        screen.type(console(hosted))
        screen.until(GONE)
        assert RED in screen.tmux("capture-pane", "-e", "-p")
        screen.press("C-z")
        screen.until("Stopped")
        assert (screen.flag("alternate_on"), screen.flag("cursor_flag")) == (False, True)
        screen.type("echo still here")
        screen.until("\nstill here")
        screen.type("fg")
        screen.until(GONE, gone="still here")
        os.kill(screen.job(), signal.SIGSTOP)
        screen.until("Stopped")
        screen.type("fg")
        screen.press("5")
        screen.until(GONE, "Nothing is written before you have seen it and said y.", gone="Stopped")
        screen.press("1")
        for width, height in ((40, 12), (20, 5), (3, 2), (150, 40)):
            screen.tmux("resize-window", "-x", str(width), "-y", str(height))
            screen.press("5" if width > 100 else "j")
        screen.until(GONE, "Nothing is written before you have seen it and said y.")
        screen.press("q")
        screen.until("$ ", gone=GONE)
        screen.type(f"NO_COLOR=1 {console(hosted)}")
        screen.until(GONE)
        assert RED not in screen.tmux("capture-pane", "-e", "-p")
        screen.press("C-c")
        screen.until("$ ", gone=GONE)
