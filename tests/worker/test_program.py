"""The worker's program as a real process, unconfined: its order of acts, its exits, what it never says."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.worker.conftest import Answer, chunked, plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.worker.conftest import DoorServer

    Start = Callable[..., subprocess.Popen[bytes]]

SECRET = "run-credential-1"
GIVEN = json.dumps({"credential": SECRET}).encode() + b"\n"


def ready(worker: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    assert line.endswith(b"\n")
    answer = json.loads(line)
    assert isinstance(answer, dict)
    return answer


def finish(worker: subprocess.Popen[bytes], given: bytes = GIVEN) -> tuple[int, str]:
    """Give the worker what it waits for; give its exit status and what it said on standard error."""
    out, err = worker.communicate(given)
    assert out.count(b"\n") <= 1
    assert SECRET.encode() not in out + err
    return worker.returncode, err.decode()


def test_ready_names_the_nonce_and_the_digest_of_its_own_image(start: Start, image: Path) -> None:
    answer = ready(start())

    assert answer == {
        "ready": "nonce-1",
        "image": hashlib.sha256(image.read_bytes()).hexdigest(),
        "results": {},
    }


@pytest.mark.claim("I7", "I12")
def test_every_attempt_is_made_before_standard_input_is_read(start: Start) -> None:
    worker = start(["in", "stdin"], ["who", "ids"], ["odd", "fly"], ["home", "list", "/nonexistent"])

    results = ready(worker)["results"]

    assert results["in"] == "silent"
    assert results["who"][6:] == [worker.pid, os.getpid()]
    assert results["odd"] == "unknown"
    assert results["home"] == -2


def test_end_of_file_without_a_credential_ends_it_quietly(start: Start, server: DoorServer) -> None:
    worker = start()
    ready(worker)

    assert finish(worker, b"") == (10, "")
    assert server.connections == 0


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (b'{"credential": "' + SECRET.encode() + b'"', "ValueError"),
        (b'["' + SECRET.encode() + b'"]', "TypeError"),
        (b'{"credentials": "' + SECRET.encode() + b'"}', "KeyError"),
        (b'{"credential": 7}', "ValueError"),
        (b'{"credential": ""}', "ValueError"),
        (b'{"credential": "a\\r\\nX-Header: b"}', "ValueError"),
        (b'{"credential": "a b"}', "ValueError"),
        (b'{"credential": "\xc3\xa9"}', "ValueError"),
        (b'{"credential": "' + b"x" * 4096 + b'"}', "ValueError"),
    ],
)
def test_anything_but_one_credential_is_a_fault_named_and_not_repeated(
    start: Start, server: DoorServer, given: bytes, name: str
) -> None:
    worker = start()
    ready(worker)

    assert finish(worker, given) == (12, f"{name}\n")
    assert server.connections == 0


def test_a_run_goes_through_the_doors_and_exits_0(start: Start, server: DoorServer) -> None:
    tools = [{"name": "calculate", "domain": "sandboxed"}, {"name": "record_note", "domain": "mediated"}]
    calls = [
        {"id": "c1", "name": "calculate", "arguments": {"expression": "6*7"}},
        {"id": "c2", "name": "record_note", "arguments": {"text": "é"}},
    ]
    server.answers += [
        plain({"opening": [{"role": "user", "content": "Go."}], "mark": "ab12", "tools": tools}),
        chunked({"reply": {"text": "", "calls": calls, "stop_reason": "tool_use"}}),
        plain({"decision": "allow", "observations": []}),
        plain({"id": "r", "observations": []}),
        plain({"decision": "allow", "observations": []}),
        plain({"status": "ok", "output": "noted", "observations": ["Seen."]}),
        chunked({"reply": {"text": "Done.", "calls": [], "stop_reason": "end"}}),
    ]
    worker = start()
    ready(worker)

    assert finish(worker) == (0, "")
    assert [request.line.split()[1].rpartition("/")[2] for request in server.requests] == [
        "run",
        "infer",
        "propose",
        "records",
        "propose",
        "call",
        "infer",
    ]
    assert server.connections == 1
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {SECRET}"}
    recorded = json.loads(server.requests[3].body)
    assert recorded["body"] == {"call_id": "c1", "status": "ok", "output": "42"}
    messages = json.loads(server.requests[6].body)["messages"]
    assert messages[-1]["content"] == "noted\n[observation ab12] Seen."


def test_a_door_that_fails_is_one_line_and_exit_11(start: Start, server: DoorServer) -> None:
    message = f"the bearer {SECRET}\nis not known here"
    server.answers.append(plain({"code": "UNAUTHENTICATED", "message": message}, status=401))
    worker = start()
    ready(worker)

    assert finish(worker) == (11, "UNAUTHENTICATED: the bearer [credential] is not known here\n")


def test_a_daemon_that_hangs_up_is_exit_11(start: Start, server: DoorServer) -> None:
    server.answers.append(Answer(close=True))
    worker = start()
    ready(worker)

    status, said = finish(worker)

    assert status == 11
    assert said.startswith("DOOR_CLOSED: ")


def test_an_oversize_answer_is_exit_11(start: Start, server: DoorServer) -> None:
    server.answers.append(Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"))
    worker = start()
    ready(worker)

    status, said = finish(worker)

    assert status == 11
    assert said.startswith("ANSWER_TOO_LARGE: ")


def test_an_answer_of_another_shape_is_a_fault_named_and_not_repeated(
    start: Start, server: DoorServer
) -> None:
    server.answers.append(plain({"opening": SECRET, "tools": [{}]}))
    worker = start()
    ready(worker)

    assert finish(worker) == (12, "KeyError\n")


def test_a_parent_that_no_longer_listens_leaves_an_exit_status_and_no_worker(image: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-I", "-S", str(image), "nonce-1", '{"socket": "s", "attempts": []}']
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=writer, stderr=writer) as worker:
            assert worker.wait() == 12
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonce"], ["nonce", "{"], ["nonce", "{}"], ["nonce", '{"socket": "s", "attempts": [[]]}']],
)
def test_a_start_that_makes_no_sense_is_a_fault_and_never_ready(image: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-I", "-S", str(image), *arguments]

    ended = subprocess.run(command, input=GIVEN, capture_output=True, check=False)

    assert ended.returncode == 12
    assert ended.stdout == b""
    assert SECRET.encode() not in ended.stderr


@pytest.mark.claim("I7")
def test_the_credential_is_in_neither_arguments_nor_environment(start: Start, server: DoorServer) -> None:
    worker = start()
    ready(worker)
    assert worker.stdin is not None
    worker.stdin.write(GIVEN)
    worker.stdin.flush()

    for name in ("cmdline", "environ"):
        with open(f"/proc/{worker.pid}/{name}", "rb") as file:
            assert SECRET.encode() not in file.read()


def imported(*arguments: str) -> set[str]:
    """Give the names of the modules that an interpreter of this version imports (-X importtime, python(1))."""
    command = [sys.executable, "-I", "-S", "-B", "-X", "importtime", *arguments]
    told = subprocess.run(command, input="", capture_output=True, text=True).stderr.splitlines()
    return {line.rpartition("|")[2].strip() for line in told}


def test_it_imports_five_modules_that_the_interpreter_itself_does_not(image: Path) -> None:
    own = imported(str(image), "nonce-1", '{"socket": "s", "attempts": []}') - imported("-c", "pass")

    digests = {"_sha256"} if sys.version_info < (3, 12) else {"_sha2"}
    assert own == {"_ctypes", "_json", "_socket", "select"} | digests


def test_waiting_for_its_credential_it_keeps_less_than_7_mib_to_itself(start: Start) -> None:
    worker = start(["who", "ids"], ["call", "syscall", -1])
    ready(worker)

    with open(f"/proc/{worker.pid}/smaps_rollup") as file:
        sizes = {line.split()[0]: int(line.split()[1]) for line in file if line.endswith(" kB\n")}

    assert sizes["Private_Clean:"] + sizes["Private_Dirty:"] <= 7 * 1024
