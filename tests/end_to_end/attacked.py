"""Runs whose worker means harm: what it was told, what it wrote, and what it must not have touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from spl.kernel import names
from spl.records.record import record_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.end_to_end.daemon import Daemon, Json

_T = TypeVar("_T")


def start(daemon: Daemon, goal: str, actor: str | None = None, **fields: Any) -> str:
    """Start a run, by an actor of its own if none is given; gives its thread."""
    who = actor or f"did:sync:user:{''.join(filter(str.isalpha, goal))}"
    return str(daemon.start(goal, actor=who, **fields)["thread"])


def suffer(daemon: Daemon, goal: str, **fields: Any) -> tuple[Json, dict[str, str]]:
    """See a run of an actor of its own to its end; gives its row and what it was told.

    Nothing may have been written but its own thread, and its actor, who may have one run at a time, starts the next.
    """
    before = count(daemon)
    row = daemon.finish(start(daemon, goal, **fields))
    records = written(daemon, row)
    assert count(daemon) - before == len(records)
    again = daemon.finish(start(daemon, "honest work", row["actor"]))
    assert again["outcome"] == "completed"
    told: list[Json] = reports(daemon, row["thread"])
    return row, told[-1]["told"] if told else {}


def written(daemon: Daemon, row: Json) -> list[Json]:
    """Give the bodies on a run's thread, having checked that they are one whole chain, each by whom it must be by."""
    query = {"thread": row["thread"], "limit": 1000}
    records = daemon.client.request("GET", "/v1/records", query=query)["data"]
    head: list[str] = []
    allowed: set[str] = set()
    for record in records:
        body, kind = record["body"], record["body"]["kind"]
        seven = ("parents", "thread", "actor", "act", "body", "clock", "data_type")
        assert record["id"] == record_id(*(record[name] for name in seven))
        assert record["parents"] == head
        head = [record["id"]]
        result = (kind, body.get("tool")) == (names.TOOL_RESULT, "calculate")
        own = result or kind in (names.PLAN, names.REPORT)
        assert record["actor"] == (row["actor"] if own else names.ENGINE), body
        if kind == names.TOOL_VERDICT and body["decision"] == "allow":
            allowed.add(body["fulfills"])
        if kind == names.TOOL_RESULT:
            allowed.remove(body["fulfills"])
    bodies = [record["body"] for record in records]
    kinds = [body["kind"] for body in bodies]
    assert kinds[:2] == [names.LOOP, names.ISOLATION]
    assert [at for at, kind in enumerate(kinds) if kind == names.OUTCOME] == [len(kinds) - 1]
    assert kinds.count(names.TURN) == row["turns"]
    said = ("outcome", "state", "turns", "tool_calls_ok", "tool_calls_failed", "spent_usd", "summary")
    assert {name: bodies[-1][name] for name in said} == {name: row[name] for name in said}
    return bodies


def reports(daemon: Daemon, thread: str) -> list[Json]:
    """Give what a worker has told of itself."""
    return daemon.bodies(thread, names.REPORT)


def count(daemon: Daemon) -> int:
    """Give how many records there are."""
    return int(daemon.request("GET", "/v1/engine/health")["records"])


def until(daemon: Daemon, look: Callable[[], _T]) -> _T:
    """Look, request after request, until there is something."""
    while not (found := look()):
        assert daemon.process.poll() is None
    return found
