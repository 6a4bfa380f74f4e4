"""A daemon whose installed code is removed, or replaced, while it runs (M4), and what it still imports then."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spl.errors import ProfileInvalid, SplError
from tests.end_to_end import scripts
from tests.end_to_end.test_profiles import choose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.end_to_end.daemon import Daemon, Json, Shape

ROOMS = ("spl", "bwrap", "profiles")


def installed(shape: Shape, folder: Path) -> Shape:
    """Give the shape with an installation of its own, in a folder that a test may change."""
    of_all, packages = shape.environment["PYTHONPATH"].split(":")
    folder.mkdir(mode=0o755)
    for room in ROOMS:
        shutil.copytree(Path(of_all, room), folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    return replace(shape, environment={**shape.environment, "PYTHONPATH": f"{folder}:{packages}"})


def remove(folder: Path) -> None:
    """Take all of an installation away."""
    for room in ROOMS:
        shutil.rmtree(folder / room)


def overwrite(folder: Path) -> None:
    """Have every file of an installation be another: code that ends at once, profiles that are none."""
    for room in ROOMS:
        for path in (folder / room).rglob("*"):
            if path.suffix == ".py":
                path.write_text("raise SystemExit(99)\n")
            elif path.suffix == ".toml":
                path.write_text("[limits\n")


def run(daemon: Daemon) -> Json:
    """Have a run of two turns completed in a worker; gives its receipt."""
    row = daemon.finish(daemon.start("Go on.", max_turns=2)["thread"])
    assert (row["transport"], row["outcome"], row["tool_calls_ok"]) == ("sandboxed", "max_turns", 2)
    (receipt,) = daemon.bodies(row["thread"], "core.work.isolation.v1")
    return receipt


def turns(daemon: Daemon, thread: str) -> int:
    """Give how many turns a run has had."""
    return len(daemon.bodies(thread, "core.work.turn.v1"))


@pytest.mark.claim("M4")
@pytest.mark.parametrize("change", [remove, overwrite])
@pytest.mark.one_shape
def test_what_becomes_of_the_installed_code_changes_no_worker_of_a_daemon_that_runs(
    shape: Shape, home: Path, change: Callable[[Path], None]
) -> None:
    code = home.with_name("code")
    provider = scripts.write(home.parent / "script", *scripts.endless())
    with installed(shape, code).daemon(home, "--provider", provider) as daemon:
        daemon.set_transport("sandboxed")
        before = run(daemon)
        going = daemon.start("Go on.")["thread"]
        worker = daemon.worker_pid(going)
        while not turns(daemon, going):
            assert daemon.process.poll() is None
        os.kill(worker, signal.SIGSTOP)
        change(code)
        had = turns(daemon, going)
        os.kill(worker, signal.SIGCONT)

        after = run(daemon)
        choose(daemon, "strict")
        strict = run(daemon)
        assert {each["image_digest"] for each in (before, after, strict)} == {before["image_digest"]}
        assert after["profile_digest"] == before["profile_digest"]
        assert (after["profile"], strict["profile"]) == ("worker", "strict")
        # The one that was running goes on.
        while turns(daemon, going) <= had + 1:
            assert daemon.request("GET", f"/v1/runs/{going}")["state"] == "running"
        assert daemon.stop() == 0


LATE = {
    "cel_expr_python": "8 MB that a daemon without a permission rule does without: with its first one",
    "genai_prices": "a megabyte of prices: with the first run that names a model without one in config.toml",
}
"""What a daemon may import after it has announced itself, and why: of it, another release's may come."""

READ = (
    "/metrics",
    "/openapi.json",
    *(f"/v1/{each}" for each in ("runs", "threads", "members", "tokens", "profiles")),
)


class Answering(BaseHTTPRequestHandler):
    """A provider whose model makes one call and is done once that was answered."""

    def do_POST(self) -> None:
        """Answer one model call."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message: Json = {"role": "assistant", "content": "Done."}
        if asked["messages"][-1]["role"] != "tool":
            function = {"name": "record_note", "arguments": json.dumps({"text": "noted"})}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        reason = "tool_calls" if "tool_calls" in message else "stop"
        said = {
            "object": "chat.completion",
            "model": "some",
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, format: str, *given: object) -> None:  # noqa: A002 - its own name
        """Say nothing."""


@contextlib.contextmanager
def answering() -> Iterator[int]:
    """Give the port of such a provider."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def asked_for_everything(daemon: Daemon, home: Path) -> None:
    """Have a daemon do all that it does."""
    choose(daemon, "strict")
    own = home / "profiles" / "own.toml"
    member = daemon.request("POST", "/v1/members", {"label": "mia"})
    for transport in ("in_process", "sandboxed"):
        daemon.set_transport(transport)
        assert daemon.finish(daemon.start()["thread"])["outcome"] == "completed"
    for text in ('extends = "worker"\n', "[limits"):
        own.write_text(text)
        own.chmod(0o600)
        os.chown(own, home.stat().st_uid, home.stat().st_gid)
        with contextlib.suppress(ProfileInvalid):
            choose(daemon, "own")
    for start in ({}, {"actor": "did:sync:user:mia"}, {"goal": ""}, {"model": "none"}):
        with pytest.raises(SplError):
            daemon.start(**start)
    choose(daemon, "worker")
    expression = "resource == 'tool:record_note'"
    daemon.configure(topic="permission_rule", name="no", action="deny", priority=1, expression=expression)
    assert daemon.finish(daemon.start()["thread"])["outcome"] == "blocked"
    daemon.request("POST", "/v1/records/query", {"filter": {"thread": {"$like": "th%"}}})
    daemon.request("POST", "/v1/provider/check", {})
    for path in READ:
        with contextlib.suppress(SplError):
            daemon.client.request("GET", path)
    next(daemon.client.watch("/v1/watch"))
    daemon.request("GET", "/v1/profiles/worker")
    daemon.request("POST", f"/v1/tokens/{member['token_id']}/rotate")
    daemon.request("DELETE", "/v1/members/mia")


@pytest.mark.claim("M4")
@pytest.mark.one_shape
def test_a_daemon_that_serves_imports_nothing_more_but_what_is_listed(shape: Shape, home: Path) -> None:
    assert shape.run("init", "--home", str(home)).returncode == 0
    (home / "config.toml").write_text('prices."some" = { input = 0, output = 0 }\n')
    (home / "config.toml").chmod(0o644)
    shape = replace(shape, program="tests.end_to_end.importing")
    with answering() as port:
        provider = (
            "--provider",
            "openai",
            "--model",
            "some",
            "--provider-url",
            f"http://127.0.0.1:{port}/v1",
        )
        with shape.daemon(home, *provider) as daemon:
            daemon.log.wait_for("made a backup|records")
            asked_for_everything(daemon, home)
            assert daemon.stop() == 0
            imported = json.loads(daemon.log.wait_for('"imported"'))["modules"]
    # What Python brings is not replaced with a release of this.
    others = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    assert others == LATE.keys()
