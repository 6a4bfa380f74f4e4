"""The description of the operator's API against the API itself, over a real socket."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from spl import errors
from spl.api.description import described
from spl.api.operator import OperatorApi
from spl.inference.echo import EchoProvider
from tests.api import described as held
from tests.api.described import operations
from tests.api.served import TOKEN, Served, serve, serving
from tests.kernel.instance import OPERATOR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCUMENT = described(operations())
ELSEWHERE = {
    # The daemon's own start, the command line, and its client before it reaches anyone.
    errors.HomeUnsafe,
    errors.HomeInUse,
    errors.PortInUse,
    errors.SocketPathTooLong,
    errors.SettingsInvalid,
    errors.HostUnsupported,
    errors.DaemonUnreachable,
    errors.HostDoubtful,
    errors.HostUnfit,
    errors.CommandNotFound,
    errors.CommandNotExecutable,
    errors.ProfileExists,
    errors.RunNotCompleted,
    errors.EscapeFailed,
    errors.EscapeUnfinished,
    errors.StoreNewer,
    errors.NotVerified,
    errors.BackupFailed,
    # A worker's doors, on another socket.
    errors.CallNotInReply,
    errors.CallNotAllowed,
    errors.CallAlreadyRun,
}
"""The errors that the operator's API never answers."""

STREAMS = {operation.path for operation in operations() if operation.events}

CHECKS = [
    checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    ignored_auth,
    unsupported_method,
]

CONFIG = schemathesis.Config.from_dict(
    {
        # Beside the bearer that is sent, a key that is made up would be refused before all else.
        "generation": {"with-security-parameters": False},
        "checks": {
            # An instance without a model answers 502 PROVIDER_FAILED to a check of its provider, and must.
            "not_a_server_error": {"expected-statuses": ["2xx", "4xx", "502"]},
            "negative_data_rejection": {"expected-statuses": ["400", "404", "413", "422"]},
        },
    }
)
schema = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)
finite = schema.exclude(lambda context: context.operation.path in STREAMS)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve an instance from a thread of its own while this module's tests go on; gives where."""
    folder = tmp_path_factory.mktemp("described")
    ready, ports = threading.Event(), []
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def run() -> None:
        async with serving(folder, provider=EchoProvider()) as served:
            ports.append(served.port)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


@finite.parametrize()
@settings(
    max_examples=10,
    derandomize=True,
    database=None,
    deadline=None,
    # The API is a fixture of the module's, and what it holds by then is part of what is tried.
    suppress_health_check=list(HealthCheck),
)
def test_an_operation_answers_as_it_is_described_whatever_it_is_asked(
    case: schemathesis.Case[Any], address: str
) -> None:
    case.call_and_validate(base_url=address, headers={"Authorization": f"Bearer {TOKEN}"}, checks=CHECKS)


def test_the_description_is_openapi_and_what_it_refers_to_is_there() -> None:
    assert [error.message for error in OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)] == []
    text = json.dumps(DOCUMENT)
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        found: Any = DOCUMENT
        for step in reference.split("/"):
            found = found[step]


def test_the_description_is_what_is_answered_and_tells_nothing_of_the_instance(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        first = await served.ask("GET", "/openapi.json", bearer=None)
        assert first.json == DOCUMENT
        assert (await served.ask("GET", "/openapi.json", bearer=None)).body == first.body
        for told in (str(tmp_path), TOKEN, OPERATOR, str(served.port)):
            assert told.encode() not in first.body
        assert (await served.ask("GET", "/openapi.json?x=1", bearer=None)).refusal == (422, "INVALID_BODY")

    serve(tmp_path, talk)


def test_what_the_application_answers_and_what_is_described_are_the_same() -> None:
    api = OperatorApi(*[cast("Any", None)] * 6)
    methods = {"get", "put", "post", "delete", "patch", "options", "head", "trace"}
    assert {
        (method, path) for path, item in DOCUMENT["paths"].items() for method in item if method in methods
    } == {
        (method.lower(), route.path)
        for route in api.routes()
        for method in (route.methods or set()) - {"HEAD"}
    }


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation.name for operation in operations()]
    assert len(names) == len(set(names))


def test_every_error_is_described_or_is_never_answered_here() -> None:
    described_codes = set(DOCUMENT["components"]["examples"])
    for error in (each for each in errors.table() if each.__module__ == errors.__name__):
        assert (error.code in described_codes) != (error in ELSEWHERE), error.__name__
    for code, example in DOCUMENT["components"]["examples"].items():
        assert example["value"]["code"] == code
        held.check_error(json.dumps(example["value"]))


@pytest.mark.parametrize("path", sorted(STREAMS))
def test_a_stream_refuses_what_its_description_rules_out(tmp_path: Path, path: str) -> None:
    described_ = DOCUMENT["paths"][path]["get"]
    here = path.replace("{thread}", "th_x")

    async def talk(served: Served) -> None:
        assert (await served.ask("GET", here, bearer=None)).refusal == (401, "UNAUTHENTICATED")
        assert (await served.ask("GET", here, bearer=await served.token("work:run"))).refusal == (
            403,
            "SCOPE_DENIED",
        )
        assert (await served.ask("GET", f"{here}?unknown=1")).refusal == (422, "INVALID_BODY")
        for method in ("POST", "HEAD", "DELETE"):
            assert (await served.ask(method, here)).status == 405
        for parameter in described_.get("parameters", []):
            for wrong in ("x", "-1", "", str(parameter.get("schema", {}).get("maximum", 0) + 1)):
                if parameter["in"] == "query":
                    answer = await served.ask("GET", f"{here}?{parameter['name']}={wrong}")
                elif parameter["in"] == "header":
                    answer = await served.ask("GET", here, headers={parameter["name"]: wrong})
                else:
                    continue
                assert answer.refusal == (422, "INVALID_BODY"), (parameter["name"], wrong)

    serve(tmp_path, talk)
