"""Many members at one real daemon at once, with more runs than there are places: what they are answered, and when."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any

from escape.instance import VERIFY_GOAL
from spl.kernel.names import TIER
from tests.end_to_end import leaks
from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.end_to_end.daemon import Daemon, Json

TIERS = ("trial", "paid")
"""Of the members in turn: one run at once, and five."""

SOMEBODY = "did:sync:user:somebody"

_LOOKS = 0.02
"""Seconds between two looks at the daemon while the runs go on."""

_PATIENCE = 60
"""How often a client comes again without being given anything before the test fails."""

Answer = tuple[int, str | None]
"""A status, and an error's code."""


@dataclass
class Figures:
    """What became of the runs, and what the daemon held and how it answered meanwhile."""

    capacity: int
    members: dict[str, str]
    answers: Counter[Answer] = field(default_factory=Counter)
    unasked: list[Json] = field(default_factory=list)
    """Refusals that do not say what they must."""
    threads: dict[str, list[str]] = field(default_factory=dict)
    """Of each member, those of its runs."""
    own: list[str] = field(default_factory=list)
    """The threads of the runs that the operator started beside them."""
    rows: list[Json] = field(default_factory=list)
    waited: dict[str, list[float]] = field(default_factory=dict)
    """Of each member, the seconds from when all began until each of its starts was taken."""
    looks: list[Look] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    """Seconds that health took to answer, one look after another."""
    verdicts: list[float] = field(default_factory=list)
    """Seconds from the start to the end of each of the operator's own runs in process, with one verdict in it."""
    before: dict[str, Counter[str]] = field(default_factory=dict)
    after: dict[str, Counter[str]] = field(default_factory=dict)
    memory: tuple[int, int] = (0, 0)
    """KiB, before and after."""
    seconds: float = 0.0
    """From when all began until the last run had ended."""

    def count(self, status: int, headers: Mapping[str, str], said: Json) -> None:
        """Count an answer to a start, and keep it if it says less than it must."""
        code = said.get("code")
        self.answers[status, code] += 1
        if code == "ADMISSION_CEILING":
            numbers = [said.get("admission_capacity"), said.get("admission_available")]
            told = numbers[0] == self.capacity and numbers[1] in range(self.capacity + 1)
        else:
            told = True
        if status != 201 and not (told and int(headers.get("retry-after", 0)) >= 1):
            self.unasked.append({"headers": dict(headers), **said})

    def leaked(self) -> dict[str, Counter[str]]:
        """Give what is there after and was not before."""
        return {kind: self.after[kind] - was for kind, was in self.before.items() if self.after[kind] - was}


@dataclass(frozen=True)
class Look:
    """What the daemon held at one moment; `memory` is KiB."""

    memory: int
    descriptors: int
    workers: int


class Caller:
    """One connection of somebody with a token."""

    def __init__(self, daemon: Daemon, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=SECONDS)
        self._headers = {"authorization": f"Bearer {token}"}

    def ask(self, method: str, path: str, body: Json | None = None) -> tuple[int, Mapping[str, str], Any]:
        """Give the status, the headers and the answer."""
        raw = None if body is None else json.dumps(body)
        self._connection.request(method, path, raw, self._headers)
        answer = self._connection.getresponse()
        said = json.loads(answer.read())
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, said

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def add_members(
    daemon: Daemon, number: int, tiers: Sequence[str] = TIERS, *, prefix: str = "m"
) -> dict[str, tuple[str, str]]:
    """Add members of these tiers in turn; gives each one's tier and token by label."""
    operator = Caller(daemon, (daemon.home / "token").read_text().strip())
    with contextlib.closing(operator):
        found = {}
        for place, tier in zip(range(number), cycle(tiers), strict=False):
            label = f"{prefix}{place:02}"
            status, _, said = operator.ask("POST", "/v1/members", {"label": label, "tier": tier})
            assert status == 201, said
            found[label] = (tier, said["token"])
        return found


