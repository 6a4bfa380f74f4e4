"""Every kind of secret: planted in one daemon, used in every way, and looked for everywhere."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.counterparts import OPENAI, Answer, Held, Price, Relay, finished, relayed
from tests.end_to_end.daemon import SECONDS
from tests.end_to_end.planted import Pieces, Planted, files, left_by, looked_into
from tests.end_to_end.test_isolation import credential_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.end_to_end.counterparts import Exchange
    from tests.end_to_end.daemon import Daemon, Shape

PRICES = {OPENAI.model: Price("1", "5")}
REDACTED = b"[redacted]"
COMMANDS = ("status", "doctor", "backup", "runs list", "token list", "provider check", "verify hub.db")


def secret_of(token: str) -> Planted:
    """Give what of a token is secret: its last 43 characters."""
    return Planted(token[-43:])


def echoed(exchange: Exchange) -> Answer:
    """Give the answer of a provider that says what it was sent."""
    return Answer(400, OPENAI.error(f"bad headers: {json.dumps(dict(exchange.headers))}"))


def done(_: Exchange) -> Answer:
    """Give the answer that ends a run."""
    return Answer(200, OPENAI.reply("Done."))


def then(held: Held, answer: Callable[[Exchange], Answer]) -> Callable[[Exchange], Answer]:
    """Give an answer once it is let go."""

    def waits(exchange: Exchange) -> Answer:
        held(exchange)
        return answer(exchange)

    return waits


def asked_badly(daemon: Daemon, token: str) -> Pieces:
    """Ask in ways that are wrong with a token wherever one can be put; gives the answers.

    Not those to a token in the place of something else: they quote what was wrong, to whoever said it.
    """
    bearer = {"authorization": f"Bearer {token}"}
    asked: list[tuple[str, str, dict[str, str], str | None]] = [
        ("GET", f"/v1/runs?token={token}", bearer, None),
        ("GET", f"/v1/runs/{token}", bearer, None),
        ("GET", f"/{token}", {}, None),
        ("GET", "/metrics", bearer, None),
        ("GET", "/v1/runs", {"authorization": f"Bearer {token}x"}, None),
        ("GET", "/v1/runs", {"authorization": f"Basic {token}"}, None),
        ("GET", "/v1/runs", {"authorization": f"Bearer {token}", "x-api-key": f"y{token}"}, None),
        (token, "/v1/runs", bearer, None),
        ("POST", "/v1/work/loop", bearer, f'{{"goal": "{token}'),
        ("POST", "/v1/work/loop", bearer, json.dumps({"goal": "x", token: token})),
        ("POST", "/v1/work/loop", bearer, json.dumps({"goal": "x", "model": token})),
        ("POST", "/v1/records", bearer, json.dumps({"thread": token, "actor": token, "act": token})),
    ]
    found = {}
    for number, request in enumerate(asked):
        status, said = ask(daemon, *request)
        assert 400 <= status < 500, request[:2]
        method, path, _, body = request
        if token not in f"{method}{path}{body}":
            found[f"answer {number}"] = said
    return found


def ask(
    daemon: Daemon, method: str, path: str, headers: dict[str, str], body: str | None = None
) -> tuple[int, bytes]:
    """Ask as anybody may who has something to send, however wrong; gives the status, and headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, str(answer.headers).encode() + answer.read()


def told(daemon: Daemon, last: str) -> bytes:
    """Give the lines of the log as whoever watches the engine is told them, up to a run's end."""
    found = []
    stream = daemon.client.watch("/v1/engine/watch")
    with contextlib.closing(stream):  # type: ignore[type-var]
        for event in stream:
            if event.name == "engine.log":
                found.append(json.dumps(event.data))
                if '"run ended"' in found[-1] and last in found[-1]:
                    break
    return "".join(found).encode()


@pytest.mark.claim("B4", "M2", "I7")
@pytest.mark.one_shape
def test_no_secret_stands_anywhere_and_if_somebody_logged_them_all_they_would_be_taken_out(
    shape: Shape, home: Path
) -> None:
    # A key that looks like none.
    key = Planted(secrets.token_urlsafe(40))
    variable, password, typed = Planted(), Planted(), Planted()
    careless = home.with_name("careless")
    environment = {
        "OPENAI_API_KEY": variable.key,
        "HTTPS_PROXY": f"http://ana:{password.key}@127.0.0.1:1",
        "SPL_LOG_FORMAT": "console",
        "CARELESS": str(careless),
    }
    planted = {"key": key, "variable": variable, "password": password}
    others: Pieces = {}
    threads: list[str] = []
    with contextlib.ExitStack() as stack:
        relay: Relay = stack.enter_context(relayed(OPENAI, 0))
        as_if = replace(shape, program="tests.end_to_end.careless")
        daemon = stack.enter_context(relay.daemon(as_if, home, PRICES, key=key.key, **environment))
        member = daemon.request("POST", "/v1/members", {"label": "mia"})["token"]
        planted |= {"operator": secret_of((home / "token").read_text().strip()), "member": secret_of(member)}

        def found(pieces: Pieces) -> list[str]:
            return [f"{name} in {where}" for name, each in planted.items() for where in each.where(pieces)]

        def everywhere() -> list[str]:
            pieces = looked_into(daemon, threads)
            # The one file that holds it.
            del pieces[f"{home}/token"]
            return found(pieces)

        for transport, answer in (("in_process", echoed), ("sandboxed", done)):
            daemon.set_transport(transport)
            held = Held()
            stack.callback(held.let_go)
            relay.answer = then(held, answer)
            # What a person typed is the record's, which keeps what they said; it is not the log's.
            thread = daemon.start(f"Use {typed.key}")["thread"]
            threads.append(thread)
            held.wait_until_asked()
            if transport == "sandboxed":
                planted["credential"] = secret_of(credential_of(daemon.worker_pid(thread)))
            assert everywhere() == []
            held.let_go()
            assert daemon.finish(thread)["outcome"] == ("failed" if answer is echoed else "completed")
        relay.answer = echoed
        others |= asked_badly(daemon, member)
        operator = (home / "token").read_text().strip()
        status, others["metrics"] = ask(daemon, "GET", "/metrics", {"authorization": f"Bearer {operator}"})
        assert (status, b"spl_" in others["metrics"]) == (200, True)
        running = {command: shape.begin(*command.split(), "--home", str(home)) for command in COMMANDS}
        others |= {
            command: "".join(each.communicate(timeout=SECONDS)).encode() for command, each in running.items()
        }
        assert found(others) == []
        assert everywhere() == []
        # Nobody logged one, so that there was none to be taken out.
        log = {"the console form": "".join(daemon.log.lines).encode(), "JSON": told(daemon, threads[-1])}
        assert not [where for where, said in log.items() if REDACTED in said or typed.is_in(said)]

        careless.touch()
        daemon.client_of(member).request("GET", "/v1/runs")
        threads.append(finished(daemon, "And again.")["thread"])
        careless.unlink()
        log = {"the console form": "".join(daemon.log.lines).encode(), "JSON": told(daemon, threads[-1])}
        for where, said in log.items():
            for who in (b"a bearer", b"a credential", b"a key"):
                assert b"careless with '" + REDACTED + b"' in " + who in said, where
            assert said.count(REDACTED) > 20
        assert found(log) == []
        left = left_by(daemon, key.since)
        del left[f"{home}/token"]
        assert found({**left, **files("/var/crash", since=key.since)}) == []
        assert any(Path(where).parent == home / "backups" for where in left)
