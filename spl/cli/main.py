"""The `spl` command: its commands by name, and the one place that turns an error into an exit status."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

import click

from spl import __version__, journal
from spl.cli.options import COMPLETE, STREAM, Invocation
from spl.cli.text import shown
from spl.errors import HostRefused, Internal, SplError

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERRUPTED: Final = 130
_LOST: Final = (
    "mend that, and look at what was done ('spl runs list', 'spl token list') before doing it again"
)
_NEXT: Final = "\n    "

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("spl.cli.instance:init", "Make the home and the operator's token."),
    "serve": ("spl.cli.serve:serve", "Run the daemon."),
    "stop": ("spl.cli.instance:stop", "Stop the daemon and wait until it has ended."),
    "status": ("spl.cli.instance:status", "Show the daemon's health."),
    "doctor": (
        "spl.cli.doctor:doctor",
        "Say whether this host can confine workers, and what to do where it cannot.",
    ),
    "service": (
        "spl.cli.service:service",
        "Print the units, and what goes beside them, that run the daemon as a service.",
    ),
    "run": ("spl.cli.runs:run", "Start a run towards GOAL and wait until it has ended."),
    "runs": ("spl.cli.runs:runs", "List runs, show one, follow what they do, or stop one."),
    "know": ("spl.cli.records:know", "Write a record and print it as the log holds it."),
    "thread": ("spl.cli.records:thread", "Read a thread."),
    "why": (
        "spl.cli.why:why",
        "Tell of the run on THREAD what was asked, allowed and done, and how it ended.",
    ),
    "verify": (
        "spl.cli.verify:verify",
        "Recompute the ids of a thread, an export or a log, and check chains, verdicts and sums.",
    ),
    "member": ("spl.cli.principals:member", "Add members, list them, or take one away."),
    "token": ("spl.cli.principals:token", "Show the operator's token; make, replace or end anyone's."),
    "profile": (
        "spl.cli.profiles:profile",
        "Show, compare, judge and write profiles, and run commands under them.",
    ),
    "escape": (
        "spl.cli.escape:escape",
        "Try to get out of a sandboxed run, in every known way, and see what stops it.",
    ),
    "provider": ("spl.cli.provider:provider", "Try the model provider of the running daemon."),
    "config": ("spl.cli.config:config", "Show the configuration in force, or change it."),
    "backup": ("spl.cli.backup:backup", "Copy the log, whole and examined, into a file of its own."),
    "restore": (
        "spl.cli.backup:restore",
        "Put a backup in the place of the log: FILE, or the newest that is whole.",
    ),
    "errors": (
        "spl.cli.errors:errors",
        "List the errors and the exit statuses, or say what CODE means and what to do.",
    ),
    "completion": ("spl.cli.completion:completion", "Print what a shell needs to complete commands."),
    "console": ("spl.cli.console:console", "Watch the daemon and act on it."),
    "bench": ("spl.cli.bench:bench", "Measure what confinement and judgment cost on this host."),
    "version": ("spl.cli.instance:version", "Print the version."),
}
"""Each command's place and its short help, so that `spl --help` loads none of them."""

HEADINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "Daemon": ("init", "serve", "stop", "status", "doctor", "console", "service"),
    "Runs": ("run", "runs", "why"),
    "The log": ("know", "thread", "verify", "backup", "restore"),
    "Who may what": ("member", "token", "config"),
    "Confinement": ("profile", "escape", "bench"),
    "Models": ("provider",),
    "Help": ("errors", "completion", "version"),
}
"""What the commands are listed under, each once."""


