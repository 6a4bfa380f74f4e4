"""What is told of the engine while it works: its workers as the host has them, and its log as it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from spl.client import Event
    from tests.end_to_end.daemon import Shape
    from tests.end_to_end.model import Model


def until(events: Iterator[Event], name: str, holds: Callable[[Any], bool]) -> Any:
    """Read on to the first event of a name that is as it should be."""
    for event in events:
        if event.name == name and holds(event.data):
            return event.data
    raise AssertionError(f"the stream ended without the {name!r} that was waited for")


def test_a_worker_is_told_of_with_what_it_uses_from_its_start_to_its_end(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        daemon.set_transport("sandboxed")
        events = daemon.client.watch("/v1/engine/watch")
        until(events, "engine.workers", lambda told: told["workers"] == [])
        thread = daemon.start("Go on.")["thread"]
        asked = model.asked()
        pid = daemon.worker_pid(thread)
        line = until(events, "engine.log", lambda told: told["line"]["event"] == "running sandboxed")["line"]
        assert (line["thread"], line["pid"]) == (thread, pid)
        (worker,) = until(events, "engine.workers", lambda told: bool(told["workers"]))["workers"]
        assert (worker["thread"], worker["pid"]) == (thread, pid)
        # An interpreter takes more than this, and its profile lets it have no more than that.
        assert 4 << 20 < worker["memory_bytes"] < 512 << 20
        assert 0 <= worker["cpu_seconds"] < 60
        asked.answer({"text": "Done."})
        daemon.finish(thread)
        until(events, "engine.workers", lambda told: told["workers"] == [])
