from __future__ import annotations

import asyncio
import logging
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from spl.logs import Recent
from tests.api.served import serve
from tests.kernel.instance import says

if TYPE_CHECKING:
    from pathlib import Path

    from tests.api.served import Served, Watcher

PATH = "/v1/engine/watch"


def log(served: Served, text: str) -> None:
    served.log.handle(logging.LogRecord("spl", logging.INFO, "", 0, text, None, None))


async def told(watcher: Watcher, name: str) -> Any:
    """Read on to the next event of a name."""
    while (event := await watcher.next()) is not None:
        if event.name == name:
            return event.data
    raise AssertionError(f"the stream ended without {name!r}")


def test_the_engine_is_told_at_once_as_it_is_and_again_when_it_has_changed(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        log(served, "one")
        async with served.watch(PATH) as watcher:
            assert (await watcher.head()).status == 200
            health = await told(watcher, "engine.health")
            assert health["work_loop"]["transport"] == "in_process"
            assert await told(watcher, "engine.workers") == {"workers": []}
            assert await told(watcher, "engine.log") == {
                "number": 1,
                "line": {"event": "one", "level": "INFO"},
            }
            await served.ask(
                "POST",
                "/v1/records",
                {
                    "thread": "th_engine_config",
                    "actor": "did:sync:system:engine",
                    "act": "LEARN",
                    "body": {
                        "kind": "core.engine.config.v1",
                        "topic": "work_loop_transport",
                        "transport": "sandboxed",
                    },
                },
            )
            assert (await told(watcher, "engine.health"))["work_loop"]["transport"] == "sandboxed"

    serve(tmp_path, talk)


def test_a_line_of_the_log_is_told_once_whichever_thread_logs_it(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        async with served.watch(PATH) as watcher:
            await watcher.head()
            await told(watcher, "engine.workers")
            for text in ("two", "three"):
                other = threading.Thread(target=log, args=(served, text))
                other.start()
                other.join()
            lines = [await told(watcher, "engine.log") for _ in range(2)]
            assert [line["line"]["event"] for line in lines] == ["two", "three"]
            assert lines[1]["number"] == lines[0]["number"] + 1

    serve(tmp_path, talk)


def test_the_stream_is_the_administrators_and_ends_with_its_bearer(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        refused = await served.ask("GET", PATH, bearer=await served.member())
        assert refused.refusal == (403, "SCOPE_DENIED")
        bearer = await served.token("admin")
        async with served.watch(PATH, bearer=bearer) as watcher:
            await watcher.head()
            await told(watcher, "engine.workers")
            tokens = (await served.ask("GET", "/v1/tokens")).json["data"]
            await served.ask("DELETE", f"/v1/tokens/{tokens[-1]['id']}")
            log(served, "after")
            assert (await told(watcher, "error"))["code"] == "TOKEN_REVOKED"
            assert await watcher.next() is None

    serve(tmp_path, talk)


def test_a_daemon_that_stops_says_so_and_heartbeats_tell_that_it_is_there(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        async with served.watch(PATH) as watcher:
            await watcher.head()
            assert await told(watcher, "heartbeat") == {}
            served.watching.stop()
            assert "retry_after_ms" in await told(watcher, "server_shutdown")

    serve(tmp_path, talk, heartbeat=0)


def test_spending_is_told_of_all_to_the_operator_and_of_its_own_to_a_member(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        member = await served.member("mia")
        usage = served.here.kernel.usage
        for actor, usd in (("did:sync:user:mia", "0.25"), ("did:sync:user:ned", "0.5")):
            usage.reserve(actor, Decimal(usd))
            usage.settle(actor, Decimal(usd), Decimal(usd))
        assert (await served.ask("GET", "/v1/engine/health")).json["spend"]["usd"] == 0.75
        assert (await served.ask("GET", "/v1/engine/health", bearer=member)).json["spend"]["usd"] == 0.25

    serve(tmp_path, talk)


def test_runs_are_listed_newest_first_where_that_is_asked(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        threads = []
        for number in range(3):
            answer = await served.ask("POST", "/v1/work/loop", {"goal": f"goal {number}"})
            threads.append(answer.json["thread"])
            async with asyncio.timeout(20):
                while served.here.kernel.live:  # noqa: ASYNC110 - what ends is the daemon's, which tells nobody
                    await asyncio.sleep(0)
        newest = (await served.ask("GET", "/v1/runs?order=newest&limit=2")).json
        assert [row["thread"] for row in newest["data"]] == threads[:0:-1]
        assert newest["has_more"] is True
        every = (await served.ask("GET", "/v1/runs?order=newest&state=done")).json
        assert [row["thread"] for row in every["data"]] == threads[::-1]
        assert every["has_more"] is False
        assert (await served.ask("GET", "/v1/runs?order=newest&state=running")).json["data"] == []
        for wrong in ("order=sideways", "order=newest&since=1"):
            assert (await served.ask("GET", f"/v1/runs?{wrong}")).refusal == (422, "INVALID_BODY")

    serve(tmp_path, talk, says("Done."), says("Done."), says("Done."))


def test_of_the_lines_the_newest_thousand_are_kept() -> None:
    recent = Recent()
    recent.setFormatter(logging.Formatter('{"event": "%(message)s"}'))
    for number in range(1005):
        recent.handle(logging.LogRecord("spl", logging.INFO, "", 0, str(number), None, None))
    kept = recent.after(0)
    assert len(kept) == 1000
    assert (kept[0].number, kept[-1].fields) == (6, {"event": "1004"})
    assert [line.number for line in recent.after(1003, 1)] == [1005]
