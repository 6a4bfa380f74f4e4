"""The page that describes every command, made from the commands themselves."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING

import click

from spl.cli.main import commands

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMMON = {"home", "output"}

INTRODUCTION = """\
# Commands

Options stand after the command they belong to, as in `spl doctor --home PATH`; those that every command has (`version`
and `escape` have only `-o`) are these:

{common}
`-o json` prints a document on standard output, `-o table` is for people: a table is the default on a terminal, JSON
elsewhere; `serve`, `token show` and `version` print plain text unless JSON is asked for. The standard output of
`profile try` is the command's that is tried: its document is the last line on standard error, and only when it is asked
for. In a table, control characters and direction overrides of what comes from elsewhere are shown as escapes.

`stop` and `token show` work on a home alone, `token rotate` too when no daemon runs in it; `doctor` and `profile` do
without a home, and `escape` makes and throws away its own. Any other command finds its daemon by `--home`, else by
`SPL_URL` (`http://HOST:PORT`, with the bearer in `SPL_TOKEN`), else by `SPL_HOME`, its alias `SYNCROPEL_HOME`, or
`~/.syncro`; in a home it uses the operator's socket and needs no token.

It exits 0 only on success; `profile try` exits as its command did. An error is one line on standard error, `spl: CODE:
what failed; what to do`, under it the line of a profile or an expression that is at fault, and with `-o json` the
error object; its exit status stands in [errors.md](errors.md). 2 is wrong usage, 130 an interrupt.

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
    return _records(option for option in command.params if option.name not in COMMON)


def page() -> str:
    """Give the text of docs/commands.md."""
    every = dict(leaves())
    common = _table(option for option in every["spl init"].params if option.name in COMMON)
    return INTRODUCTION.replace("{common}", common) + "".join(_section(*each) for each in every.items())


def _section(name: str, command: click.Command) -> str:
    usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
    text = cleandoc(command.help or "")
    table = _table(option for option in command.params if option.name not in COMMON)
    return f"\n## {name}\n\n`{usage}`\n\n{text}\n" + (f"\n{table}" if table else "")


def _table(options: Iterable[click.Parameter]) -> str:
    rows = "".join(f"| {_cell(f'`{option}`')} | {_cell(help_)} |\n" for option, help_ in _records(options))
    return f"| option | |\n|---|---|\n{rows}" if rows else ""


def _records(options: Iterable[click.Parameter]) -> list[tuple[str, str]]:
    context = click.Context(commands)
    records = (each.get_help_record(context) for each in options if isinstance(each, click.Option))
    return [record for record in records if record is not None]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
