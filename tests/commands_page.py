"""The page that describes every command, made from the commands themselves."""

from __future__ import annotations

from inspect import cleandoc
from typing import TYPE_CHECKING

import click

from spl.cli.calling import commands
from spl.cli.commands import HEADINGS
from spl.cli.options import EXAMPLES, STREAMING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMMON = {"home", "output"}

INTRODUCTION = """\
# Commands

Options stand after the command they belong to, as in `spl doctor --home PATH`; those that every command has (`bench`,
`completion`, `escape`, `service` and `version` have only `-o`) are these:

{common}
`-o json` prints a document on standard output, `-o table` is for people: a table is the default on a terminal, JSON
elsewhere; `serve`, `service show`, `token show`, `completion` and `version` print plain text unless JSON is asked for.
The standard output of `profile try` and `profile trace` is the command's that is run: their document is the last line
on standard error, before an error, and only when it is asked for. In a table, control characters and direction
overrides of what comes from elsewhere are shown as escapes.

{streaming} also know `-o stream-json`: one JSON document
a line, each written as soon as it is there. `thread watch` and `runs tail` do so with `-o json` too, since what they
print has no end. What takes long shows how far it is on standard error, where that is a terminal.

`init`, `stop`, `backup`, `restore` and `token show` work on a home alone, `token rotate` too when no daemon runs in it;
`doctor`, `profile`, `service`, `errors` and `completion` do without a home, and `escape` and `bench` make and throw
away their own. Any other command finds its daemon by `--home`, else by `SPL_URL` (`http://HOST:PORT`, with the bearer
in `SPL_TOKEN`), else by `SPL_HOME`, its alias `SYNCROPEL_HOME`, or `~/.syncro`; in a home it uses the operator's socket
and needs no token. The daemon speaks no TLS: a token that is sent to another machine is warned of, and a tunnel (`ssh
-L`) keeps it secret.

It exits 0 only on success; `profile try` exits as its command did. An error is one line on standard error, `spl: CODE:
what failed; what to do`, under it the line of a profile or an expression that is at fault, and with `-o json` the
error object. `spl errors` lists codes, exit statuses and remedies, as [troubleshooting.md](troubleshooting.md) does. 2
is wrong usage, 130 an interrupt.

Completion in the shell, in the file that the shell reads at its start:

```text
eval "$(spl completion bash)"      # bash
eval "$(spl completion zsh)"       # zsh
spl completion fish | source       # fish
```

It completes commands, options and values: threads, members, tokens and rules by what the daemon answers within a
second, profiles by the home. It is silent about what fails, and leaves out what a shell would take for more than a
word.

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


def lines(command: click.Command) -> list[str]:
    """Give the lines of the examples that end a command's help."""
    said = (command.epilog or "").partition(f"{EXAMPLES}\n")[2]
    return [line.removeprefix("  ") for line in said.splitlines()]


def examples(command: click.Command) -> list[str]:
    """Give the examples that end a command's help, each on one line."""
    return "\n".join(lines(command)).replace("\\\n", " ").splitlines()


def page() -> str:
    """Give the text of docs/commands.md."""
    every = dict(leaves())
    common = _table(option for option in every["spl init"].params if option.name in COMMON)
    sections = ""
    for heading, words in HEADINGS.items():
        under = [_section(*each) for each in every.items() if each[0].split()[1] in words]
        sections += f"\n## {heading}\n{''.join(under)}"
    return INTRODUCTION.replace("{common}", common).replace("{streaming}", _listed(STREAMING)) + sections


def _section(name: str, command: click.Command) -> str:
    usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
    text = cleandoc(command.help or "")
    before = (command.epilog or "").partition("\b\n")[0].strip()
    text += f"\n\n{before}" if before else ""
    table = _table(option for option in command.params if option.name not in COMMON)
    shown = "\n".join(lines(command))
    return (
        f"\n### {name}\n\n`{usage}`\n\n{text}\n"
        + (f"\n{table}" if table else "")
        + f"\n```text\n{shown}\n```\n"
    )


def _listed(names: Iterable[str]) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}"


def _table(options: Iterable[click.Parameter]) -> str:
    rows = "".join(f"| {_cell(f'`{option}`')} | {_cell(help_)} |\n" for option, help_ in _records(options))
    return f"| option | |\n|---|---|\n{rows}" if rows else ""


def _records(options: Iterable[click.Parameter]) -> list[tuple[str, str]]:
    context = click.Context(commands)
    records = (each.get_help_record(context) for each in options if isinstance(each, click.Option))
    return [record for record in records if record is not None]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
