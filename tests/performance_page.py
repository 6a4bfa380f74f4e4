"""The table of docs/performance.md, measured afresh: `make bench` runs `spl bench` and puts what it found in its place.

The rest of the page is written by hand, and speaks of the figures that stand in the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from spl.cli.bench import carried
from tests.claims import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

Json = dict[str, Any]


def table(document: Json) -> str:
    """Give what `spl bench` found as the page shows it: the host, the rows, a cold start's phases, what it carries."""
    host = document["host"]
    memory = f"{host['memory_bytes'] / 2**30:.1f} GiB of memory"
    kernel = f"kernel {host['kernel'].partition('-')[0]} on {host['machine']}"
    load = f"the load was {host['load'][0]:g} before and {host['load'][1]:g} after"
    return f"""\
Made by `{document["command"]}` with spl {host["spl"]} in the shape {host["shape"]}:
{host["cores"]} processors ({host["processor"]}), {memory}, {kernel},
Python {host["python"]}, bubblewrap {host["bubblewrap"]}, {host["file_system"]}; {load}.

| row | what | value | p95 | floor | ratio | goal | met |
|---|---|---|---|---|---|---|---|
{_lines(map(_row, document["rows"]))}

Where a cold start goes:

| phase | ms | what is done |
|---|---|---|
{_lines(f"| {part['name']} | {part['value']:g} | {part['what']} |" for part in document["phases"])}

What a person would use instead, in turn with bare bubblewrap and what is ours; the ratio is to bare bubblewrap with the
same program in it:

| tool | version | what was run | ms | p95 | ratio |
|---|---|---|---|---|---|
{_lines(map(_compared, document["comparison"]))}

{_lines(carried(document["carries"]))}"""


def put(page: str, text: str) -> str:
    """Give the page with another table between its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} has not both of {BEGIN} and {END}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _row(row: Json) -> str:
    met = {True: "yes", False: "**no**", None: ""}[row["met"]]
    cells = [
        f"`{row['name']}`",
        row["what"],
        _figure(row["value"], row["unit"]),
        _figure(row["p95"], row["unit"]),
    ]
    cells += [_figure(row["floor"], row["unit"]), _figure(row["ratio"]), row["goal"] or "", met]
    if row.get("reason"):
        cells[1] += f" ({row['reason']})"
    return "| " + " | ".join(cells) + " |"


def _compared(row: Json) -> str:
    cells = [row["name"], row["version"] or "", f"`{row['command']}`"]
    cells += [row["reason"]] if row.get("reason") else [_figure(row["value"])]
    cells += [_figure(row["p95"]), _figure(row["ratio"])]
    return "| " + " | ".join(cells) + " |"


def _figure(value: float | None, unit: str = "") -> str:
    return (
        ""
        if value is None
        else f"{value:.3g} {unit}".strip()
        if value < 1000
        else f"{value:.0f} {unit}".strip()
    )


def write() -> None:
    """Measure, and write the page."""
    # Its exit status says whether every goal was reached, and the page says that as well.
    command = [sys.executable, "-m", "spl.cli.main", "bench", "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)
    found = table(json.loads(done.stdout))
    PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    write()
