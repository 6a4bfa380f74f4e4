"""Commands of `spl` found in shell text, and whether the command line has them and their options."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

import click

from spl.cli.calling import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where a command can begin: at a line's start, after an operator, a prompt or an assignment, and in a substitution.
_BEGIN: Final = re.compile(
    r"(?:^|[|;&(`]|\$\(|\b(?:do|then|else|until|while|if|sudo|exec)\b|\$ |\w=\S*)\s*spl(?=\s|$)", re.MULTILINE
)
_END: Final = frozenset("|;&)<>\n`")


def calls(text: str) -> Iterator[list[str]]:
    """Yield the words after each `spl` that a shell would run, without what is redirected or piped."""
    joined = re.sub(r"\\\n", " ", re.sub(r"<<-?'?(\w+)'?(.*)\n(?:.*\n)*?\s*\1\n", r"\2\n", text))
    for found in _BEGIN.finditer(joined):
        yield list(_words(joined[found.end() :]))


def wrong(words: list[str]) -> str | None:
    """Say what is wrong with the words after an `spl`, or give None; a `…` among them stands for anything.

    The usage lines of the page of commands may be given too: click's `[OPTIONS]` is none.
    """
    command: click.Command = commands
    context = click.Context(command, info_name="spl")
    rest = [word for word in words if word not in ("…", "[OPTIONS]")]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        named = command.get_command(context, rest[0])
        if named is None:
            return f"there is no command {context.command_path} {rest[0]}"
        command, rest = named, rest[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    try:
        _, left, _ = command.make_parser(context).parse_args(list(rest))
    except click.UsageError as error:
        return f"{context.command_path}: {error.format_message()}"
    if left and not isinstance(command, click.Group):
        return f"{context.command_path}: takes no {left[0]!r}"
    return None


def _words(text: str) -> Iterator[str]:
    """Yield the words of one simple command, each as the shell would take it, as far as quotes go."""
    word = ""
    place = 0
    while place < len(text):
        piece = _piece(text, place)
        place += len(piece)
        if piece in _END or (piece == "#" and not word):
            break
        if piece.isspace():
            if word:
                yield _bare(word)
            word = ""
        else:
            word += piece
    # The number of a descriptor that is redirected is no word.
    if word and not (word.isdigit() and text[place - 1 : place] in "<>"):
        yield _bare(word)


def _piece(text: str, start: int) -> str:
    """Give what stands together at a place: a quoted text, a substitution, or a character."""
    if text[start] == "'":
        return text[start : (text.find("'", start + 1) + 1) or len(text)]
    if text[start] == "\\":
        return text[start : start + 2]
    if text[start] == '"':
        end = start + 1
        while end < len(text) and text[end] != '"':
            end += len(_piece(text, end)) if text[end] in "\\$" else 1
        return text[start : end + 1]
    if text.startswith("$(", start):
        end = start + 2
        while end < len(text) and text[end] != ")":
            end += len(_piece(text, end))
        return text[start : end + 1]
    return text[start]


def _bare(word: str) -> str:
    if "$(" in word:
        return "SUBSTITUTED"
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word
