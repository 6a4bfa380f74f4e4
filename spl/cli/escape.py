"""Commands that prove the walls from the inside: the escape suite, its report, and each layer taken away."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from spl.cli.options import output_option
from spl.cli.output import is_json, on_terminal, print_json, print_line, print_rows
from spl.cli.text import shown
from spl.errors import EscapeFailed, InvalidBody

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from escape.suite import Found, Heard

Json = dict[str, Any]

_COLUMNS: Final = ("id", "shape", "profile", "layer", "expected", "got", "ok")

_shapes = click.option(
    "--shape",
    "shapes",
    type=click.Choice(("same-user", "hosted")),
    multiple=True,
    help="A shape to try; repeatable. Both as root, same-user otherwise.",
)


@click.group()
def escape() -> None:
    """Try to get out of a sandboxed run, in every known way, and see what stops it."""


@escape.command("run", short_help="Make every attempt, or those of some classes.")
@click.argument("what", nargs=-1, metavar="[CLASS|ID]...")
@output_option
@_shapes
@click.option("--profile", "profiles", multiple=True, metavar="NAME", help="A shipped profile; repeatable.")
@click.option("--save", metavar="FILE", help="Make the mutations too, and write the whole report there.")
def run(
    what: tuple[str, ...],
    output: str | None,
    shapes: tuple[str, ...],
    profiles: tuple[str, ...],
    save: str | None,
) -> None:
    """Make every attempt to get out, from inside runs of a member of a throw-away daemon, and print a row for each.

    Only the red rows are printed as a table, unless classes or ids are named. Fails unless every row is green. As root
    both shapes are tried, the same-user one as an ordinary uid.
    """
    from escape import attempting, report, suite  # noqa: PLC0415 - with them comes the whole daemon

    _require_known(what, attempting.names())
    _require_known(profiles, attempting.shipped())
    chosen = _possible(shapes)
    with _progress() as heard:
        found = suite.run(chosen, profiles or attempting.shipped(), what, heard)
    mutated = suite.Found()
    if save is not None:
        with _progress() as heard:
            mutated = suite.mutate(chosen, (), heard)
        report.save(report.document(found, mutated), Path(save))
    if is_json(output):
        print_json(report.document(found, mutated))
    else:
        _print_found(found, found.rows if what else found.red)
    _require_green(found, mutated)


@escape.command("mutate", short_help="Take each layer away and show which rows turn red.")
@click.argument("what", nargs=-1, metavar="[LAYER]...")
@output_option
@_shapes
def mutate(what: tuple[str, ...], output: str | None, shapes: tuple[str, ...]) -> None:
    """Take every layer away in turn, or those named, and show which rows turn red for it.

    Fails when the absence of one is not noticed. What is weakened has a stub for a worker socket and a credential that
    opens nothing; no daemon can be started so.
    """
    from escape import suite, weakened  # noqa: PLC0415

    _require_known(what, [removal.layer for removal in weakened.REMOVALS])
    with _progress() as heard:
        found = suite.mutate(_possible(shapes), what, heard)
    if is_json(output):
        print_json({"hosts": found.hosts, "mutations": found.mutations})
    else:
        _print_mutations(found.mutations)
    _require_green(suite.Found(), found)


@escape.command("report", short_help="Show the report that came with this release.")
@click.argument("file", required=False, type=click.Path(dir_okay=False, exists=True))
@output_option
def report_(file: str | None, output: str | None) -> None:
    """Show a report, the one that came with this release unless FILE is given: every row and every layer taken away."""
    from escape import report  # noqa: PLC0415

    try:
        said = report.load(report.PATH if file is None else Path(file))
    except ValueError as error:
        raise InvalidBody(f"this is no report of the escape suite: {error}") from None
    if is_json(output):
        print_json(said)
        return
    for shape, host in said["hosts"].items():
        print_line(
            shown(
                f"{shape}: " + ", ".join(f"{name} {value}" for name, value in host.items() if name != "shape")
            )
        )
    _print_rows(said["rows"])
    _print_allowed({row["id"] for row in said["rows"]})
    _print_mutations(said["mutations"])


def _possible(shapes: Sequence[str]) -> list[str]:
    from escape import suite  # noqa: PLC0415

    possible = suite.possible()
    for shape in shapes:
        if shape not in possible:
            raise click.UsageError(f"the shape {shape} needs root")
    return list(shapes) or possible


def _require_known(given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise click.UsageError(f"there is no {shown(name)!r}; there are {', '.join(sorted(set(known)))}")


def _require_green(found: Found, mutated: Found) -> None:
    if found.red:
        ids = ", ".join(sorted({row["id"] for row in found.red}))
        raise EscapeFailed(f"{len(found.red)} of {len(found.rows)} rows are red: {ids}")
    if mutated.unnoticed:
        names = "; ".join(sorted({f"{each['layer']}: {each['name']}" for each in mutated.unnoticed}))
        raise EscapeFailed(f"taking these away turned none of their own rows red: {names}")


def _print_found(found: Found, rows: Sequence[Json]) -> None:
    if rows:
        _print_rows(rows)
    for each in found.lacks:
        print_line(shown(f"not attempted, {each['shape']}, {each['profile']}: {each['id']}: {each['why']}"))
    ids = {row["id"] for row in found.rows}
    _print_allowed(ids)
    print_line(f"{len(ids)} attempts, {len(found.rows)} rows, {len(found.red)} red")


def _print_allowed(ids: set[str]) -> None:
    from escape.attempts import ATTEMPTS  # noqa: PLC0415

    for each in ATTEMPTS.values():
        if each.allowed and each.id in ids:
            print_line(f"allowed on purpose: {each.id}: {each.allowed}")


def _print_rows(rows: Sequence[Json]) -> None:
    print_rows(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])


def _print_mutations(mutations: Sequence[Json]) -> None:
    columns = ("layer", "taken away", "shape", "mask lifted", "own rows red", "rows red", "noticed")
    print_rows(
        columns,
        [
            [
                each["layer"],
                each["name"],
                each["shape"],
                each["lifted"],
                len(set(each["own"]) & set(each["red"])),
                len(each["red"]),
                each["ok"],
            ]
            for each in mutations
        ],
    )


@contextmanager
def _progress() -> Iterator[Heard]:
    """Show how far the suite is, on standard error when that is a terminal."""
    if not on_terminal(2):
        yield lambda *_: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, TextColumn("{task.fields[last]}", markup=False), console=Console(stderr=True)
    ) as bars:
        tasks: dict[str, Any] = {}

        def heard(shape: str, said: Json) -> None:
            if shape not in tasks:
                tasks[shape] = bars.add_task(shape, total=None, last="")
            if "total" in said:
                bars.update(tasks[shape], total=said["total"])
            for name in ("row", "lack", "mutation"):
                if name in said:
                    last = said[name].get("id") or said[name].get("name")
                    bars.update(tasks[shape], advance=1, last=shown(str(last)))

        yield heard
