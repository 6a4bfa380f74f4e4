"""The whole measurement: which figures are taken together, in which order, and the document that comes of them."""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import tempfile
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from spl.bench import comparison, floors, host, processes, rest, starts, throughput, verdicts, watching
from spl.bench.apparatus import MS, QUICK, WHOLE, Apparatus, Size
from spl.bench.rows import F1, F2, F3, F4, GOALS, Goal, Measured, percentile, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Json = dict[str, Any]


def run(
    only: Sequence[str] = (),
    *,
    size: Size = WHOLE,
    compare: bool | None = None,
    goals: Mapping[str, Goal] = GOALS,
    heard: Callable[[str, int, int], None] = lambda *_: None,
) -> Json:
    """Measure every row, or `only` those named and the floors they need; gives the document.

    With `compare`, and by default when all is measured in full, what a person would use instead is run beside it.
    `heard` is told how far each group of figures is. Nothing that was started or made for it stays. Raises `SplError`.
    """
    load = [_load()]
    found: dict[str, Measured] = {}
    chosen = [name for name in goals if not only or name in only]
    with _folder() as folder, ExitStack() as stack:
        bench = Apparatus(chosen, folder, size, stack, heard)
        for names, measure in _GROUPS.items():
            if any(name in chosen for name in names):
                found |= measure(bench)
        whole = size is WHOLE and not only
        compared = comparison.measure(bench) if compare or (compare is None and whole) else []
        load.append(_load())
        shown = [
            name for name in goals if name in chosen or (name in found and name in _needed(chosen, goals))
        ]
        return {
            "object": "bench",
            "command": shlex.join(["spl", "bench", *_words(size, compare, only)]),
            "quick": size is not WHOLE,
            "host": {**host.describe(bench.cold.facts, folder), "load": load},
            "rows": [row(name, goals[name], found[name], many=size.many) for name in shown],
            "phases": bench.phases,
            "carries": _carries(bench, found),
            "comparison": compared,
        }


def missed(document: Json) -> list[Json]:
    """Give the rows whose goal was not reached."""
    return [each for each in document["rows"] if each["met"] is False]


def _words(size: Size, compare: bool | None, only: Sequence[str]) -> Iterator[str]:
    if size is QUICK:
        yield "--quick"
    if compare is not None:
        yield "--compare" if compare else "--no-compare"
    for name in only:
        yield from ("--only", name)


def _needed(chosen: Sequence[str], goals: Mapping[str, Goal]) -> set[str]:
    """Give the floors by which the chosen rows are divided."""
    said = {goals[name].floor or "" for name in chosen}
    return {
        name for number, name in enumerate((F1, F2, F3, F4), 1) if any(f"F{number}" in each for each in said)
    }


@contextmanager
def _folder() -> Iterator[str]:
    # Where TMPDIR says and nowhere else, where `tempfile` would take the next place that it can: the disk is measured.
    folder = tempfile.mkdtemp(prefix="spl-", dir=os.environ.get("TMPDIR") or None)
    try:
        yield folder
    finally:
        with processes.deferred():
            shutil.rmtree(folder)


def _load() -> float:
    return round(os.getloadavg()[0], 2)


# --- the log ---


def _appends(bench: Apparatus) -> dict[str, Measured]:
    bench.heard("appends", 0, 1)
    rounds = 40 if bench.size is WHOLE else 6
    rates = bench.cold.ask("append", folder=f"{bench.folder}/appends", rounds=rounds)
    bench.heard("appends", 1, 1)
    one, many = zip(*rates, strict=True)
    found = Measured(statistics.median(many), len(rates), statistics.median(one), percentile(many, 5))
    return {"appends": found}


def _log(bench: Apparatus) -> str:
    """Make the long log, once; gives its home."""
    home = f"{bench.folder}/many"
    if not os.path.exists(home):
        bench.heard("the long log", 0, 1)
        bench.cold.ask("build", home=home, records=bench.size.records)
        bench.heard("the long log", 1, 1)
    return home


def _page(bench: Apparatus) -> dict[str, Measured]:
    few, many = f"{bench.folder}/few", _log(bench)
    bench.cold.ask("build", home=few, records=1000)
    took = bench.cold.ask("page", few=few, many=many, rounds=4 * bench.size.samples)
    of_few, of_many = ([each / MS for each in times] for times in zip(*took, strict=True))
    return {"thread-page": Measured.of(of_many, floor=statistics.median(of_few))}


# --- the command line and the daemon's start ---


def _help(bench: Apparatus) -> dict[str, Measured]:
    environ = processes.environ()
    bare, help_ = [], []
    for _ in bench.times("spl --help", bench.size.starts):
        bare.append(floors.spawned([*processes.python(), "-c", "pass"], environ))
        command = [*processes.python(), "-m", "spl.cli.main", "--help"]
        help_.append(floors.spawned(command, environ, quiet=True))
    return {"help": Measured.of(help_, floor=statistics.median(bare))}


def _daemon_start(bench: Apparatus) -> dict[str, Measured]:
    homes = [f"{bench.folder}/empty", _log(bench)]
    for home in homes:
        os.makedirs(home, mode=0o700, exist_ok=True)
        # Its backup of a long log would be measured with the starts after it; and the first start of a home makes it.
        with open(f"{home}/config.toml", "w", encoding="utf-8") as file:
            file.write("backups_kept = 0\n")
        _answered(home)
    took: list[list[float]] = [[], []]
    for _ in bench.times("daemon starts", bench.size.starts):
        for home, times in zip(homes, took, strict=True):
            times.append(_answered(home))
    return {"daemon-start": Measured.of(took[1], floor=statistics.median(took[0]))}


def _answered(home: str) -> float:
    began = time.monotonic_ns()
    with processes.serving(home):
        return (time.monotonic_ns() - began) / MS


_GROUPS: Final[Mapping[tuple[str, ...], Callable[[Apparatus], dict[str, Measured]]]] = {
    ("worker-memory",): rest.workers,
    (F1, F2, F3, "cold-start", "warm-start", "first-model-call", "sandboxed-wall"): starts.measure,
    ("runs-per-second",): throughput.measure,
    ("daemon-memory", "daemon-wakeups"): rest.daemon,
    (F4, "judgment", "judgment-16"): verdicts.measure,
    ("watcher",): watching.measure,
    ("appends",): _appends,
    ("thread-page",): _page,
    ("help",): _help,
    ("daemon-start",): _daemon_start,
}


def _carries(bench: Apparatus, found: Mapping[str, Measured]) -> Json:
    """Give what a host of this size carries: by admission's worst case, and as fast as was measured."""
    workers = bench.daemon.room()
    memory, rate = found.get("worker-memory"), found.get("runs-per-second")
    return {
        "workers": workers,
        "worker_bytes_at_most": bench.cold.facts["worker_bytes_at_most"],
        "worker_bytes": None if memory is None else round(memory.value * 2**20),
        "runs_per_second": None if rate is None else round(rate.value, 1),
        # Little's law: with runs of this length, as many go on at once as there are places.
        "full_at_seconds": None if rate is None else round(workers / rate.value, 2),
    }
