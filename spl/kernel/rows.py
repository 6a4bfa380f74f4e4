"""A run's row: from the kernel's own state while it is live, from its records once it has ended.

Only records that the kernel or the run itself wrote on its chain count; what others put on the thread does not.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from spl.errors import RunNotFound
from spl.kernel.names import ENGINE, LOOP, OUTCOME, TOOL_RESULT, TOOL_VERDICT, TURN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spl.kernel.runs import Run
    from spl.records.record import Record
    from spl.records.store import Store

_PAGE, _PAGE_BYTES = 100, 4 << 20

Json = dict[str, Any]

State = Literal["running", "done", "stopped", "stopped_short"]


class Folded(NamedTuple):
    """What a run's records come to: its row, its chain's head, and how many allowed calls are without a result."""

    row: Json
    head: str
    going: int
    ok_in_kernel: int


class Rows:
    """The rows of all runs: of those that are `live`, and of those in the log."""

    def __init__(self, store: Store, live: Mapping[str, Run]) -> None:
        self._store = store
        self._live = live

    async def row(self, thread: str, *, whose: str | None = None) -> Json:
        """Give a run's row; raises `RunNotFound`, also for a run that is another's than the actor `whose`."""
        if run := self._live.get(thread):
            row = live_row(run)
        else:
            anchor = await self._store.select(thread=thread, kind=LOOP, limit=1)
            if not anchor:
                raise RunNotFound(f"there is no run on the thread {thread!r}")
            outcome = await self._store.select(thread=thread, kind=OUTCOME, limit=1)
            # An outcome says all that the records before it add up to.
            row = row_from_records([*anchor, *outcome]) if outcome else (await self.fold(thread)).row
        if whose is not None and row["actor"] != whose:
            raise RunNotFound(f"there is no run on the thread {thread!r}")
        return row

    async def page(
        self, *, state: str | None, actor: str | None, since: int, limit: int, most_bytes: int = _PAGE_BYTES
    ) -> tuple[list[Json], bool]:
        """Give rows of runs, oldest first, whose anchor's sequence is above `since`, and whether there are more.

        It ends early where the goals and summaries pass so many characters.
        """
        found: list[Json] = []
        while anchors := await self._store.select(
            kind=LOOP, owner=actor, since=since, limit=limit + 1, most_bytes=_PAGE_BYTES
        ):
            for anchor in anchors:
                since = anchor.sequence
                row = {**await self.row(anchor.thread), "sequence": anchor.sequence}
                if state is None or row["state"] == state:
                    if len(found) == limit or most_bytes <= 0:
                        return found, True
                    found.append(row)
                    most_bytes -= len(row["goal"]) + len(row["summary"] or "")
        return found, False

    async def newest(
        self, *, state: str | None, actor: str | None, limit: int, most_bytes: int = _PAGE_BYTES
    ) -> tuple[list[Json], bool]:
        """Give the rows of the `limit` newest runs, newest first, those in a `state` only, and whether there are older.

        It ends early where the goals and summaries pass so many characters.
        """
        found: list[Json] = []
        last = 0
        for anchor in await self._store.select(
            kind=LOOP, owner=actor, limit=limit, newest_first=True, most_bytes=_PAGE_BYTES
        ):
            if most_bytes <= 0:
                break
            row = {**await self.row(anchor.thread), "sequence": anchor.sequence}
            last = anchor.sequence
            most_bytes -= len(row["goal"]) + len(row["summary"] or "")
            if state in (None, row["state"]):
                found.append(row)
        first = await self._store.select(kind=LOOP, owner=actor, limit=1)
        return found, bool(first) and first[0].sequence < last

    async def fold(self, thread: str) -> Folded:
        """Give what a run's records come to, a page at a time."""
        row: Json = {}
        head, since, going, ok_in_kernel = "", 0, 0, 0
        while page := await self._store.select(
            thread=thread, since=since, limit=_PAGE, most_bytes=_PAGE_BYTES
        ):
            row, head = row_from_records(page, row), _head(page, head)
            going += sum(_going(record) for record in page)
            ok_in_kernel += sum(_is_ok_in_kernel(record) for record in page)
            since = page[-1].sequence
        return Folded(row, head, going, ok_in_kernel)


def live_row(run: Run) -> Json:
    """Give the row of a run that is going on."""
    terms = run.terms
    return {
        **_begun(terms.thread, {**terms.wire(), "started_at": terms.started_at}),
        "turns": run.budget.turns,
        "spent_usd": float(run.budget.spent_usd),
        "tool_calls_ok": run.tally.ok,
        "tool_calls_failed": run.tally.failed,
    }


def row_from_records(records: Iterable[Record], row: Json | None = None) -> Json:
    """Give the row that a run's records tell, or tell after those that told `row`; the first of all is the anchor."""
    row = {} if row is None else row
    for record in records:
        body = record.body
        if record.kind == LOOP and record.actor == ENGINE:
            row = _begun(record.thread, body)
        elif record.kind == TURN and record.actor == ENGINE:
            row["turns"] += 1
            row["spent_usd"] = float(Decimal(str(row["spent_usd"])) + Decimal(str(body["cost_usd"])))
        elif record.kind == TOOL_VERDICT and record.actor == ENGINE:
            row["tool_calls_failed"] += body["decision"] != "allow"
        elif record.kind == TOOL_RESULT:
            row["tool_calls_ok" if body["status"] == "ok" else "tool_calls_failed"] += 1
        elif record.kind == OUTCOME and record.actor == ENGINE:
            row |= {name: body[name] for name in _FROM_OUTCOME}
    return row


_FROM_OUTCOME = (
    "state",
    "turns",
    "spent_usd",
    "tool_calls_ok",
    "tool_calls_failed",
    "ended_at",
    "summary",
    "outcome",
)


def _begun(thread: str, body: Json) -> Json:
    """Give the row of a run that has its anchor, with this body, and nothing else yet."""
    named = ("actor", "goal", "tier", "transport", "profile")
    return {
        "thread": thread,
        **{name: body[name] for name in named},
        "state": "running",
        "model": body["model"],
        "tools": body["tools"],
        "narrowed": body["narrowed"],
        "turns": 0,
        **body["ceilings"],
        "spent_usd": 0.0,
        "tool_calls_ok": 0,
        "tool_calls_failed": 0,
        "started_at": body["started_at"],
        "ended_at": None,
        "summary": None,
        "outcome": None,
    }


def _is_ok_in_kernel(record: Record) -> bool:
    return record.kind == TOOL_RESULT and record.actor == ENGINE and record.body["status"] == "ok"


def _going(record: Record) -> int:
    if record.kind == TOOL_VERDICT and record.actor == ENGINE:
        return int(record.body["decision"] == "allow")
    return -int(record.kind == TOOL_RESULT)


def _head(records: Sequence[Record], head: str) -> str:
    """Give the last record of a run's chain: the anchor, or what names the one before it as its only parent."""
    for record in records:
        if record.kind == LOOP or (
            head and record.parents == (head,) and (record.kind or "").startswith("core.work.")
        ):
            head = record.id
    return head
