"""The operator's API as OpenAPI 3.1 describes it, made of the table of operations and of the models in it."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from inspect import getdoc
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from spl import errors
from spl.api import documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic.json_schema import JsonSchemaMode

    from spl.api.operations import Operation
    from spl.api.queries import Query

Json = dict[str, Any]
Refusals = tuple[type[errors.SplError], ...]
"""Errors of one status."""

VERSION: Final = "1"
"""The description's own, as the paths have it: which release this is, is told to those who are known."""

_ABOUT: Final = """\
Runs agent work loops in confined processes, judges every tool call and keeps the record.

Bodies and answers are JSON, but for `/metrics`. Fields that are not named, in a body or a query, are errors, and so \
is a field of a query that comes twice. With a status of 400 or more the answer is an `Error`; `code` says which. \
Where `Retry-After` is given, asking earlier is of no use. A path that ends in a name answers 404 to a method it does \
not have, every other one 405."""

_PLACES: Final = {
    "id": "the record's or the token's id",
    "thread": "the thread",
    "label": "the member's label or actor",
    "name": "the profile's name",
}
_TAGS: Final = {
    "records": ("records", "threads", "watch"),
    "runs": ("work", "runs"),
    "configuration": ("rules", "tiers", "profiles"),
    "members": ("members", "tokens"),
}
"""What a description's readers see together, by what the paths begin with; all else is the engine's."""

_JSON: Final = "application/json"
_STREAM: Final = "text/event-stream"


def rendered(operations: Sequence[Operation]) -> bytes:
    """Give the description's text."""
    return json.dumps(described(operations), ensure_ascii=False, separators=(",", ":")).encode()


def described(operations: Sequence[Operation]) -> Json:
    """Give the description as a document."""
    schemas = _Schemas(operations)
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    nowhere: Refusals = (errors.MethodNotAllowed,)
    refusals = [found for each in operations for found in _by_status(each.may_refuse())]
    # What is told on a stream is no answer, and stands among the examples all the same.
    named: set[type[errors.SplError]] = {
        errors.Lagged,
        *nowhere,
        *(error for found in refusals for error in found),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "spl",
            "version": VERSION,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": {_name(found): _refusal(found) for found in sorted({*refusals, nowhere}, key=_name)},
            "examples": {
                error.code: {"summary": _meaning(error), "value": _envelope(error)}
                for error in sorted(named, key=lambda each: each.code)
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "a token"},
                "key": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-api-key",
                    "description": "the same token by another name; in both only if it is the same one",
                },
            },
        },
    }


class _Schemas:
    """The schemas of every model in the table, by name in `components`."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        found: dict[tuple[str, JsonSchemaMode], TypeAdapter[Any]] = {}
        for operation in operations:
            for document in (*operation.answers.values(), *operation.events.values(), documents.Error):
                found[document.__name__, "serialization"] = TypeAdapter(document)
            if operation.body is not None:
                found[operation.body.__name__, "validation"] = TypeAdapter(operation.body)
        given, defined = TypeAdapter.json_schemas(
            [(name, mode, adapter) for (name, mode), adapter in found.items()],
            ref_template="#/components/schemas/{model}",
        )
        named = {name: schema for (name, _), schema in given.items() if "$ref" not in schema}
        self.components: dict[str, Json] = {
            name: _untitled(schema) for name, schema in sorted({**defined["$defs"], **named}.items())
        }

    def of(self, model: Any) -> Json:
        """Give the reference to a model's schema."""
        if model.__name__ not in self.components:
            raise LookupError(f"{model.__name__} has no schema")
        return {"$ref": f"#/components/schemas/{model.__name__}"}


def _operation(operation: Operation, schemas: _Schemas) -> Json:
    scope = f"Scope `{operation.scope}`." if operation.scope else ""
    about: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": " ".join(filter(None, (operation.details, scope))),
        "tags": [_tag(operation.path)],
        "parameters": [*_places(operation.path), *_parameters(operation)],
    }
    if not operation.needs_bearer:
        about["security"] = []
    if operation.scope:
        about["x-scope"] = operation.scope
    if operation.body is not None:
        content = {_JSON: {"schema": schemas.of(operation.body)}}
        about["requestBody"] = {"required": operation.body_is_needed, "content": content}
    if operation.events:
        about["x-events"] = {name: schemas.of(event) for name, event in operation.events.items()}
    about["responses"] = {
        **_answers(operation, schemas),
        **{
            str(found[0].status): {"$ref": f"#/components/responses/{_name(found)}"}
            for found in _by_status(operation.may_refuse())
        },
    }
    return {name: value for name, value in about.items() if value or name == "security"}


