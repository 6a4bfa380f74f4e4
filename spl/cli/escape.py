"""Commands that prove the walls from the inside: the escape suite, its report, and each layer taken away."""

from __future__ import annotations

import difflib
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from escape.attempts import ATTEMPTS, CLASSES
from spl.cli.completion import values
from spl.cli.options import examples, output_option
from spl.cli.output import is_json, print_json, print_line, print_rows
from spl.cli.progress import bars
from spl.cli.text import shown
from spl.errors import EscapeFailed, EscapeUnfinished, InvalidBody

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from escape.suite import Found, Heard

Json = dict[str, Any]

_KINDS: Final = [module.__name__.rpartition(".")[2] for module in CLASSES]
_CLASSES: Final = f"Classes: {', '.join(_KINDS)}."
_ESCAPED: Final = "ESCAPED"

_attempts = values(lambda _: [*_KINDS, *ATTEMPTS])

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


@escape.command(
    "run",
    short_help="Make every attempt, or those of some classes.",
    epilog=examples(
        "spl escape run network", "spl escape run --shape hosted --profile worker", before=_CLASSES
    ),
)
@click.argument("what", nargs=-1, metavar="[CLASS|ID]...", shell_complete=_attempts)
@output_option
@_shapes
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="NAME",
    help="A shipped profile that a run can start with; repeatable. All of them unless given.",
)
@click.option(
    "--save",
    metavar="FILE",
    help="Take each layer away too, and write the whole report there; only as root, and with no class, shape or "
    "profile named.",
)
def run(
    what: tuple[str, ...],
    output: str | None,
    shapes: tuple[str, ...],
    profiles: tuple[str, ...],
    save: str | None,
) -> None:
    """Make every attempt to get out, from inside runs of a member of a throw-away daemon, and say what stopped it.

    Prints a line for each class, and each row of those that are named or red. Fails unless every row is green. As root
    both shapes are tried, the same-user one as an ordinary uid.
    """
    from escape import attempting, report, suite  # noqa: PLC0415 - with them comes the whole daemon

    _require_known(what, [*_KINDS, *ATTEMPTS])
    _require_known(profiles, attempting.shipped())
    chosen = _possible(shapes)
    if save is not None:
        _require_writable(save, whole=not (what or profiles or shapes) and len(chosen) > 1)
    with _progress() as heard:
        found = suite.run(chosen, profiles or attempting.shipped(), what, heard)
    if not found.rows:
        why = "; ".join(dict.fromkeys(each["why"] for each in found.lacks))
        raise EscapeUnfinished(f"nothing was attempted: {why}")
    mutated = suite.Found()
    if save is not None:
        with _progress() as heard:
            mutated = suite.mutate(chosen, (), heard)
        report.save(report.document(found, mutated), Path(save))
    if is_json(output):
        print_json(report.document(found, mutated))
    else:
        _print_report(report.document(found, mutated), what)
    _require_green(found, mutated)


@escape.command(
    "mutate",
    short_help="Take each layer away and show which rows turn red.",
    epilog=examples("spl escape mutate", "spl escape mutate syscalls"),
)
@click.argument("what", nargs=-1, metavar="[LAYER]...")
@output_option
@_shapes
def mutate(what: tuple[str, ...], output: str | None, shapes: tuple[str, ...]) -> None:
    """Take every layer away in turn, or those named, and show which of its rows turn red for it.

    Fails when the absence of one is not noticed. What is weakened has a stub for a worker socket and a credential that
    opens nothing; no daemon can be started so. It then really does what the layer would have stopped, as an ordinary
    uid and against victims of its own: it connects to sockets of this host's, for one, and says nothing there.
    """
    from escape import suite, weakened  # noqa: PLC0415

    _require_known(what, [removal.layer for removal in weakened.REMOVALS])
    with _progress() as heard:
        found = suite.mutate(_possible(shapes), what, heard)
    if not found.mutations:
        raise EscapeUnfinished("nothing was taken away: there is no such layer in this shape")
    if is_json(output):
        print_json({"hosts": found.hosts, "mutations": found.mutations})
    else:
        _print_mutations(found.mutations)
    _require_green(suite.Found(), found)


@escape.command(
    "report",
    short_help="Show the report that came with this release.",
    epilog=examples("spl escape report", "spl escape report network", before=_CLASSES),
)
@click.argument("what", nargs=-1, metavar="[CLASS|ID]...", shell_complete=_attempts)
@click.option(
    "--file", metavar="FILE", type=click.Path(dir_okay=False, exists=True), help="Another report than that."
)
@output_option
def report_(what: tuple[str, ...], file: str | None, output: str | None) -> None:
    """Show what came of every attempt, and of each layer taken away, when this release was made, and on which host.

    Prints a line for each class, and each row of those that are named.
    """
    from escape import report  # noqa: PLC0415

    try:
        said = report.load(report.PATH if file is None else Path(file))
    except ValueError as error:
        raise InvalidBody(f"this is no report of the escape suite: {shown(str(error))}") from None
    _require_known(what, [*_KINDS, *ATTEMPTS])
    if is_json(output):
        print_json(said)
    else:
        _print_report(said, what)


def _possible(shapes: Sequence[str]) -> list[str]:
    from escape import suite  # noqa: PLC0415

    possible = suite.possible()
    for shape in shapes:
        if shape not in possible:
            raise click.UsageError(f"the shape {shape} needs root")
    return list(dict.fromkeys(shapes)) or possible


