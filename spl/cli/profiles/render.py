"""`spl profile render`: what a profile comes to on this host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from bwrap import bpf, groups, render, seccomp
from spl.cli.completion import profiles
from spl.cli.options import common, examples
from spl.cli.output import is_json, print_json, print_line
from spl.cli.profiles.places import home_of, library_of, plan_of, refusals
from spl.cli.text import shown

if TYPE_CHECKING:
    Json = dict[str, Any]


@click.command(
    "render",
    short_help="Show what it comes to on this host.",
    epilog=examples("spl profile render worker", "spl profile render worker --arch aarch64 --bpf"),
)
@click.argument("name", shell_complete=profiles)
@common
@click.option(
    "--arch", type=click.Choice(groups.ARCHITECTURES), help="The filter's; this machine's unless given."
)
@click.option("--bpf", "program", is_flag=True, help="List the filter's program as well.")
def render_profile(name: str, home: str | None, output: str | None, arch: str | None, program: bool) -> None:
    """Show what a profile comes to on this host: bubblewrap's options, the limits, the filter in words.

    `{filter}`, `{status}`, `{block}` and `{image}` stand for the descriptors of one launch.
    """
    with refusals():
        where = home_of(home)
        found = library_of(where).load(name)
        plan = plan_of(found, where)
        if arch is not None:
            plan = replace(plan, filter=seccomp.compile_filter(groups.rules(found, arch), arch))
        document = render.described(found, plan)
        if program:
            document["filter"]["program"] = bpf.listing(bpf.load(plan.filter.program))
    if is_json(output):
        print_json(document)
    else:
        _print_plan(document)


def _print_plan(document: Json) -> None:
    made = document["filter"]
    limits = [f"{name}={value}" for name, value in document["limits"].items()]
    absent = [f"not on this host: {path}" for path in document["absent"]]
    for title, lines in (
        ("bubblewrap's options", document["argv"]),
        ("command", [" ".join(document["command"])]),
        ("limits", limits),
        ("optional files", absent),
        (f"filter for {made['arch']}", made["rules"]),
        ("program", made.get("program", [])),
    ):
        if lines:
            print_line(f"# --- {title}")
            for line in lines:
                print_line(shown(line))
            print_line()
    print_line(f"argv digest    {document['argv_digest']}")
    print_line(f"filter digest  {made['digest']}")
    print_line(f"profile digest {document['digest']}")
