"""The whole measurement: which figures are taken together, in which order, and the document that comes of them."""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from spl.bench import floors, host, processes
from spl.bench.inside import REPORT
from spl.bench.processes import CALLS, CONSTANT
from spl.bench.rows import F1, F2, F3, F4, GOALS, MILLION, PHASES, Goal, Measured, percentile, row
from spl.errors import HostRefused, SplError
from spl.worker.doors import Doors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from spl.bench.processes import Daemon, Helper

Json = dict[str, Any]


_AT_ONCE: Final = 16
_STARVED: Final = 2.0
"""How many times as long as all others a run may wait for its verdicts before it is said to starve."""
_MS: Final = 1e6
"""Nanoseconds."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: samples of each kind, and how long the long log is."""

    samples: int
    rounds: int
    bursts: int
    stretches: int
    starts: int
    records: int
    many: str
    rest_seconds: float


WHOLE: Final = Size(60, 6, 4, 8, 40, 10**6, MILLION, 10.0)
QUICK: Final = Size(12, 2, 1, 2, 5, 10**4, "10^4", 2.0)


@dataclass
class _Bench:
    """What the groups of figures share; the stack ends what of it was started."""

    chosen: Sequence[str]
    folder: str
    size: Size
    stack: ExitStack
    heard: Callable[[str, int, int], None]
    phases: list[Json] = field(default_factory=list)
    carries: Json = field(default_factory=dict)

    @cached_property
    def helper(self) -> Helper:
        return self.stack.enter_context(processes.helping(f"{self.folder}/helper"))

    @cached_property
    def daemon(self) -> Daemon:
        daemon = self.stack.enter_context(processes.serving(f"{self.folder}/home"))
        daemon.set_transport("sandboxed")
        return daemon

    @cached_property
    def floors(self) -> dict[str, list[str]]:
        return floors.commands(self.helper.facts)

    def times(self, name: str, number: int) -> Iterator[int]:
        """Count to a number, and tell of it."""
        for done in range(number):
            self.heard(name, done, number)
            yield done
        self.heard(name, number, number)


def run(
    only: Sequence[str] = (),
    *,
    size: Size = WHOLE,
    goals: Mapping[str, Goal] = GOALS,
    heard: Callable[[str, int, int], None] = lambda *_: None,
) -> Json:
    """Measure every row, or `only` those named and the floors they need; gives the document.

    `heard` is told how far each group of figures is. Nothing that was started or made for it stays. Raises `SplError`.
    """
    load = [_load()]
    found: dict[str, Measured] = {}
    chosen = [name for name in goals if not only or name in only]
    with _folder() as folder, ExitStack() as stack:
        bench = _Bench(chosen, folder, size, stack, heard)
        for names, measure in _GROUPS.items():
            if any(goals[name].reason is None and name in chosen for name in names):
                found |= measure(bench)
        load.append(_load())
        shown = [
            name for name in goals if name in chosen or (name in found and name in _needed(chosen, goals))
        ]
        return {
            "object": "bench",
            "command": shlex.join(["spl", "bench", *(["--quick"] if size is QUICK else []), *_only(only)]),
            "quick": size is not WHOLE,
            "host": {**host.describe(bench.helper.facts, folder), "load": load},
            "rows": [row(name, goals[name], found.get(name), many=size.many) for name in shown],
            "phases": bench.phases,
            "carries": _carries(bench),
        }


def missed(document: Json) -> list[Json]:
    """Give the rows whose goal was not reached."""
    return [each for each in document["rows"] if each["met"] is False]


def _only(only: Sequence[str]) -> list[str]:
    return [word for name in only for word in ("--only", name)]


def _needed(chosen: Sequence[str], goals: Mapping[str, Goal]) -> set[str]:
    """Give the floors by which the chosen rows are divided."""
    said = {goals[name].floor or "" for name in chosen}
    return {
        name for number, name in enumerate((F1, F2, F3, F4), 1) if any(f"F{number}" in each for each in said)
    }


@contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="spl-")
    try:
        yield folder
    finally:
        with processes.deferred():
            shutil.rmtree(folder)


def _load() -> float:
    return round(os.getloadavg()[0], 2)


# --- starts and whole runs, one at a time, with the floors between them ---


def _starts(bench: _Bench) -> dict[str, Measured]:
    names = (F1, F2, F3, "cold", "sandboxed", "in process")
    took: dict[str, list[float]] = {name: [] for name in names}
    launches: list[list[int]] = []
    for transport, name in (("sandboxed", "sandboxed"), ("in_process", "in process")):
        _whole(bench.daemon, transport, {name: [], "cold": []}, name)
    for _ in bench.times("starts", bench.size.samples):
        for name, command in bench.floors.items():
            took[name].append(floors.spawned(command))
        _whole(bench.daemon, "sandboxed", took, "sandboxed")
        _whole(bench.daemon, "in_process", took, "in process")
        launches.append(bench.helper.ask("launch"))
    bench.daemon.set_transport("sandboxed")
    cold = Measured.of(took["cold"], floor=statistics.median(took[F3]))
    bench.phases = _phases(cold.value, launches)
    return {
        **{name: Measured.of(took[name]) for name in (F1, F2, F3)},
        "cold-start": cold,
        "sandboxed-wall": Measured.of(took["sandboxed"], floor=statistics.median(took["in process"])),
    }


def _whole(daemon: Daemon, transport: str, took: dict[str, list[float]], name: str) -> None:
    """Have one run made from its request to its end, and take down both that and its start."""
    daemon.set_transport(transport)
    began = time.monotonic_ns()
    thread = daemon.start()
    started = time.monotonic_ns()
    took[name].append((daemon.ends.wait(thread) - began) / _MS)
    if transport == "sandboxed":
        took["cold"].append((started - began) / _MS)


def _phases(whole: float, launches: Sequence[Sequence[int]]) -> list[Json]:
    """Give the parts of a cold start, the median of each; what is not of the launch is the kernel's and the API's."""
    medians = [statistics.median(each) / _MS for each in zip(*launches, strict=True)]
    parts = [*zip(PHASES, PHASES.values(), medians, strict=True)]
    rest = "the request, the terms, the plan, the anchor and receipt made durable, the credential, the answer"
    parts.append(("around the launch", rest, max(0.0, whole - sum(medians))))
    return [
        {"name": name, "what": what, "value": round(value, 2), "unit": "ms"} for name, what, value in parts
    ]


# --- verdicts ---


def _judgment(bench: _Bench) -> dict[str, Measured]:
    helper, size = bench.helper, bench.size
    floor: list[float] = []
    alone: list[float] = []
    rates: list[list[float]] = []
    constant = Doors(f"{helper.home}/run/{CONSTANT}", "none")
    helper.set_transport("sandboxed")
    for done in bench.times("verdicts", size.rounds):
        for _ in range(CALLS):
            asked = time.monotonic_ns()
            constant.perform("run", {})
            floor.append((time.monotonic_ns() - asked) / _MS)
        alone += [each / _MS for each in _verdicts(helper, 1, 0)[0]["took"]]
        rates += helper.ask("append", folder=f"{bench.folder}/commits-{done}", rounds=1)
    constant.close()
    answer = statistics.median(floor)
    note = f"one durable append by itself takes {1000 / statistics.median(one for one, _ in rates):.3g} ms"
    found = {F4: Measured.of(floor), "judgment": Measured.of(alone, floor=answer, note=note)}
    return found | (_judgment_at_once(bench, answer) if "judgment-16" in bench.chosen else {})