def load(daemon: Daemon, members: int, runs: int, capacity: int) -> Figures:
    """Have so many members start so many runs between them, all beginning at once, until every run has ended.

    Each asks for one run after another, and where it is refused, for the next; it asks again when `Retry-After` says.
    """
    daemon.configure(topic="admission_capacity", capacity=capacity)
    added = add_members(daemon, members)
    figures = Figures(capacity, {label: tier for label, (tier, _) in added.items()})
    # What a daemon loads on first use, and keeps.
    figures.own = [
        daemon.finish(daemon.start(**who)["thread"])["thread"] for who in ({"actor": SOMEBODY}, {})
    ]
    figures.before, figures.memory = leaks.at_rest(daemon), (leaks.memory(daemon), 0)
    began = threading.Barrier(members + 1)
    with watched(daemon, figures), ThreadPoolExecutor(members) as pool:
        clients = [
            pool.submit(
                _patient, daemon, label, token, runs // members + (place < runs % members), began, figures
            )
            for place, (label, (_, token)) in enumerate(added.items())
        ]
        began.wait(SECONDS)
        at = time.monotonic()
        for client in clients:
            client.result()
        figures.rows = [daemon.finish(thread) for found in figures.threads.values() for thread in found]
        figures.seconds = time.monotonic() - at
    figures.after = leaks.settled(daemon, figures.before)
    figures.memory = figures.memory[0], leaks.memory(daemon)
    return figures


def _patient(
    daemon: Daemon, label: str, token: str, runs: int, began: threading.Barrier, figures: Figures
) -> None:
    """Be a member's client that comes again when it is told to, until each of its runs was taken."""
    with contextlib.closing(Caller(daemon, token)) as caller:
        threads, waited = figures.threads.setdefault(label, []), figures.waited.setdefault(label, [])
        began.wait(SECONDS)
        at = time.monotonic()
        left, in_vain = runs, 0
        while left:
            assert in_vain < _PATIENCE, f"{label} is kept out: {figures.answers}"
            pause, in_vain = 0.0, in_vain + 1
            for _ in range(left):
                status, headers, said = caller.ask("POST", "/v1/work/loop", {"goal": VERIFY_GOAL})
                figures.count(status, headers, said)
                if status == 201:
                    threads.append(said["thread"])
                    waited.append(time.monotonic() - at)
                    left, in_vain = left - 1, 0
                else:
                    pause = max(pause, float(headers.get("retry-after", 1)))
            _pause(pause)


def _pause(seconds: float) -> None:
    # What a client does that is told when to come again; no test waits for anything by it.
    threading.Event().wait(seconds)


@contextlib.contextmanager
def watched(daemon: Daemon, figures: Figures) -> Iterator[None]:
    """Look at the daemon for as long as this lasts, and have the operator do runs of its own in process."""
    over = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(_look, daemon, figures, over), pool.submit(_operate, daemon, figures, over)]
        try:
            yield
        finally:
            over.set()
        for task in tasks:
            task.result()


def _look(daemon: Daemon, figures: Figures, over: threading.Event) -> None:
    with contextlib.closing(Caller(daemon, (daemon.home / "token").read_text().strip())) as caller:
        while not over.wait(_LOOKS):
            workers, descriptors = leaks.workers(daemon), leaks.descriptors(daemon)
            figures.looks.append(Look(leaks.memory(daemon), descriptors, workers))
            at = time.monotonic()
            status, _, said = caller.ask("GET", "/v1/engine/health")
            figures.health.append(time.monotonic() - at)
            assert status == 200, said


def _operate(daemon: Daemon, figures: Figures, over: threading.Event) -> None:
    while not over.is_set():
        at = time.monotonic()
        row = daemon.finish(daemon.start()["thread"])
        figures.own.append(row["thread"])
        figures.verdicts.append(time.monotonic() - at)
        assert (row["transport"], row["outcome"]) == ("in_process", "completed"), row


@dataclass
class Crowd:
    """What patient members had to wait for beside one that asks without end."""

    capacity: int
    connections: int
    greedy: int = 0
    """How many runs the greedy one was given in that time."""
    asked: int = 0
    """How often it asked."""
    waited: list[float] = field(default_factory=list)
    """Seconds that each of the others waited for its one run."""


def crowd(daemon: Daemon, members: int, capacity: int, connections: int = 20) -> Crowd:
    """Have so many members each start one run beside one of the tier `team` that asks over many connections at once."""
    daemon.configure(topic="admission_capacity", capacity=capacity)
    # It may go on for as long as it takes.
    daemon.configure(kind=TIER, tier="team", daily_runs=1_000_000)
    found = Crowd(capacity, connections)
    ((_, token),) = add_members(daemon, 1, ["team"], prefix=f"without-end{capacity}-").values()
    others = add_members(daemon, members, prefix=f"beside{capacity}-")
    figures = Figures(capacity, {})
    full, over, began = threading.Event(), threading.Event(), threading.Barrier(members)

    def asks_without_end() -> tuple[int, int]:
        given = asked = 0
        with contextlib.closing(Caller(daemon, token)) as caller:
            while not over.is_set():
                status, _, _ = caller.ask("POST", "/v1/work/loop", {"goal": VERIFY_GOAL})
                given, asked = given + (status == 201), asked + 1
                if status != 201:
                    full.set()
        return given, asked

    with ThreadPoolExecutor(connections + members) as pool:
        greedy = [pool.submit(asks_without_end) for _ in range(connections)]
        try:
            assert full.wait(SECONDS)
            patient = [
                pool.submit(_patient, daemon, label, token, 1, began, figures)
                for label, (_, token) in others.items()
            ]
            for other in patient:
                other.result()
        finally:
            over.set()
    for given, asked in (one.result() for one in greedy):
        found.greedy, found.asked = found.greedy + given, found.asked + asked
    found.waited = sorted(seconds for waited in figures.waited.values() for seconds in waited)
    return found