def _require_known(given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            whole = list(dict.fromkeys(each for each in known if "." not in each))
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(whole)}"
            raise click.UsageError(f"there is no {shown(name)!r}: {hint}")


def _require_writable(path: str, *, whole: bool) -> None:
    """Refuse to begin what could not be kept, and to keep a part as if it were all."""
    if not whole:
        raise click.UsageError("a report is of everything in both shapes: as root, with nothing else named")
    with open(path, "a", encoding="utf-8"):
        pass


def _require_green(found: Found, mutated: Found) -> None:
    if found.red:
        escaped = sorted({row["id"] for row in found.red if row["got"].startswith(_ESCAPED)})
        other = sorted({row["id"] for row in found.red} - set(escaped))
        parts = [
            f"{what}: {', '.join(ids)}"
            for what, ids in (("got out", escaped), ("stopped, but not by what must stop it", other))
            if ids
        ]
        raise EscapeFailed(f"{len(found.red)} of {len(found.rows)} rows are red; {'; '.join(parts)}")
    if mutated.unnoticed:
        names = "; ".join(sorted({f"{each['layer']}: {each['name']}" for each in mutated.unnoticed}))
        raise EscapeFailed(f"the absence of these was not noticed by all of their rows: {names}")


def _print_report(said: Json, what: Sequence[str]) -> None:
    for shape, host in said["hosts"].items():
        facts = ", ".join(f"{name} {value}" for name, value in host.items() if name != "shape")
        print_line(shown(f"{shape}: {facts}"))
    if len(said["hosts"]) == 1 and "hosted" not in said["hosts"]:
        print_line("hosted: not tried, since it needs root")
    print_line()
    rows = said["rows"]
    named = [row for row in rows if row["id"] in what or row["class"] in what]
    if named:
        _print_rows(named)
    else:
        _print_classes(rows)
    _print_red([row for row in rows if not row["ok"]])
    _print_apart(said["lacks"])
    ids = {row["id"] for row in rows}
    _print_allowed(ids)
    if said["mutations"]:
        _print_mutations(said["mutations"])
    red = sum(not row["ok"] for row in rows)
    print_line(f"{len(ids)} attempts, {len(rows)} rows, {red} red")


def _print_classes(rows: Sequence[Json]) -> None:
    kinds = list(dict.fromkeys(row["class"] for row in rows))
    table = []
    for kind in kinds:
        of_it = [row for row in rows if row["class"] == kind]
        layers = list(dict.fromkeys(row["layer"] for row in of_it))
        table.append(
            [kind, len({row["id"] for row in of_it}), len(of_it), sum(not row["ok"] for row in of_it), layers]
        )
    print_rows(("class", "attempts", "rows", "red", "stopped by"), table)
    print_line()


def _print_rows(rows: Iterable[Json]) -> None:
    from escape.report import collapsed  # noqa: PLC0415

    columns = ("id", "layer", "got", "ok", "where")
    print_rows(
        columns,
        [[_marked(row) if name == "ok" else row[name] for name in columns] for row in collapsed(rows)],
    )
    print_line()


def _marked(row: Json) -> str:
    attempt = ATTEMPTS.get(row["id"])
    if not row["ok"]:
        return "RED"
    return "allowed" if attempt is not None and attempt.allowed else "green"


def _print_red(rows: Sequence[Json]) -> None:
    if not rows:
        return
    from escape.report import collapsed  # noqa: PLC0415

    print_line("RED")
    table = []
    for row in collapsed(rows):
        attempt = ATTEMPTS.get(row["id"])
        table.append(
            [row["id"], attempt.sentence if attempt else "", row["expected"], row["got"], row["where"]]
        )
    print_rows(("id", "what it does", "expected", "got", "where"), table)
    print_line()


def _print_apart(lacks: Sequence[Json]) -> None:
    merged: dict[tuple[str, str], list[str]] = {}
    for each in lacks:
        merged.setdefault((each["id"], each["why"]), []).append(f"{each['shape']} {each['profile']}")
    for (name, why), where in merged.items():
        what = "everything" if name == "*" else name
        print_line(shown(f"not attempted: {what} ({', '.join(where)}): {why}"))


def _print_allowed(ids: set[str]) -> None:
    for each in ATTEMPTS.values():
        if each.allowed and each.id in ids:
            print_line(f"allowed on purpose: {each.id} {each.sentence}: {each.allowed}")


def _print_mutations(mutations: Sequence[Json]) -> None:
    columns = ("layer", "taken away", "shape", "mask lifted", "its rows", "red", "noticed")
    print_rows(
        columns,
        [
            [
                each["layer"],
                each["name"],
                each["shape"],
                each["lifted"],
                len(each["own"]),
                len(set(each["own"]) & each["red"].keys()),
                each["ok"],
            ]
            for each in mutations
        ],
    )
    noticed = sum(each["ok"] for each in mutations)
    print_line(f"{len(mutations)} times a layer was taken away, {noticed} times it was noticed")


@contextmanager
def _progress() -> Iterator[Heard]:
    """Show how far the suite is in each shape."""
    with bars() as tell:
        done: Counter[str] = Counter()

        def heard(shape: str, said: Json) -> None:
            last = ""
            for name in ("row", "lack", "mutation"):
                if name in said and said[name].get("id") != "*":
                    done[shape] += 1
                    last = str(said[name].get("id") or said[name].get("name"))
            tell(shape, done[shape], said.get("total"), last)

        yield heard
