"""`spl profile new`: a small profile to begin with, in the home's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from bwrap import groups, lines, seccomp
from bwrap.lint import STARTS_WITH
from bwrap.needs import LEAST
from spl.cli.completion import profiles
from spl.cli.options import common, examples
from spl.cli.output import is_json, print_json, print_line
from spl.cli.profiles.lint import count, print_remark, remarks_on
from spl.cli.profiles.places import home_to_write, library_of, refusals
from spl.cli.profiles.saving import profile_name, require_free, save
from spl.cli.text import shown

if TYPE_CHECKING:
    from bwrap.profile import Profile

    Json = dict[str, Any]

_BEGIN: Final = """\
extends = {extends}
description = {description}
"""

_OFFER: Final = """
# What is said here is laid over {extends}: a value replaces, a list is added to, and "!word" takes one away.
# Each line below is one to take the mark from and change: those that leave it less first, then those that give it
# more. docs/profiles.md has every key and every group.

# [limits]                                           # less
{limits}

# [syscalls]
# allow = [
{less}#     "uname",                                       # more: a call, or a group of them, as "@write-files"
# ]

# [filesystem]                                       # more
# read_only = ["?/etc/hostname"]                     # a file to show; ? lets it be absent on a host
# tmpfs = [{{ path = "@scratch", size = "16M" }}]      # a folder to write in, in memory

# [[syscalls.when]]                                  # more: a call that only some arguments let through
# call = "ioctl"
# argument = 1
# equals = ["TIOCGWINSZ"]
"""

_LEAST: Final = {key: least for key, (least, *_) in LEAST.items()} | {"address_space": STARTS_WITH}
_TO_HALVE: Final = ("address_space", "open_files", "cpu_time")
_SPARED: Final = ("getgroups", "getegid", "lstat")
"""Calls that a run does without."""


@click.command(
    "new",
    short_help="Write a small profile to begin with.",
    epilog=examples(
        "spl profile new mine", "spl profile new tight --extends strict --description 'Less than strict.'"
    ),
)
@click.argument("name", callback=profile_name)
@click.option(
    "--extends",
    default="worker",
    show_default=True,
    metavar="PROFILE",
    help="What it is laid over.",
    shell_complete=profiles,
)
@click.option("--description", metavar="TEXT", help="One sentence on what it is for.")
@common
def new_profile(
    name: str, extends: str, description: str | None, home: str | None, output: str | None
) -> None:
    """Write a profile of your own that means what the one it extends means, with the lines to change it as comments.

    It is put into the profiles folder of the home, which is made if it is not there; a profile that is there already
    is left alone. What lint says of it is told at once.
    """
    with refusals():
        head = beginning(name, extends, description)
        where = home_to_write(home)
        library = library_of(where)
        require_free(library, where, name)
        text = head + offered(library.draft(name, head, str(where.profiles / f"{name}.toml")))
        path = save(library, where, name, text)
        remarks = remarks_on(library, name, {}, str(where.path), named=True)
    if is_json(output):
        print_json(
            {"object": "profile.new", "name": name, "extends": extends, "path": path, "remarks": remarks}
        )
        return
    print_line(f"written: {shown(path)}")
    for remark in remarks:
        print_remark(remark)
    print_line(f"{count(remarks)} in {name}")
    print_next(name)


def beginning(name: str, extends: str, description: str | None) -> str:
    """Give what a new profile says; raises `click.BadParameter` for what cannot stand in one."""
    said = f"What {extends!r} says, as {name!r}." if description is None else description
    try:
        return _BEGIN.format(extends=lines.quoted(extends), description=lines.quoted(said))
    except ValueError as error:
        raise click.BadParameter(f"{error}", param_hint="'--description' / '--extends'") from None


def offered(profile: Profile) -> str:
    """Give the comments with which a new profile ends, by what it means so far: lines for less of it, then for more."""
    limits = []
    for key in _TO_HALVE:
        now = getattr(profile.limits, key)
        if (less := max(now // 2, _LEAST.get(key, 1))) < now:
            line = f"# {key} = {lines.written_limit(key, less)}"
            limits.append(f"{line:<52} # it has {lines.written_limit(key, now)}")
    allowed = groups.rules(profile, seccomp.architecture()).allow
    call = next((f'"!{each}",' for each in _SPARED if each in allowed), None)
    less = "" if call is None else f"#     {call:<46} # less: a call to take away, which it can do without\n"
    return _OFFER.format(extends=lines.quoted(profile.chain[-2]), limits="\n".join(limits), less=less)


def print_next(name: str) -> None:
    """Print what is to be done with a profile that was just written."""
    for command, what in (
        (f"spl profile try {name} -- COMMAND", "run a command under it, and see what it is refused"),
        (f"spl profile explain {name}", "read what a process can do under it"),
        (f"spl profile lint {name}", "after each change"),
        (f"spl config set-profile {name}", "have the next sandboxed run go by it"),
    ):
        print_line(f"next: {command:<42} {what}")