# --- what is told of it ---


def told(found: Mapping[str, tuple[Figures, Sequence[Crowd]]]) -> str:
    """Give the section of docs/soak.md, from what was found in each shape."""
    first = next(iter(found.values()))[0]
    runs, members = len(first.rows), len(first.members)
    parts = [
        f"""
## Load

{runs} sandboxed runs (the verify goal) of {members} members, half of them of the tier `trial` (one run at once), half
`paid` (five), all asking at once for {first.capacity} places and again when `Retry-After` says. Every run ended
`completed`, every refusal was one of those below, and afterwards nothing was held that was not before. Meanwhile the
operator's own runs went on in process, one after another. With places kept for whoever waits, some stand empty until
that one asks again; with runs as short as these that is a good part of the time.

| | {" | ".join(found)} |
|---|{"---|" * len(found)}
"""
    ]
    parts += [
        f"| {name} | {' | '.join(value(figures) for figures, _ in found.values())} |\n"
        for name, value in _ROWS
    ]
    parts.append(
        """
One member of the tier `team` that asks without end, beside others that ask for one run each and come again when they
are told to: in seconds, how long the others waited.

| shape | places | connections of the one | its asking | its runs | others | waited, half of them | at most |
|---|---|---|---|---|---|---|---|
"""
    )
    parts += [
        f"| {name} | {each.capacity} | {each.connections} | {each.asked} | {each.greedy} | {len(each.waited)} "
        f"| {_part(each.waited, 0.5):.1f} | {each.waited[-1]:.1f} |\n"
        for name, (_, crowds) in found.items()
        for each in crowds
    ]
    return "".join(parts)


def _part(values: Sequence[float], part: float) -> float:
    """Give the value that this part of all does not pass."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def _spread(tier: str) -> Callable[[Figures], str]:
    def spread(figures: Figures) -> str:
        last = [max(waited) for label, waited in figures.waited.items() if figures.members[label] == tier]
        return f"{min(last):.1f} to {max(last):.1f} s"

    return spread


def _ms(values: Callable[[Figures], Sequence[float]]) -> Callable[[Figures], str]:
    return lambda figures: (
        " / ".join(f"{1000 * _part(values(figures), part):.0f}" for part in (0.5, 0.99))
        + f" ms, of {len(values(figures))}"
    )


def _answers(status: int, code: str | None) -> Callable[[Figures], str]:
    return lambda figures: str(figures.answers[status, code])


_ANSWERS = ((201, ""), (503, "ADMISSION_CEILING"), (429, "WORK_CONCURRENCY_EXCEEDED"))
_ROWS: Sequence[tuple[str, Callable[[Figures], str]]] = (
    ("from the first start to the last end", lambda figures: f"{figures.seconds:.1f} s"),
    *(
        (f"answered {status}{code and f' `{code}`'}", _answers(status, code or None))
        for status, code in _ANSWERS
    ),
    ("a `trial` member's last run was taken after", _spread("trial")),
    ("a `paid` member's last run was taken after", _spread("paid")),
    ("workers at once, at most", lambda figures: str(max(look.workers for look in figures.looks))),
    ("health answered, p50 / p99", _ms(lambda figures: figures.health)),
    ("a run of the operator's in process, p50 / p99", _ms(lambda figures: figures.verdicts)),
    (
        "the daemon's memory before, at most, after",
        lambda figures: (
            ", ".join(
                f"{kib / 1024:.1f}"
                for kib in (figures.memory[0], max(look.memory for look in figures.looks), figures.memory[1])
            )
            + " MiB"
        ),
    ),
    (
        "its descriptors before, at most, after",
        lambda figures: ", ".join(
            map(
                str,
                (
                    figures.before["descriptors"].total(),
                    max(look.descriptors for look in figures.looks),
                    figures.after["descriptors"].total(),
                ),
            )
        ),
    ),
)