def _answers(operation: Operation, schemas: _Schemas) -> Json:
    if operation.events:
        told = ", ".join(f"`{name}`" for name in operation.events)
        stream = {
            "type": "string",
            "description": f"Server-Sent Events without an end, each with one line of data, which is JSON: {told}",
        }
        return {"200": {"description": "The events", "content": {_STREAM: {"schema": stream}}}}
    if operation.texts:
        text = {"schema": {"type": "string"}}
        return {"200": {"description": "The text", "content": dict.fromkeys(operation.texts, text)}}
    return {
        str(status): {"description": _meaning(document), "content": {_JSON: {"schema": schemas.of(document)}}}
        for status, document in operation.answers.items()
    }


def _places(path: str) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PLACES[name],
            "schema": {"type": "string", "minLength": 1},
        }
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _parameters(operation: Operation) -> list[Json]:
    """Give a query's fields, which are left out where they are null; and the header that goes before one."""
    found = _fields(operation.query)
    if operation.takes_position:
        position = next(each for each in found if each["name"] == "since")
        found.append(
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "the id of the last event that was read; goes before `since`",
                "schema": {name: value for name, value in position["schema"].items() if name != "default"},
            }
        )
    return found


def _fields(query: type[Query]) -> list[Json]:
    found = []
    schema = query.model_json_schema(ref_template="#/components/schemas/{model}")
    for name, said in schema.get("properties", {}).items():
        field = _untitled(said)
        described = {"description": field.pop("description")} if "description" in field else {}
        if "anyOf" in field:
            [field] = [each for each in field["anyOf"] if each != {"type": "null"}]
        found.append({"name": name, "in": "query", **described, "schema": field})
    return found


def _by_status(found: Iterable[type[errors.SplError]]) -> list[Refusals]:
    by_status: dict[int, list[type[errors.SplError]]] = {}
    for error in found:
        by_status.setdefault(error.status, []).append(error)
    return [tuple(each) for each in by_status.values()]


def _name(found: Refusals) -> str:
    return "-".join(error.code for error in found)


def _refusal(found: Refusals) -> Json:
    status = found[0].status
    codes = {"properties": {"code": {"enum": [error.code for error in found]}}}
    answer: Json = {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(f'`{error.code}`' for error in found)}",
        "content": {
            _JSON: {
                "schema": {"allOf": [{"$ref": "#/components/schemas/Error"}, codes]},
                "examples": {error.code: {"$ref": f"#/components/examples/{error.code}"} for error in found},
            }
        },
    }
    headers = {
        401: {"WWW-Authenticate": "`Bearer`"},
        405: {"Allow": "the methods that the path has"},
        429: {"Retry-After": "seconds after which to ask again, where that is known"},
        503: {"Retry-After": "seconds after which to ask again, where that is known"},
    }.get(status, {})
    if headers:
        answer["headers"] = {
            name: {"description": about, "schema": {"type": "string"}} for name, about in headers.items()
        }
    return answer


def _envelope(error: type[errors.SplError]) -> Json:
    return error(_meaning(error)).wire()


def _meaning(of: type[Any]) -> str:
    return (getdoc(of) or "").partition("\n\n")[0].replace("\n", " ")


def _tag(path: str) -> str:
    room = path.removeprefix("/v1/").partition("/")[0]
    return next((tag for tag, rooms in _TAGS.items() if room in rooms), "engine")


def _untitled(schema: Json) -> Json:
    """Give a schema without the titles that pydantic makes of the names that stand there already."""
    found: Json = {}
    for name, value in schema.items():
        if name == "properties":
            found[name] = {each: _untitled(said) for each, said in value.items()}
        elif isinstance(value, dict):
            found[name] = _untitled(value)
        elif isinstance(value, list):
            found[name] = [_untitled(each) if isinstance(each, dict) else each for each in value]
        elif name != "title":
            found[name] = value
    return found
