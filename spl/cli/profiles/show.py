"""`spl profile list` and `show`: the profiles there are, and what one says and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from bwrap import render
from bwrap.merge import dotted
from spl.cli.completion import profiles
from spl.cli.options import common, examples
from spl.cli.output import is_json, print_json, print_line, print_rows
from spl.cli.profiles.places import home_of, library_of, refusals, short
from spl.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bwrap.profile import Profile

    Json = dict[str, Any]

_DIGEST: Final = 12


@click.command(
    "list",
    short_help="List the profiles there are.",
    epilog=examples("spl profile list", "spl profile list -o json | jq -r '.data[].name'"),
)
@common
def list_profiles(home: str | None, output: str | None) -> None:
    """List the profiles that ship and those in the home's profiles folder.

    One below the floor can be shown and tried, and runs nothing. A file that cannot be used, also for bearing the
    name of a shipped profile, is listed with its error.
    """
    with refusals():
        rows = render.listed(library_of(home_of(home)))
    if is_json(output):
        print_json({"object": "list", "data": rows, "has_more": False})
        return
    print_rows(
        ("name", "from", "floor", "digest", "extends", "description"),
        (
            [
                row["name"],
                row["source"],
                row["floor"],
                (row["digest"] or "")[:_DIGEST],
                row["extends"],
                _about(row),
            ]
            for row in rows
        ),
    )


@click.command(
    "show",
    short_help="Show what a profile says, and where.",
    epilog=examples("spl profile show worker"),
)
@click.argument("name", shell_complete=profiles)
@common
def show_profile(name: str, home: str | None, output: str | None) -> None:
    """Show what a profile says, all that it extends included, and where each value was said.

    In JSON sizes are bytes and durations seconds. It succeeds below the floor too, and says so.
    """
    with refusals():
        found = library_of(home_of(home)).load(name)
        document = render.described(found)
    if is_json(output):
        print_json(document)
    else:
        _print_profile(found, document)


def _about(row: Json) -> str:
    return str(row["description"] if row["error"] is None else row["error"]["message"])


def _print_profile(found: Profile, document: Json) -> None:
    print_line(f"{document['name']}: {shown(document['description'])}")
    if document["extends"]:
        print_line(f"extends {', '.join(document['extends'])}")
    print_line(f"digest {document['digest']}")
    for breach in document["floor"]["breaches"]:
        print_line(f"below the floor: {shown(breach['reason'])}")
    print_line()
    print_rows(("", "value", "profile", "where"), _value_rows(found))


def _value_rows(found: Profile) -> Iterator[Sequence[object]]:
    table = None
    for path, said, origin in found.values():
        if len(path) > 1 and path[0] != table:
            table = path[0]
            yield (f"[{table}]", "", "", "")
        name, value = dotted(path[1:] or path), render.written(found, path, said)
        yield (
            f"  {name}" if len(path) > 1 else name,
            "(none)" if value == [] else value,
            origin.profile,
            short(origin.place),
        )
