"""What the process of `spl` is asked for, called: the one place that turns an error into an exit status."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Final, NoReturn

import click

from spl import __version__, journal
from spl.cli.commands import ABOUT, COMMANDS, HEADINGS, overview
from spl.cli.group import Group
from spl.cli.options import COMPLETE, STREAM, Invocation
from spl.cli.text import shown
from spl.errors import HostRefused, Internal, SplError

_LOST: Final = (
    "mend that, and look at what was done ('spl runs list', 'spl token list') before doing it again"
)
_NEXT: Final = "\n    "


class _Commands(Group):
    """The commands of `COMMANDS`, under their headings."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what `spl --help` prints without click."""
        del ctx
        formatter.write(overview(formatter.width))


_ORDER: Final = tuple(name for names in HEADINGS.values() for name in names)


@click.command(
    cls=_Commands,
    table={name: COMMANDS[name] for name in _ORDER},
    help=ABOUT,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="spl %(version)s")
def commands() -> None:
    """Do nothing by itself."""


def call() -> int:
    """Run the command of this process's arguments and give its exit status; raises KeyboardInterrupt."""
    # Now: the daemon takes the variable that says so out of its environment.
    to_journal = sys.stderr is not None and journal.is_at(2)
    invocation = Invocation(begins=journal.ERROR if to_journal else "")
    if os.environ.get(COMPLETE):
        _complete()
    try:
        status = commands.main(prog_name="spl", standalone_mode=False, obj=invocation)
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        _show(error)
        return error.exit_code
    except SplError as error:
        return _fail(error, invocation)
    except (OSError, UnicodeError) as error:
        lost = getattr(error, "filename", None) == "standard output"
        refused = HostRefused(_said(error), **({"remedy": _LOST} if lost else {}))
        _report(refused, invocation)
        # Standard output itself may be what failed: nothing more of it is to be flushed.
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(refused.exit_status)
    except MemoryError:
        return _fail(HostRefused("the operating system refused more memory"), invocation)
    except Exception as error:  # noqa: BLE001 - a person is told in one sentence, whatever it was
        return _fail(_fault(error), invocation)
    return status if isinstance(status, int) else 0


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


def _fail(error: SplError, invocation: Invocation) -> int:
    _report(error, invocation)
    return error.exit_status


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