def _judgment_at_once(bench: _Bench, answer: float) -> dict[str, Measured]:
    runs: list[list[float]] = []
    for _ in bench.times("verdicts of 16 runs at once", bench.size.bursts):
        runs += _at_once(_verdicts(bench.helper, _AT_ONCE, 3.0))
    everyone = [each for run in runs for each in run]
    middle = statistics.median(everyone)
    slowest = max(map(statistics.median, runs)) / middle
    said = f"the median of all is {middle:.3g} ms, and that of the slowest run {slowest:.2f} times as much"
    return {
        "judgment-16": Measured(
            percentile(everyone, 99),
            len(everyone),
            answer,
            percentile(everyone, 95),
            short=said if slowest > _STARVED else None,
            note=said,
        )
    }


def _verdicts(helper: Helper, runs: int, after: float) -> list[Json]:
    """Have runs propose, all from `after` seconds on; gives what each reported."""
    goal = f'{{"at": {time.monotonic_ns() + int(after * 1e9)}}}'
    threads = [helper.start(goal) for _ in range(runs)]
    for thread in threads:
        helper.ends.wait(thread)
    found = []
    for thread in threads:
        query = {"thread": thread, "kind": REPORT, "limit": 1}
        told = helper.client.request("GET", "/v1/records", query=query)["data"]
        if not told:
            raise HostRefused(f"the run {thread}, whose verdicts were to be timed, told nothing")
        found.append(told[0]["body"])
    return found


def _at_once(reports: Sequence[Json]) -> list[list[float]]:
    """Give, of each run, the milliseconds of the verdicts it asked for while every other one did as well."""
    first, last = max(each["began"] for each in reports), min(each["ended"] for each in reports)
    found = []
    for report in reports:
        at, kept = report["began"], []
        for each in report["took"]:
            if at >= first and at + each <= last:
                kept.append(each / _MS)
            at += each
        found.append(kept)
    if not all(found):
        raise HostRefused(
            "the runs whose verdicts were to be timed did not propose at once: is the host very busy?"
        )
    return found


# --- throughput ---


def _throughput(bench: _Bench) -> dict[str, Measured]:
    daemon, size = bench.daemon, bench.size
    daemon.set_transport("sandboxed")
    at_once = max(1, min(4 * host.cores(), _room(daemon)))
    interpreter: list[float] = []
    rates: list[float] = []
    for _ in bench.times("whole runs", size.stretches):
        interpreter += [floors.spawned(bench.floors[F3]) for _ in range(8)]
        ends = sorted(_saturated(daemon, at_once, 5 * at_once))
        # Until the first there is no end yet, and when nobody starts more the host is not full any more.
        ends = ends[: 1 - at_once or None]
        rates.append((len(ends) - 1) / (ends[-1] - ends[0]) * 1e9)
    floor = host.cores() / statistics.median(interpreter) * 1e3
    rate = statistics.median(rates)
    bench.carries["runs_per_second"] = round(rate, 1)
    note = f"{at_once} at once"
    return {"runs-per-second": Measured(rate, size.stretches * 5 * at_once, floor, note=note)}


def _saturated(daemon: Daemon, at_once: int, number: int) -> list[int]:
    """Have runs made, so many at once; gives when each ended."""
    left, ends, lock = iter(range(number)), [], threading.Lock()
    failed: list[SplError] = []

    def work() -> None:
        try:
            while not failed:
                with lock:
                    if next(left, None) is None:
                        return
                ended = daemon.ends.wait(daemon.start())
                with lock:
                    ends.append(ended)
        except SplError as error:
            failed.append(error)

    # Broken off, it does not wait for them: each ends with the daemon.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return ends


def _room(daemon: Daemon) -> int:
    return int(daemon.health()["work_loop"]["admission_capacity"])


# --- memory ---


