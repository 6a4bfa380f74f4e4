"""The page that describes every command, made from the commands themselves."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING

import click

from spl.cli.main import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMON = {"home", "output"}

INTRODUCTION = """\
# Commands

Every command takes `-o json` for a document on standard output and `-o table` for people: a table is the default on
a terminal, JSON elsewhere; `serve`, `token show` and `version` print plain text unless JSON is asked for. In a table,
control characters and direction overrides of what comes from elsewhere are shown as escapes.

`stop` and `token show` work on a home alone, `doctor` and `profile` without one too. Any other command finds its
daemon by `--home`, else by `SPL_URL` (`http://HOST:PORT`, with the bearer in `SPL_TOKEN`), else by `SPL_HOME`, its
alias `SYNCROPEL_HOME`, or `~/.syncro`; in a home it uses the operator's socket and needs no token.

It exits 0 only on success; `profile try` exits as its command did. An error is one line on standard error, `spl: CODE:
what failed; what to do`, under it the line of a profile that is at fault, and with `-o json` the error object; its exit
status stands in [errors.md](errors.md). 2 is wrong usage, 130 an interrupt.

Completion in the shell, in the file that the shell reads at its start:

```
eval "$(_SPL_COMPLETE=bash_source spl)"      # bash
eval "$(_SPL_COMPLETE=zsh_source spl)"       # zsh
_SPL_COMPLETE=fish_source spl | source       # fish
```

Made by `make docs` from the commands.
"""


def leaves(command: click.Command = commands, name: str = "spl") -> Iterator[tuple[str, click.Command]]:
    """Give every command that is no group, with the words it is called by."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        child = command.get_command(context, word)
        if child is not None:
            yield from leaves(child, f"{name} {word}")


def documented(command: click.Command) -> list[tuple[str, str]]:
    """Give the options of its own that a person can use, each as it is written and with its help."""
    context = click.Context(command)
    records = (
        option.get_help_record(context)
        for option in command.params
        if isinstance(option, click.Option) and option.name not in COMMON
    )
    return [record for record in records if record is not None]


def page() -> str:
    """Give the text of docs/commands.md."""
    return INTRODUCTION + "".join(_section(name, command) for name, command in leaves())


def _section(name: str, command: click.Command) -> str:
    usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
    text = cleandoc(command.help or "")
    rows = "".join(f"| {_cell(f'`{option}`')} | {_cell(help_)} |\n" for option, help_ in documented(command))
    table = f"\n| option | |\n|---|---|\n{rows}" if rows else ""
    return f"\n## {name}\n\n`{usage}`\n\n{text}\n{table}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
