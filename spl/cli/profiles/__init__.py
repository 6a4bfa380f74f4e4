"""The commands that show what a profile says, what it does to a command, and that write one: a file for each.

They work on a home alone and need no daemon; without a home there are the shipped profiles. They import `bwrap` and,
of `spl`, the home, the settings and `spl.hardening`.
"""

from __future__ import annotations

import click

from spl.cli.profiles.difference import diff_profiles
from spl.cli.profiles.explain import explain_profile
from spl.cli.profiles.lint import lint_profiles
from spl.cli.profiles.new import new_profile
from spl.cli.profiles.render import render_profile
from spl.cli.profiles.show import list_profiles, show_profile
from spl.cli.profiles.trace import trace_profile
from spl.cli.profiles.trial import try_profile


class _InOrder(click.Group):
    """A group whose help lists its commands as they are used, not by their letters."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the commands' names in the order in which they were added."""
        del ctx
        return list(self.commands)


@click.group(cls=_InOrder)
def profile() -> None:
    """Show, compare, judge and write profiles, and run commands under them."""


for _command in (
    list_profiles,
    show_profile,
    explain_profile,
    diff_profiles,
    lint_profiles,
    render_profile,
    try_profile,
    trace_profile,
    new_profile,
):
    profile.add_command(_command)