def _memory(bench: _Bench) -> dict[str, Measured]:
    daemon, size = bench.daemon, bench.size
    daemon.ends.wait(daemon.start())
    workers, monitors = [], []
    for _ in bench.times("memory", size.rounds):
        used = bench.helper.ask("idle", seconds=0.2)
        workers.append(used["worker"] / 2**20)
        monitors.append(used["monitor"] / 2**20)
    bench.heard("the daemon at rest", 0, 1)
    began, before = time.monotonic(), _wakeups(daemon.pid)
    time.sleep(size.rest_seconds)
    rate = (_wakeups(daemon.pid) - before) / (time.monotonic() - began)
    bench.heard("the daemon at rest", 1, 1)
    with open(f"/proc/{daemon.pid}/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    note = f"its monitor has {statistics.median(monitors):.2f} MiB beside it"
    return {
        "worker-memory": Measured.of(workers, note=note),
        "daemon-memory": Measured(resident, 1),
        "daemon-wakeups": Measured(rate, 1, note=f"over {size.rest_seconds:g} s"),
    }


def _wakeups(pid: int) -> int:
    """Give how often the threads of a process have gone to sleep so far (proc_pid_status(5))."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        # One that ended meanwhile was not at rest, and is not counted.
        with (
            suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8", errors="replace") as file,
        ):
            for line in file:
                if line.startswith("voluntary_ctxt_switches:"):
                    total += int(line.split()[1])
    return total


# --- the log ---


def _appends(bench: _Bench) -> dict[str, Measured]:
    bench.heard("appends", 0, 1)
    rounds = 40 if bench.size is WHOLE else 6
    rates = bench.helper.ask("append", folder=f"{bench.folder}/appends", rounds=rounds)
    bench.heard("appends", 1, 1)
    one, many = (statistics.median(each) for each in zip(*rates, strict=True))
    return {"appends": Measured(many, len(rates), one)}


def _log(bench: _Bench) -> str:
    """Make the long log, once; gives its home."""
    home = f"{bench.folder}/many"
    if not os.path.exists(home):
        bench.heard("the long log", 0, 1)
        bench.helper.ask("build", home=home, records=bench.size.records)
        bench.heard("the long log", 1, 1)
    return home


def _page(bench: _Bench) -> dict[str, Measured]:
    few, many = f"{bench.folder}/few", _log(bench)
    bench.helper.ask("build", home=few, records=1000)
    took = bench.helper.ask("page", few=few, many=many, rounds=4 * bench.size.samples)
    of_few, of_many = ([each / _MS for each in times] for times in zip(*took, strict=True))
    return {"thread-page": Measured.of(of_many, floor=statistics.median(of_few))}


# --- the command line and the daemon's start ---


def _help(bench: _Bench) -> dict[str, Measured]:
    environ = processes.environ()
    bare, help_ = [], []
    for _ in bench.times("spl --help", bench.size.starts):
        bare.append(floors.spawned([*processes.python(), "-c", "pass"], environ))
        command = [*processes.python(), "-m", "spl.cli.main", "--help"]
        help_.append(floors.spawned(command, environ, quiet=True))
    return {"help": Measured.of(help_, floor=statistics.median(bare))}


def _daemon_start(bench: _Bench) -> dict[str, Measured]:
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
        return (time.monotonic_ns() - began) / _MS


_GROUPS: Final[Mapping[tuple[str, ...], Callable[[_Bench], dict[str, Measured]]]] = {
    (F1, F2, F3, "cold-start", "sandboxed-wall"): _starts,
    (F4, "judgment", "judgment-16"): _judgment,
    ("runs-per-second",): _throughput,
    ("worker-memory", "daemon-memory", "daemon-wakeups"): _memory,
    ("appends",): _appends,
    ("thread-page",): _page,
    ("help",): _help,
    ("daemon-start",): _daemon_start,
}


def _carries(bench: _Bench) -> Json:
    """Give what a host of this size carries, by admission's worst case, and as fast as was measured."""
    return {
        "workers": _room(bench.daemon),
        "worker_bytes_at_most": bench.helper.facts["worker_bytes_at_most"],
        "runs_per_second": bench.carries.get("runs_per_second"),
    }
