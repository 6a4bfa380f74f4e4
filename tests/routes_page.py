"""The page that describes every route of the operator's API, made from its OpenAPI description."""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

from spl.api.description import described
from tests.api.described import operations

INTRODUCTION = """\
# API reference

Every route of the operator's API, as `GET /openapi.json` describes it: OpenAPI 3.1, for clients to be made from and for
tests. How bearers, listings, [filters](api.md#querying) and [event streams](api.md#watching) work, and the worker's own
doors, is told in [api.md](api.md); what to do about an error in [troubleshooting.md](troubleshooting.md).
Made by `make docs` from spl/api/operations.py.

```sh
spl serve --daemon
curl -s http://127.0.0.1:9100/openapi.json | jq -r '.paths | to_entries[] | "\\(.key) \\(.value | keys | join(" "))"'
curl -sf -H "Authorization: Bearer $(spl token show)" http://127.0.0.1:9100/v1/tiers | jq -c '.data[]'
```

In the examples below `$TOKEN` is such a token. Every route but the two that need no bearer also answers
{known}; every route {always}.
"""

EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "append": {
        "thread": "th_hello",
        "actor": "did:sync:user:me",
        "act": "KNOW",
        "body": {"kind": "my.own.note.v1", "text": "hello"},
    },
    "search": {"filter": {"body.kind": "my.own.note.v1"}, "sort": {"sequence": -1}, "limit": 20},
    "start": {"goal": "Say hello.", "max_turns": 4, "budget_usd": 0.1},
    "preview": {"goal": "Say hello."},
    "event": {"type": "stop"},
    "cancel": {},
    "check_provider": {},
    "add": {"label": "mia", "tier": "paid"},
    "mint": {"label": "mia", "scopes": ["records:read"]},
}
"""A body for each operation that takes one, by the operation's name."""

_PLACES: Final = {"id": "ID", "thread": "th_hello", "label": "mia", "name": "worker"}
_SCHEMAS: Final = "#/components/schemas/"

Json = dict[str, Any]


