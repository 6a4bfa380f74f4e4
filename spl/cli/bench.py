"""The command that measures what confinement and judgment cost on this host."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import click

from spl.cli.options import Invocation, examples, output_option
from spl.cli.output import is_json, print_json, print_line, print_rows
from spl.cli.progress import bars
from spl.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]

_MIB = 1 << 20
_DAY = 86400
_MISSED = 1
_COMPARED = ("name", "version", "command", "value", "p95", "samples", "ratio", "reason")


def _names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Give the names of rows that begin so, for the shell."""
    del context, parameter
    from spl.bench.rows import GOALS  # noqa: PLC0415

    return [name for name in GOALS if name.startswith(incomplete)]


@click.command(epilog=examples("spl bench --quick", "spl bench --only cold-start --only judgment"))
@output_option
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option(
    "--quick",
    is_flag=True,
    help="Take fewer samples, and a log of 10000 records for one of a million: rougher, and done in half a minute.",
)
@click.option(
    "--compare/--no-compare",
    default=None,
    help="Run firejail, nsjail, srt and codex beside it where they are installed; the default when all is measured.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    shell_complete=_names,
    help="A row to measure; repeatable. The floors it is held against come with it.",
)
@click.pass_context
def bench(
    context: click.Context,
    output: str | None,
    as_json: bool,
    quick: bool,
    compare: bool | None,
    only: tuple[str, ...],
) -> None:
    """Measure what confinement and judgment cost on this host.

    Real daemons are started in throw-away homes where TMPDIR says, on whose disk the log is then measured. Each figure
    is held against a floor of the same run; exits 1 if a goal is missed. Measure on a host that has nothing else to do.
    The goals are what spl itself is to reach: a missed one keeps nothing from running, and a busy host misses more.
    """
    from spl.bench import rows, suite  # noqa: PLC0415
    from spl.bench.apparatus import QUICK, WHOLE  # noqa: PLC0415

    if as_json:
        context.ensure_object(Invocation).output = output = "json"
    size = QUICK if quick else WHOLE
    # By the names under which they are shown too, which tell the length of the log.
    names = {rows.shown_name(name, goal, size.many): name for name, goal in rows.GOALS.items()}
    _require_known(only, list(dict.fromkeys([*rows.GOALS, *names])))
    with bars() as heard:
        chosen = [names.get(name, name) for name in only]
        document = suite.run(chosen, size=size, compare=compare, heard=heard)
    if as_json or is_json(output):
        print_json(document)
    else:
        _print(document)
    missed = suite.missed(document)
    if missed:
        _complain(missed, document["phases"])
        context.exit(_MISSED)


def _require_known(only: Sequence[str], known: Sequence[str]) -> None:
    for name in only:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
            raise click.UsageError(f"there is no row {shown(name)!r}: {hint}")


def _print(document: Json) -> None:
    host = document["host"]
    memory = f"{host['memory_bytes'] / (1 << 30):.1f} GiB"
    print_line(
        shown(
            f"{host['shape']}, {host['cores']} x {host['processor']}, {memory}, kernel {host['kernel']}, "
            f"Python {host['python']}, bubblewrap {host['bubblewrap']}, {host['file_system']}; "
            f"load {host['load'][0]:g} before, {host['load'][1]:g} after"
        )
    )
    print_line()
    columns = ("name", "value", "unit", "p95", "samples", "floor", "ratio", "goal", "met", "note")
    print_rows(
        columns,
        [[*(row[name] for name in columns[:-2]), _met(row), row.get("reason")] for row in document["rows"]],
    )
    if document["phases"]:
        print_line()
        print_rows(
            ("where a cold start goes", "ms", "what is done"),
            [[part["name"], part["value"], part["what"]] for part in document["phases"]],
        )
    if document["comparison"]:
        print_line()
        print_rows(
            ("instead", "version", "what was run", "ms", "p95", "samples", "ratio", "note"),
            [[each.get(name) for name in _COMPARED] for each in document["comparison"]],
        )
    print_line()
    for line in carried(document["carries"]):
        print_line(line)
    if document["quick"]:
        print_line("Quick: few samples, which is good for a look and not for a comparison.")


def carried(carries: Json) -> list[str]:
    """Say what a host of this size can carry, in a sentence for each bound."""
    workers, each = carries["workers"], carries["worker_bytes_at_most"] / _MIB
    said = [
        f"This host carries {workers} sandboxed runs at once: each is reckoned at the most it can take, {each:.0f} MiB."
    ]
    if carries["worker_bytes"] is not None:
        idle = carries["worker_bytes"] / _MIB
        said.append(f"An idle worker takes {idle:.1f} MiB, and {workers} of them {workers * idle:.0f} MiB.")
    if carries["runs_per_second"] is not None:
        rate, full = carries["runs_per_second"], carries["full_at_seconds"]
        day, minutes = rate * _DAY / 1e6, workers * _DAY / 60
        said.append(
            f"It makes {rate:g} whole runs a second, {day:.1f} million a day, of a model that answers at once."
        )
        said.append(
            f"Runs shorter than {full:g} s are bounded by its processors, longer ones by its {workers} places: "
            f"{minutes:.0f} a day, if each takes a minute."
        )
    return said


def _met(row: Json) -> str:
    return {True: "yes", False: "NO", None: ""}[row["met"]]


def _complain(missed: Sequence[Json], phases: Sequence[Json]) -> None:
    lines = []
    for row in missed:
        got = (
            f"{row['value']:g} {row['unit']}" if row["ratio"] is None else f"{row['ratio']:g} times its floor"
        )
        lines.append(f"spl: the goal of {row['name']} is missed: {got}, and it should be {row['goal']}")
    if phases and any(row["name"] == "cold-start" for row in missed):
        parts = ", ".join(f"{part['name']} {part['value']:g} ms" for part in phases)
        lines.append(f"spl: a cold start spends its time so: {parts}")
    click.echo("\n".join(lines), err=True)
