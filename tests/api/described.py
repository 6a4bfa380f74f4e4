"""Every answer and event that the tests of the API are given, held to its description."""

from __future__ import annotations

import functools
import json
import operator
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter
from starlette.routing import compile_path

from spl.api import documents
from spl.api.operator import OperatorApi

if TYPE_CHECKING:
    import re

    from spl.api.operations import Operation
    from spl.errors import SplError

NOWHERE = {(401, "UNAUTHENTICATED"), (401, "TOKEN_REVOKED"), (404, "NOT_FOUND"), (405, "METHOD_NOT_ALLOWED")}
"""What is answered where there is no operation, whatever else is wrong."""


@functools.cache
def operations() -> list[Operation]:
    """Give the table, of handlers that can answer nothing."""
    return OperatorApi(*[cast("Any", None)] * 6).operations()


@functools.cache
def _compiled() -> list[tuple[re.Pattern[str], Operation]]:
    return [(compile_path(operation.path)[0], operation) for operation in operations()]


@functools.cache
def _adapter(document: Any) -> TypeAdapter[Any]:
    return TypeAdapter(document)


def find(method: str, path: str) -> Operation | None:
    """Give the operation that a request asks for, None where there is none."""
    target = path.partition("?")[0]
    for pattern, operation in _compiled():
        if pattern.match(target) and method in (operation.method, "HEAD" if not operation.events else ""):
            return operation
    return None


def check(method: str, path: str, status: int, body: bytes) -> None:
    """Hold an answer to the description: its status is there, and its document is the one that is named."""
    if method == "HEAD":
        return
    operation = find(method, path)
    if status < 400:
        assert operation is not None, f"{method} {path} is answered and not described"
        if operation.texts:
            assert status == 200
            assert body.decode()
            return
        assert status in operation.answers, f"{method} {path}: the status {status} is not described"
        _adapter(operation.answers[status]).validate_json(body, strict=True)
        return
    found = (status, check_error(body)["code"])
    may: set[tuple[int, str]] = NOWHERE | {
        (413, "BODY_TOO_LARGE"),
        (408, "BODY_TIMEOUT"),
        (429, "REQUESTS_EXCEEDED"),
    }
    if operation is not None:
        may = {_answered(each) for each in operation.may_refuse()}
    assert found in may, f"{method} {path}: {found} is not described"


def hold(method: str, path: str, document: Any) -> None:
    """Hold a document that was answered, with whatever status, to the description of its operation."""
    operation = find(method, path)
    assert operation is not None, f"{method} {path} is answered and not described"
    one_of = functools.reduce(operator.or_, operation.answers.values())
    # A path of the host may hold bytes that are no text, which pydantic does not read.
    readable = json.dumps(document, ensure_ascii=False).encode(errors="replace")
    _adapter(one_of).validate_json(readable, strict=True)


def check_error(said: str | bytes) -> Any:
    """Hold an error to the description of all errors; gives it."""
    return _adapter(documents.Error).validate_json(said, strict=True)


def check_event(path: str, name: str, data: str) -> None:
    """Hold an event of a stream to the description of the operation that gives the stream."""
    operation = find("GET", path)
    assert operation is not None
    assert name in operation.events, f"{path}: the event {name} is not described"
    _adapter(operation.events[name]).validate_json(data, strict=True)


def _answered(error: type[SplError]) -> tuple[int, str]:
    return error.status, error.code
