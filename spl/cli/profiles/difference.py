"""`spl profile diff`: what changes in meaning from one profile to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bwrap import arguments, difference, render
from bwrap.errors import LayerError, ProfileError
from spl.cli.completion import profiles
from spl.cli.options import common, examples
from spl.cli.output import is_json, print_json, print_line, print_rows
from spl.cli.profiles.places import home_of, library_of, plan_of, refusals, short
from spl.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bwrap.difference import Difference
    from bwrap.profile import Profile
    from spl.home import Home

    Json = dict[str, Any]


@click.command(
    "diff",
    short_help="Show what changes from one profile to another.",
    epilog=examples("spl profile diff worker strict"),
)
@click.argument("before", shell_complete=profiles)
@click.argument("after", shell_complete=profiles)
@common
def diff_profiles(before: str, after: str, home: str | None, output: str | None) -> None:
    """Show what a process may do under AFTER and not under BEFORE, and the other way round.

    Both are compared with all that they extend: each value, each system call however it is named, and what
    bubblewrap would be told on this host. `+` is wider, `-` narrower, `~` neither. It succeeds whether they differ or
    not; in JSON `differences` is empty when they do not.
    """
    with refusals():
        where = home_of(home)
        library = library_of(where)
        one, other = library.load(before), library.load(after)
        found = difference.differences(one, other)
        options, lacking = _options(one, other, where)
    if is_json(output):
        print_json(
            {
                "object": "profile.difference",
                "before": {"name": one.name, "digest": one.digest},
                "after": {"name": other.name, "digest": other.digest},
                "differences": [each.wire() for each in found],
                "argv": [{"mark": mark, "option": option} for mark, option in options],
                "argv_lacking": lacking,
            }
        )
        return
    print_line(f"from {before} to {after}")
    if not found and not options:
        print_line("none: they mean the same")
        return
    if found:
        print_rows(("", "what", "before", "after", "where"), _rows(found))
    if options:
        print_line()
        print_line("bubblewrap's options on this host")
        for mark, option in options:
            print_line(f"{mark} {shown(option)}")
    if lacking:
        print_line(f"bubblewrap's options cannot be compared on this host: {shown(lacking)}")


def _rows(found: Sequence[Difference]) -> Iterator[Sequence[object]]:
    for each in found:
        yield (
            each.direction.mark,
            each.name,
            "" if each.before is None else each.before.value,
            "" if each.after is None else each.after.value,
            short(each.place) if each.place else "",
        )


def _options(one: Profile, other: Profile, home: Home) -> tuple[list[tuple[str, str]], str]:
    """Give the options that only one of two plans has, or why a plan cannot be made on this host."""
    try:
        listed = [
            render.option_lines(arguments.arguments(plan_of(profile, home))) for profile in (one, other)
        ]
    except (LayerError, ProfileError) as error:
        return [], str(error)
    return difference.option_differences(*listed), ""
