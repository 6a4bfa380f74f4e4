"""The commands that show what a profile says, what it does to a command, and that write one: a file for each.

They work on a home alone and need no daemon; without a home there are the shipped profiles. They import `bwrap` and,
of `spl`, the home, the settings and `spl.hardening`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from spl.cli.group import Group

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "list": ("spl.cli.profiles.show:list_profiles", "List the profiles there are."),
    "show": ("spl.cli.profiles.show:show_profile", "Show what a profile says, and where."),
    "explain": (
        "spl.cli.profiles.explain:explain_profile",
        "Explain what a profile allows, for a reviewer.",
    ),
    "diff": ("spl.cli.profiles.difference:diff_profiles", "Show what changes from one profile to another."),
    "lint": ("spl.cli.profiles.lint:lint_profiles", "Say what is wrong with profiles."),
    "render": ("spl.cli.profiles.render:render_profile", "Show what it comes to on this host."),
    "try": ("spl.cli.profiles.trial:try_profile", "Run a command under a profile."),
    "trace": (
        "spl.cli.profiles.trace:trace_profile",
        "Run a command free, and draft the smallest profile for it.",
    ),
    "new": ("spl.cli.profiles.new:new_profile", "Write a small profile to begin with."),
}
"""Each command's place and its short help, in the order in which they are used."""


@click.group(cls=Group, table=COMMANDS)
def profile() -> None:
    """Show, compare, judge and write profiles, and run commands under them."""
