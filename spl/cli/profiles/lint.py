"""`spl profile lint`: what is wrong with profiles, each with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from bwrap.errors import ProfileError
from bwrap.library import Library, UnknownProfile
from bwrap.lint import Remark, Severity, lint_here
from spl.cli.completion import profiles
from spl.cli.options import common, examples
from spl.cli.output import is_json, print_json, print_line
from spl.cli.profiles.places import home_of, library_of, refusals
from spl.cli.text import shown
from spl.errors import ProfileBelowFloor, ProfileInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Json = dict[str, Any]

_BASE: Final = "base"


@click.command(
    "lint",
    short_help="Say what is wrong with profiles.",
    epilog=examples("spl profile lint", "spl profile lint worker strict"),
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=profiles)
@common
def lint_profiles(names: tuple[str, ...], home: str | None, output: str | None) -> None:
    """Say where profiles fall below the floor, and what in them may surprise.

    Without a name: every profile but `base`, which is there to be extended. It fails for a breach of the floor and
    for an error, which is a profile that cannot be used or that no run can start with, not for a warning.
    """
    with refusals():
        where = home_of(home)
        library = library_of(where)
        strays = library.strays()
        every = dict.fromkeys((*library.shipped(), *library.own(), *strays))
        chosen = tuple(dict.fromkeys(names)) or tuple(
            name for name in every if name != _BASE or name in strays
        )
        remarks = [
            remark
            for name in chosen
            for remark in remarks_on(library, name, strays, str(where.path), named=name in names)
        ]
    if is_json(output):
        print_json({"object": "list", "data": remarks, "has_more": False})
    else:
        for remark in remarks:
            print_remark(remark)
        print_line(f"{count(remarks)} in {shown(', '.join(chosen))}")
    for severity, kind, said in (
        (Severity.ERROR, ProfileInvalid, "there are errors in"),
        (Severity.BREACH, ProfileBelowFloor, "there are breaches of the floor in"),
    ):
        if at_fault := dict.fromkeys(each["profile"] for each in remarks if each["severity"] == severity):
            raise kind(f"{said} {', '.join(map(repr, at_fault))}", remedy="mend what is named above")


def remarks_on(
    library: Library, name: str, strays: Mapping[str, ProfileError], home: str, *, named: bool
) -> list[Json]:
    """Give every remark on a profile; that it cannot be used is one, and that a file bears its name in vain."""
    found = [Remark(Severity.ERROR, "", strays[name])] if name in strays else []
    # `base` is not judged when nobody asked for it.
    if named or name != _BASE:
        try:
            found += lint_here(library.load(name), home)
        except ProfileError as error:
            if isinstance(error, UnknownProfile) and name not in library.own():
                raise
            found.append(Remark(Severity.ERROR, "", error))
    return [{"profile": name, **each.wire()} for each in found]


def print_remark(remark: Json) -> None:
    """Print a remark with its place, and under it the line it is about."""
    where = ":".join(str(remark[key]) for key in ("file", "line", "column") if remark[key] is not None)
    row = f" ({remark['row']})" if remark["row"] else ""
    place = f"{remark['place']}: " if remark["place"] else ""
    print_line(f"{shown(where)}: {remark['severity']}{shown(row)}: {shown(place)}{shown(remark['reason'])}")
    for line in remark["excerpt"].split("\n") if remark["excerpt"] else ():
        print_line(shown(line))


def count(remarks: Sequence[Json]) -> str:
    """Say how many remarks of each severity there are."""
    found = []
    for severity in (Severity.ERROR, Severity.BREACH, Severity.WARNING):
        number = sum(remark["severity"] == severity for remark in remarks)
        plural = "breaches" if severity is Severity.BREACH else f"{severity}s"
        found.append(f"{number} {severity if number == 1 else plural}")
    return ", ".join(found)
