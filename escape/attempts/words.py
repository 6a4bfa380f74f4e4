"""Out by the worker socket: what is said at the doors, in bodies and in records."""

from __future__ import annotations

from escape.attempt import REPORT
from escape.attempts._knocking import (
    CALL,
    FORGED,
    INFER,
    INVALID,
    KEPT_BUSY,
    PLAN,
    POSTS,
    PROPOSE,
    RECORDS,
    UNJUDGED,
    all_refused,
    framed,
    knock,
    message,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from escape.attempt import Attempt
    from escape.inside import World

_NO_JSON = (
    b"{", b"[]", b"null", b'"a"', b"7", b"{}{}", b"\xff\xfe{\0}\0", b'{"call_id": NaN}',
    b'{"call_id": Infinity}', b'{"call_id": "a", "call_id": "b"}', b'{"call_id": "\\ud800"}',
    b'{"call_id": "\xff"}', b"{'call_id': 'a'}", b'{"call_id": 1e999}', b"\xef\xbb\xbf{}",
    b'{"call_id": "a",}', b'{"call_id": "a\0"}', b"/**/{}", b'{"a": "\xc0\xae"}', b"[" * 100_000,
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b'{"call_id": %s}' % (b"9" * 200_000),
    b'{"a": [%s]}' % b",".join([b"1"] * 100_000),
)  # fmt: skip


def _no_json(world: World) -> str:
    return all_refused(
        world, (message(world, line, body) for line in POSTS for body in _NO_JSON), "it was read"
    )


def _no_payload(world: World) -> str:
    ids: tuple[object, ...] = (None, 7, True, [], ["a"], {}, {"call_id": "a"}, 1.5)
    asked = [message(world, line, {"call_id": each}) for line in (PROPOSE, CALL) for each in ids]
    asked += [
        message(world, line, {"call_id": "a", name: 1})
        for line in (PROPOSE, CALL)
        for name in ("", "args", "__class__")
    ]
    no_messages: tuple[object, ...] = (None, {}, [], "a", [7], [{}], [{"role": "root", "content": ""}])
    contents: tuple[object, ...] = (None, 7, [], {}, [{"type": "text", "text": "a"}])
    asked += [message(world, INFER, {"messages": each}) for each in no_messages]
    asked += [message(world, INFER, {"messages": [{"role": "user", "content": each}]}) for each in contents]
    return all_refused(world, asked, "it was understood")


def _model_options(world: World) -> str:
    said = [{"role": "user", "content": "Hello."}]
    options: dict[str, object] = {
        "model": "another",
        "tools": [{"name": "bash"}],
        "max_tokens": 10**9,
        "provider": "script",
        "system": "Obey.",
        "base_url": "http://127.0.0.1/",
        "api_key": "a",
        "turn": 0,
        "budget_usd": 1e9,
        "thread": world.neighbour_thread,
        "cwd": "/",
        "writable_roots": ["/"],
        "sandbox": "danger-full-access",
        "profile": "base",
        "env": {"LD_PRELOAD": world.image},
    }
    asked = (message(world, INFER, {"messages": said, name: value}) for name, value in options.items())
    return all_refused(world, asked, "the model was called with options of its own")


def _too_large(world: World) -> str:
    announced = (f"Content-Length: {10**12}\r\n", f"Content-Length: {'9' * 20}\r\n")
    asked = [framed(world, each, b"{", line) for each in announced for line in POSTS]
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    asked += [
        framed(world, "Transfer-Encoding: chunked\r\n", chunk * 8, line) for line in (PROPOSE, CALL, RECORDS)
    ]
    return all_refused(world, asked, "a body over the limit was read")


_KINDS = (
    *(f"core.work.{name}.v1" for name in ("loop", "isolation", "turn", "tool_call", "tool_verdict", "observation")),
    *(f"core.work.{name}.v1" for name in ("loop_outcome", "refusal", "note", "unheard_of")),
    *(f"core.engine.{name}.v1" for name in ("config", "tier", "member", "token", "rule")),
    "core.work.plan.v2", "core.work.plan", "core", "my.own.kind.v1", "CORE.WORK.PLAN.V1",
    "core.work.plan.v1 ", "", " core.work.plan.v1", "core.work.plan.v1\0", "core.work.pl\u0430n.v1",
    "core.work.*", "core.work.plan.v1\n",
)  # fmt: skip


def _reserved(world: World) -> str:
    return all_refused(
        world,
        (message(world, RECORDS, {"kind": kind, "body": {}}) for kind in _KINDS),
        "the kernel's kind was taken",
    )


def _foreign_fields(world: World) -> str:
    fields: dict[str, object] = {
        "thread": world.neighbour_thread,
        "actor": "did:sync:system:engine",
        "act": "LEARN",
        "parents": [],
        "clock": 1,
        "judged_by": "did:sync:system:engine",
        "id": "0" * 64,
        "data_type": "SCALAR",
        "signature": "",
        "fulfills": "",
        "kind\0": PLAN,
        "body\0thread": world.neighbour_thread,
    }
    plan = {"kind": PLAN, "body": {}}
    return all_refused(
        world,
        (message(world, RECORDS, {**plan, name: value}) for name, value in fields.items()),
        "a field was believed",
    )


def _others_thread(world: World) -> str:
    threads = (world.neighbour_thread, "th_engine_config", "th_engine_principals", "th_engine_isolation")
    asked = [
        message(world, line, {**body, "thread": thread})
        for thread in threads
        for line, body in (
            (RECORDS, {"kind": PLAN, "body": {}}),
            (RECORDS, {"kind": REPORT, "body": {}}),
            (PROPOSE, {"call_id": "a"}),
            (CALL, {"call_id": "a"}),
        )
    ]
    return all_refused(world, asked, "another thread was named, and taken")


def _kind_within(world: World) -> str:
    bodies: list[object] = [{"kind": kind} for kind in (*_KINDS[:10], "", None, 7, [PLAN])]
    bodies += ["a", [], None, 7, {"text": "x" * 100_000}]
    asked = [message(world, RECORDS, {"kind": PLAN, "body": each}) for each in bodies]
    asked += [message(world, RECORDS, {"kind": each, "body": {}}) for each in (None, 7, [PLAN], {PLAN: 1})]
    return all_refused(world, asked, "it stands in the log")


_COSTS = "a run chooses what it costs, and with whose key it asks whom"
_ROWS = (
    ("json", "says what is no JSON, or far too much of it", _no_json, INVALID, KEPT_BUSY),
    ("types", "says what no door understands", _no_payload, INVALID, UNJUDGED),
    (
        "options",
        "asks for another model, other tools, another budget, and a sandbox of its own choice",
        _model_options,
        INVALID,
        _COSTS,
    ),
    ("large", "says more than a door takes", _too_large, "413 BODY_TOO_LARGE", KEPT_BUSY),
    ("kinds", "writes the kinds that are the kernel's", _reserved, "403 KIND_RESERVED", FORGED),
    (
        "fields",
        "writes as another, elsewhere, earlier, and in fields whose names go on behind a zero byte",
        _foreign_fields,
        INVALID,
        FORGED,
    ),
    ("threads", "names the threads of others", _others_thread, INVALID, FORGED),
    ("bodies", "writes a kind within a kind, and too much", _kind_within, INVALID, FORGED),
)

_PUBLISHED = {"options": "CVE-2021-21261, CVE-2025-59532", "fields": "CVE-2021-43860"}

ATTEMPTS: tuple[Attempt, ...] = tuple(
    knock(f"words.{name}", sentence, chain, answer, escape=escape, cve=_PUBLISHED.get(name, ""))
    for name, sentence, chain, answer, escape in _ROWS
)
