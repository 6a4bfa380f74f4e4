"""The provider's key (B4): looked for everywhere, while runs go on and after, and given back by a hostile provider."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spl.errors import HomeUnsafe, ProviderFailed
from tests.end_to_end.counterparts import (
    ANTHROPIC,
    OPENAI,
    TRANSPORTS,
    Answer,
    Api,
    Exchange,
    Held,
    Price,
    Relay,
    fakellm,
    finished,
    furnish,
    put,
    relayed,
)
from tests.end_to_end.planted import Planted, left_by, looked_into, memory, processes
from tests.end_to_end.test_protection import monitor_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.daemon import Shape

PRICES = {api.model: Price("1", "5") for api in (OPENAI, ANTHROPIC)}
GOAL = "Take a note and be done"
NOTE = {"name": "record_note", "arguments": {"text": "noted"}}
RULES = [
    {
        "name": "a call",
        "when": {"previous_message_role": "system"},
        "respond": {"content": "So.", "tool_calls": [NOTE]},
    },
    {"name": "an end", "when": {}, "respond": {"content": "Done."}},
]


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    """Give the port of a fakellm that has every run take a note."""
    with tempfile.TemporaryDirectory() as folder, fakellm(Path(folder), RULES) as port:
        yield port


@pytest.mark.claim("B4")
def test_the_key_goes_to_the_provider_and_stands_nowhere_else_while_runs_go_on_and_after(
    shape: Shape, home: Path, relay: Relay
) -> None:
    planted = Planted()
    threads = []
    with relay.daemon(shape, home, PRICES, key=planted.key) as daemon:
        for transport in TRANSPORTS:
            daemon.set_transport(transport)
            relay.answer = held = Held()
            thread = daemon.start(GOAL)["thread"]
            threads.append(thread)
            held.wait_until_asked()
            # That it is found where it must be shows that the look finds it.
            assert planted.is_in(memory(daemon.process.pid))
            if transport == "sandboxed":
                worker = daemon.worker_pid(thread)
                own = memory(worker)
                assert GOAL.encode() in own
                assert planted.where({"the worker": own, "its monitor": memory(monitor_of(worker))}) == []
            assert planted.where(looked_into(daemon, threads)) == []
            held.let_go()
            row = daemon.finish(thread)
            assert (row["outcome"], row["turns"], row["tool_calls_ok"]) == ("completed", 2, 1)
        assert [relay.api.key_in(each.headers) for each in relay.exchanges] == [planted.key] * 4
        # Once in its header, and in nothing else of what is sent.
        assert not any(planted.is_in(json.dumps(each.asked).encode()) for each in relay.exchanges)
        assert not any(planted.is_in(each.path.encode()) for each in relay.exchanges)
        assert shape.run("backup", "--home", str(home)).returncode == 0
        assert planted.where(looked_into(daemon, threads)) == []
        left = left_by(daemon, planted.since)
        # The look goes into log and backups: what is known to be there is found.
        for folder in (home, home / "backups"):
            assert any(GOAL.encode() in data for where, data in left.items() if Path(where).parent == folder)
        assert planted.where(left) == []


def hostile(api: Api, exchange: Exchange, elsewhere: str) -> dict[str, Answer]:
    """Give answers that hold the key, by what they are."""
    key = str(api.key_in(exchange.headers))
    echo = api.error(f"bad headers: {json.dumps(dict(exchange.headers))}")
    named = api.error("no")
    named["error"]["type"] = key
    told, renamed = api.reply(f"Your key is {key}."), api.reply("So.")
    renamed["model"] = key
    return {
        **{f"{status}": Answer(status, echo, {"retry-after-ms": "1"}) for status in (400, 401, 403, 500)},
        "error of that name": Answer(422, named),
        "text": Answer(200, told),
        "arguments": Answer(200, api.reply("", {"name": "record_note", "arguments": {"text": key}})),
        "tool": Answer(200, api.reply("", {"name": key, "arguments": {}})),
        "model": Answer(200, renamed),
        "redirect": Answer(307, echo, {"location": elsewhere}),
    }


@pytest.mark.claim("B4")
def test_a_provider_that_gives_the_key_back_puts_it_nowhere_and_none_that_it_leads_to_gets_it(
    shape: Shape, home: Path, relay: Relay, upstream: int
) -> None:
    planted, api = Planted(), relay.api
    summaries: dict[str, set[str]] = {}
    threads = []
    with relayed(api, upstream) as elsewhere, relay.daemon(shape, home, PRICES, key=planted.key) as daemon:
        relay.answer = lambda exchange: hostile(api, exchange, elsewhere.url + "/messages")[goal]
        for transport in TRANSPORTS:
            daemon.set_transport(transport)
            for goal in hostile(api, Exchange("", {}, {}), ""):
                row = finished(daemon, goal)
                threads.append(row["thread"])
                assert (row["outcome"], row["turns"]) == ("failed", 0), goal
                assert row["summary"].startswith("The provider ")
                summaries.setdefault(goal, set()).add(f"t{row['summary'][1:].removesuffix('.')}")
                with pytest.raises(ProviderFailed) as failed:
                    daemon.request("POST", "/v1/provider/check", {})
                summaries[goal].add(failed.value.message)
                assert not planted.is_in(json.dumps(failed.value.fields).encode())
        assert all(api.key_in(each.headers) == planted.key for each in relay.exchanges)
        assert elsewhere.exchanges == []
        assert planted.where(looked_into(daemon, threads)) == []
        assert planted.where(left_by(daemon, planted.since)) == []
    assert not [line for line in daemon.log.lines if "Traceback" in line]
    name = api.name
    refused = "refused the key ({}), that of secrets/{}.key"
    held = "gave a malformed reply: it holds the key"
    said = {
        "400": "answered 400 (invalid_request_error)",
        "401": refused.format(401, name),
        "403": f"answered 403: it refuses what was asked, or the key of secrets/{name}.key",
        "500": "answered 500 (invalid_request_error)",
        "error of that name": "answered 422: no",
        **dict.fromkeys(("text", "arguments", "tool", "model"), held),
        "redirect": "answered 307, which leads elsewhere and is not followed",
    }
    assert summaries == {goal: {f"the provider {name!r} {why}"} for goal, why in said.items()}


def test_a_key_file_that_others_may_read_refuses_the_start_and_is_named(
    shape: Shape, home: Path, relay: Relay
) -> None:
    furnish(shape, home, relay, PRICES)
    put(relay.key_file(home), Planted().key, mode=0o644)
    done = shape.run("serve", "--home", str(home), "--port", "0")
    assert (done.returncode, done.stdout) == (HomeUnsafe.exit_status, "")
    name = f"'secrets/{relay.api.name}.key'"
    assert done.stderr.startswith(
        f"spl: HOME_UNSAFE: the key file {name} of the home is refused: its mode 0644"
    )


@pytest.mark.claim("B4")
def test_a_key_is_read_for_each_call_and_from_its_file_alone(
    same_user: Shape, home: Path, upstream: int
) -> None:
    first, second, others = Planted(), Planted(), Planted()
    nowhere = "http://127.0.0.1:1"
    environment = {"OPENAI_API_KEY": others.key, "OPENAI_BASE_URL": nowhere, "HTTP_PROXY": nowhere}
    with (
        relayed(OPENAI, upstream) as relay,
        relay.daemon(same_user, home, PRICES, key=first.key, **environment) as daemon,
    ):
        file = relay.key_file(home)
        assert others.where(processes()) == []
        relay.answer = lambda _: put(file, second.key) if len(relay.exchanges) == 1 else None
        assert finished(daemon, GOAL)["outcome"] == "completed"
        assert [OPENAI.key_in(each.headers) for each in relay.exchanges] == [first.key, second.key]
        file.chmod(0o640)
        row = finished(daemon, GOAL)
        assert row["outcome"] == "failed"
        assert "The key file 'secrets/openai.key' of the home is refused: its mode 0640" in row["summary"]
        file.unlink()
        assert len(relay.exchanges) == 2
        assert finished(daemon, GOAL)["outcome"] == "completed"
        assert {"authorization", "x-api-key"} & set(relay.exchanges[-1].headers) == set()
        assert others.where(looked_into(daemon, [])) == []