class Commands(click.Group):
    """The commands of `COMMANDS`, each loaded when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the commands' names in the order of their headings."""
        del ctx
        return [name for names in HEADINGS.values() for name in names if name in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None if there is none of this name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their table, under their headings."""
        del ctx
        widest = max(map(len, COMMANDS))
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                # The same column under each heading.
                rows = [(name.ljust(widest), COMMANDS[name][1]) for name in names if name in COMMANDS]
                formatter.write_dl(rows)


# The group has each command by its name, for click to say which one may have been meant.
@click.command(
    cls=Commands,
    commands={name: click.Command(name) for name in COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="spl %(version)s")
def commands() -> None:
    """Run work loops in confined processes, each tool call judged by the kernel and on record."""


def main() -> NoReturn:
    """Run the command of this process's arguments and exit with its status."""
    # Now: the daemon takes the variable that says so out of its environment.
    to_journal = sys.stderr is not None and journal.is_at(2)
    invocation = Invocation(begins=journal.ERROR if to_journal else "")
    if os.environ.get(COMPLETE):
        _complete()
    try:
        status = commands.main(prog_name="spl", standalone_mode=False, obj=invocation)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        _show(error)
        sys.exit(error.exit_code)
    except SplError as error:
        _report(error, invocation)
        sys.exit(error.exit_status)
    except (OSError, UnicodeError) as error:
        lost = getattr(error, "filename", None) == "standard output"
        refused = HostRefused(_said(error), **({"remedy": _LOST} if lost else {}))
        _report(refused, invocation)
        # Standard output itself may be what failed: nothing more of it is to be flushed.
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(refused.exit_status)
    except MemoryError:
        _fail(HostRefused("the operating system refused more memory"), invocation)
    except Exception as error:  # noqa: BLE001 - a person is told in one sentence, whatever it was
        _fail(_fault(error), invocation)
    sys.exit(status if isinstance(status, int) else 0)


def _complete() -> NoReturn:
    """Answer the shell, which asks for how a command line may go on; of what fails here a person is not to hear."""
    with contextlib.suppress(BaseException):
        commands.main(prog_name="spl", standalone_mode=False)
    os._exit(0)


def _show(error: click.ClickException) -> None:
    """Tell of wrong usage as click does, but for what of the terminal's is in what was typed.

    That may be another's: the names of a folder's files, by a pattern.
    """
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    error.show(file := io.StringIO())
    head, label, said = file.getvalue().partition("Error: ")
    with contextlib.suppress(OSError):
        # Its own lists are lines that begin with a tab.
        lines = map(shown, said.removesuffix("\n").split("\n\t"))
        click.echo(f"{head}{label}{_NEXT.join(lines)}", err=True)


def _fail(error: SplError, invocation: Invocation) -> NoReturn:
    _report(error, invocation)
    sys.exit(error.exit_status)


def _fault(error: Exception) -> SplError:
    """Give a fault of our own with the place it came from, which whoever mends it needs; of threads the host's word."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return HostRefused("the operating system refused another thread")
    import traceback  # noqa: PLC0415 - no command that succeeds needs it

    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return Internal(f"the command failed with {type(error).__name__} at {place}")


def _said(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return f"this terminal's encoding cannot show what was to be printed: {error}"
    # A number is a descriptor's, and says nothing to a person.
    named = isinstance(error.filename, str | bytes)
    where = f" on {os.fsdecode(error.filename)!r}" if named else ""
    return f"the operating system refused{where}: {error.strerror or error}"


def _report(error: SplError, invocation: Invocation) -> None:
    if sys.stderr is None:
        return
    # The daemon may know better than the table what to do: which layer to mend, and how.
    remedy = error.fields.get("remedy")
    remedy = remedy if isinstance(remedy, str) else error.remedy
    lines = [f"spl: {error.code}: {shown(error.message.removesuffix('.'))}; {shown(remedy)}"]
    # A line of a file and the marks under it, each on a line of its own.
    excerpt = error.fields.get("excerpt")
    if isinstance(excerpt, str) and excerpt:
        lines += map(shown, excerpt.split("\n")[:2])
    if invocation.output in ("json", STREAM):
        lines.append(json.dumps({**error.wire(), "remedy": remedy}))
    try:
        click.echo("\n".join(f"{invocation.begins}{line}" for line in lines), err=True)
    except OSError:
        # It is full, and the exit status is all that can be told: Python, which would try once more, has another.
        sys.stderr = None


if __name__ == "__main__":
    main()
