"""`spl profile explain`: a profile as a page for whoever has to answer for it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import click

from bwrap import explain
from bwrap.errors import LayerError, ProfileError
from bwrap.library import SHIPPED
from spl.cli.completion import profiles
from spl.cli.options import common, examples
from spl.cli.output import is_json, print_json, print_line
from spl.cli.profiles.places import home_of, library_of, plan_of, refusals
from spl.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDTH: Final = 96
_WORKER: Final = "worker"


@click.command(
    "explain",
    short_help="Explain what a profile allows, for a reviewer.",
    epilog=examples("spl profile explain worker", "spl profile explain strict -o json | jq .worst_case"),
)
@click.argument("name", shell_complete=profiles)
@common
def explain_profile(name: str, home: str | None, output: str | None) -> None:
    """Explain a profile to someone who has to answer for it: what a process can do under it, and what it cannot.

    What it can reach, change, see and call, its limits and the most memory it can take up, the layers that hold that,
    where it differs from `worker` and who said so, and what it does not protect. Every sentence comes from the profile
    with all that it extends and from its plan on this host, none from its description. In JSON the same sentences
    stand in `sections`. It succeeds below the floor too, and says so.
    """
    with refusals():
        where = home_of(home)
        library = library_of(where)
        found = library.load(name)
        plan, lacking = None, ""
        try:
            plan = plan_of(found, where)
        except (LayerError, ProfileError) as error:
            lacking = str(error)
        document = explain.explained(found, plan, library.load(_WORKER), str(where.path), lacking)
    if is_json(output):
        print_json(document)
    else:
        _print_page(document)


def _print_page(document: Mapping[str, Any]) -> None:
    print_line(f"The profile {document['name']}")
    for section in document["sections"]:
        print_line()
        print_line(section["title"])
        print_line("-" * len(section["title"]))
        for line in section["lines"]:
            # A sentence that begins with blanks belongs to the one before it.
            indent = "    " if line.startswith(" ") else "  "
            folded = textwrap.wrap(
                shown(line.strip().replace(f"{SHIPPED}/", "")),
                _WIDTH,
                initial_indent=indent,
                subsequent_indent=f"{indent}  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for each in folded:
                print_line(each)