def page() -> str:
    """Give the text of docs/routes.md."""
    document = described(operations())
    refusals = [_refusals(document, each) for item in document["paths"].values() for each in item.values()]
    always = [each for each in refusals[0] if all(each in found for found in refusals)]
    known = [
        each
        for each in _refusals(document, document["paths"]["/v1/engine/health"]["get"])
        if each not in always and all(each in found or found == always for found in refusals)
    ]
    text = INTRODUCTION.replace("{known}", ", ".join(known)).replace("{always}", ", ".join(always))
    tags: dict[str, list[str]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            section = _operation(document, method.upper(), path, operation, {*always, *known})
            tags.setdefault(operation["tags"][0], []).append(section)
    for tag, sections in tags.items():
        text += f"\n## {tag.capitalize()}\n" + "".join(sections)
    text += (
        "\n## Documents\n\nWhat is marked `?` may be absent. No other field is there, unless it says so.\n"
    )
    for name, schema in document["components"]["schemas"].items():
        if not name.endswith("Body"):
            text += _document(name, schema)
    return text


def _refusals(document: Json, operation: Json) -> list[str]:
    """Give each error that an operation can answer, with its status."""
    found: list[str] = []
    for status, answer in operation["responses"].items():
        if int(status) >= 400:
            response = document["components"]["responses"][answer["$ref"].rpartition("/")[2]]
            found += [f"{status} `{code}`" for code in response["content"]["application/json"]["examples"]]
    return found


def _operation(document: Json, method: str, path: str, operation: Json, common: set[str]) -> str:
    bearer = "" if operation.get("security") != [] else "No bearer. "
    said = f"{operation['summary']}. {bearer}{operation.get('description', '')}".strip()
    lines = [f"\n### {method} {path}\n", said]
    fields = [each for each in operation.get("parameters", []) if each["in"] != "path"]
    if fields:
        lines += ["", "| in the | field | type | meaning |", "|---|---|---|---|"]
        lines += [_parameter(each) for each in fields]
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        lines += _fields(document["components"]["schemas"][_name(schema)], "body's field")
    answers = [
        _answer(status, answer) for status, answer in operation["responses"].items() if int(status) < 400
    ]
    lines += ["", f"Answers {', '.join(answers)}."]
    if "x-events" in operation:
        events = [f"`{name}` ({_linked(event)})" for name, event in operation["x-events"].items()]
        lines[-1] += f" Its events: {', '.join(events)}."
    own = [refusal for refusal in _refusals(document, operation) if refusal not in common]
    if own:
        lines[-1] += f" Or {', '.join(own)}."
    lines += ["", "```text", _curl(method, path, operation), "```", ""]
    return "\n".join(lines)


def _parameter(parameter: Json) -> str:
    meaning = parameter.get("description", "")
    return f"| {parameter['in']} | `{parameter['name']}` | {_type(parameter['schema'])} | {_cell(meaning)} |"


def _fields(schema: Json, heading: str) -> list[str]:
    if not schema.get("properties"):
        return []
    rows = ["", f"| {heading} | type | meaning |", "|---|---|---|"]
    for name, field in schema["properties"].items():
        mark = "" if name in schema.get("required", []) else "?"
        rows.append(f"| `{name}`{mark} | {_type(field)} | {_cell(field.get('description', ''))} |")
    return rows


def _document(name: str, schema: Json) -> str:
    about = schema.get("description", "")
    if schema.get("additionalProperties", True) is not False:
        about += " Others may be there."
    return "\n".join([f"\n### {name}\n", about.strip(), *_fields(schema, "field")]) + "\n"


def _answer(status: str, answer: Json) -> str:
    kinds = answer["content"]
    if json_ := kinds.get("application/json"):
        return f"{status} {_linked(json_['schema'])}"
    return f"{status} {' or '.join(f'`{kind}`' for kind in kinds)}"


def _type(schema: Json) -> str:
    """Say a field's type, its default and its bounds."""
    said = _kind(schema)
    if schema.get("default") is not None:
        said += f", default `{json.dumps(schema['default'])}`"
    return said


def _kind(schema: Json) -> str:
    if "$ref" in schema:
        return _linked(schema)
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}{_bounds(schema, 'Items', ' of them')}"
    return f"{schema.get('type', 'anything')}{_bounds(schema, 'imum', '')}{_bounds(schema, 'Length', ' characters')}"


def _bounds(schema: Json, suffix: str, unit: str) -> str:
    least = schema.get(f"min{suffix}")
    if "exclusiveMinimum" in schema and suffix == "imum":
        return f" above {schema['exclusiveMinimum']} to {schema['maximum']}{unit}"
    most = schema.get(f"max{suffix}")
    if most is None:
        return "" if least is None else f", at least {least}{unit}"
    return f", at most {most}{unit}" if least is None else f" from {least} to {most}{unit}"


def _linked(schema: Json) -> str:
    name = _name(schema)
    return f"[{name}](#{name.lower()})"


def _name(schema: Json) -> str:
    return str(schema["$ref"]).removeprefix(_SCHEMAS)


def _curl(method: str, path: str, operation: Json) -> str:
    for name, value in _PLACES.items():
        path = path.replace(f"{{{name}}}", value)
    words = ["curl", "-s"]
    if "x-events" in operation:
        words.append("-N")
    if method not in ("GET", "POST") or (method == "POST" and "requestBody" not in operation):
        words += ["-X", method]
    command = shlex.join(words)
    if operation.get("security") != []:
        command += ' -H "Authorization: Bearer $TOKEN"'
    command += f" http://127.0.0.1:9100{path}"
    if "requestBody" in operation:
        body = EXAMPLES[operation["operationId"]]
        command += f" \\\n  -d {shlex.quote(json.dumps(body))}"
    return command


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
