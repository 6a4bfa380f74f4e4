"""JSON documents for every route and door: of the right shape with one thing wrong, or of none.

They are text and not objects: what is wrong may be what no JSON library would write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from random import Random

    Shape = Mapping[str, str]

OPERATOR = "did:sync:user:op"
"""The actor of what is written; another operator than this one covers it all the same."""

NUMBERS = ("1e400", "-1e400", "-0", "-0.0", "1e-400", "5e-324", "1e308", "1.7976931348623157e308",
           "9" * 309, "9" * 310, "9223372036854775807", "9223372036854775808", "-9223372036854775809",
           "9007199254740993", "0.1", "1e22", "1E5", "NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.",
           "0x1", "1_0", "-", "1e", "18446744073709551616")  # fmt: skip
STRINGS = ('""', '" "', '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u202e"',
           '"\\r\\nX: y"', '"\x7f"', '"\x01"', '"\n"', '"\\x"', '"\\u12"', '"', "'x'",
           '"' + "a" * 300 + '"', '"' + "a" * 3000 + '"', '"<script>"', '"\\u001b[31m"',
           '"core.work.turn.v1"', '"th_engine_config"', '"did:sync:system:engine"', '"did:sync:user:op"',
           '"../../etc"', '"é"', '"\udcff"', '"operator"', '"admin"', '"stop"', '"__proto__"', '"c1"',
           '"C1"', '"1 + "', '"true"', '"resource =="')  # fmt: skip
OTHERS = ("null", "true", "false", "[]", "{}", "[[]]", "[null]", "[1]", '["a"]', '[{"a": {}}]',
          '{"": null}', '{"a": 1, "a": 2}', "0", "1", "-1", "2", "", "x", "nul", "[", "{", "[1,]", '{"a"}',
          "{1: 2}", "//", "[" * 70 + "]" * 70, "[" * 3000, '{"a":' * 60 + "1" + "}" * 60, '{"a":' * 2000,
          "[" + ",".join(["1e308"] * 30) + "]", "\ufeff1", "[" + ",".join(["0"] * 2000) + "]",
          "{" + ",".join(f'"k{n}": {n}' for n in range(500)) + "}")  # fmt: skip
VALUES = (*NUMBERS, *STRINGS, *OTHERS)

_KIND = '{"kind": "my.own.kind.v1", "n": 1}'
_RECORD = {"thread": '"th_fuzz"', "actor": f'"{OPERATOR}"', "act": '"DO"', "body": _KIND, "parents": "[]",
           "clock": "1", "data_type": '"SCALAR"', "judged_by": "null"}  # fmt: skip
_START = {"goal": '"a goal"', "actor": f'"{OPERATOR}"', "model": '"m"', "max_turns": "1",
          "budget_usd": "0.1", "wall_clock_secs": "5", "forbidden_tools": '["search"]',
          "tools": '["calculate"]'}  # fmt: skip
_CONFIGURATION: tuple[Shape, ...] = (
    {"topic": '"work_loop_transport"', "transport": '"in_process"'},
    {"topic": '"work_loop_transport_members"', "transport": '"sandboxed"'},
    {"topic": '"work_loop_profile"', "profile": "null", "tier": '"trial"'},
    {
        "topic": '"permission_rule"',
        "name": '"r"',
        "action": '"deny"',
        "priority": "1",
        "expression": '"actor == tier"',
        "enabled": "true",
    },
    {"topic": '"actor_tier"', "actor": '"did:sync:user:mia"', "tier": '"paid"'},
    {"topic": '"admission_capacity"', "capacity": "1"},
    {"topic": '"standby_workers"', "workers": "1"},
)
_TIER = {"kind": '"core.engine.tier.v1"', "tier": '"trial"', "max_turns": "4", "wall_clock_secs": "100",
         "token_budget": "1000", "default_budget_usd": "0.1", "daily_cost_usd": "1", "daily_runs": "9",
         "concurrent_runs": "1"}  # fmt: skip
_FILTER = {"body.x": "1", "thread": '{"$in": ["th_fuzz"]}', "$or": '[{"clock": {"$gt": 1}}]', "$not": "{}"}
_SAID = {"$eq": "1", "$ne": "1", "$gt": "1", "$in": "[1]", "$nin": "[1]", "$like": '"a%"', "$ilike": '"a%"',
         "$exists": "true", "$not": '{"$lt": 1}'}  # fmt: skip
_IN_FORCE = {"thread": '"th_engine_config"', "actor": '"did:sync:system:engine"', "act": '"LEARN"'}
_RESULT = {"call_id": '"c1"', "status": '"ok"', "output": '"x"'}
_FULL_MESSAGE = {"role": '"user"', "content": '"x"', "call_id": '"c1"', "calls": "[]"}
_MESSAGE = '{"role": "user", "content": "x"}'

_FILTERED = '{"body.x": 1, "$or": [{"clock": {"$gt": 1}}, {"body.kind": "my.own.kind.v1"}]}'

_SHAPES: dict[bytes, Shape] = {
    b"/v1/records": _RECORD,
    b"/v1/records/query": {
        "filter": _FILTERED,
        "thread": '"th_fuzz"',
        "sort": '{"body.x": -1}',
        "limit": "9",
        "offset": "1",
        "explain": "true",
    },
    b"/v1/work/loop": _START,
    b"/v1/work/loop/preview": _START,
    b"/v1/work/loop/th_run_x/cancel": {},
    b"/v1/runs/th_run_x/events": {"type": '"stop"'},
    b"/v1/members": {"label": '"mia"', "tier": '"trial"', "scopes": '["records:read"]', "agent": "false"},
    b"/v1/tokens": {"label": '"mia"', "scopes": '["records:read"]'},
    b"/v1/tokens/tok_000000000000/rotate": {},
    b"/v1/worker/infer": {"messages": f"[{_MESSAGE}]"},
    b"/v1/worker/propose": {"call_id": '"c1"'},
    b"/v1/worker/call": {"call_id": '"c1"'},
    b"/v1/worker/records": {"kind": '"core.work.plan.v1"', "body": '{"text": "x"}'},
}
_OFTEN = (b"/v1/records", b"/v1/records", b"/v1/worker/infer", b"/v1/worker/records")
_READ = (b"/health", b"/v1/engine/health", b"/v1/records", b"/v1/records/x", b"/v1/threads",
         b"/v1/threads/th_fuzz/records", b"/v1/threads/th_fuzz/watch", b"/v1/watch", b"/v1/runs",
         b"/v1/runs/th_run_x", b"/v1/rules", b"/v1/tiers", b"/v1/members", b"/v1/tokens",
         b"/v1/profiles/worker", b"/v1/profiles/x", b"/v1/worker/run")  # fmt: skip
PATHS = (
    *((b"POST", path) for path in (*_SHAPES, *_OFTEN)),
    *((b"GET", path) for path in _READ),
    (b"DELETE", b"/v1/members/mia"),
    (b"DELETE", b"/v1/tokens/x"),
)
"""Every method and path there is, those with much to say more than once."""


def document(rng: Random, path: bytes) -> bytes:
    """Give the text of a document for a route, seldom without a fault."""
    if rng.random() < 0.05:
        return _bytes(rng.choice(VALUES))
    said = dict(_shape(rng, path))
    pairs = _faulty(rng, said)
    text = (
        "{"
        + ", ".join(f"{key}: {value}" for key, value in pairs)
        + rng.choice(("}", "}", "}", "}", "}", "", "}}", ",}"))
    )
    raw = _bytes(text)
    if rng.random() < 0.05:
        at = rng.randrange(len(raw) + 1)
        raw = raw[:at] + rng.choice((b"\xff", b"\0", b"\xc0\x80", b"\xed\xa0\x80", b"\n", b"/**/")) + raw[at:]
    return raw


def confused(path: bytes) -> Iterator[bytes]:
    """Give for each field of a route's document, and of the documents in it, one with each of the values in it."""
    for before, shape, after in _nested(path):
        for name in shape:
            for value in VALUES:
                pairs = [(f'"{each}"', value if each == name else said) for each, said in shape.items()]
                yield _bytes(before + _object(pairs) + after)


def _nested(path: bytes) -> Iterator[tuple[str, Shape, str]]:
    """Give each document of a route with what stands before and after it."""
    yield "", _SHAPES[path], ""
    if path == b"/v1/records":
        where = _object([(f'"{name}"', said) for name, said in _IN_FORCE.items()])[:-1] + ', "body": '
        yield where, _TIER, "}"
        for topic in _CONFIGURATION:
            yield where, {"kind": '"core.engine.config.v1"', **topic}, "}"
    if path == b"/v1/records/query":
        yield '{"filter": ', _FILTER, "}"
        yield '{"filter": {"body.x": ', _SAID, "}}"
        yield '{"filter": {"clock": ', _SAID, "}}"
        yield '{"filter": {"actor": ', _SAID, "}}"
        yield '{"filter": {}, "sort": ', {"body.x": "1", "clock": "-1"}, "}"
    if path == b"/v1/worker/infer":
        yield '{"messages": [', _FULL_MESSAGE, "]}"
    if path == b"/v1/worker/records":
        yield '{"kind": "core.work.tool_result.v1", "body": ', _RESULT, "}"


def _shape(rng: Random, path: bytes) -> Shape:
    shape = _SHAPES.get(path, {})
    if path == b"/v1/records":
        which = rng.randrange(4)
        if which == 0:
            return {**shape, **_configured(rng, _configuration(rng))}
        if which == 1:
            return {name: value for name, value in shape.items() if name != "clock"}
    if path == b"/v1/records/query" and rng.random() < 0.7:
        said = _object(_faulty(rng, dict(rng.sample(list(_SAID.items()), rng.randrange(1, 4)))))
        field = rng.choice(('"body.x"', '"clock"', '"id"', '"judged_by"', '"$not"', rng.choice(STRINGS)))
        asked = rng.choice((_object(_faulty(rng, _FILTER)), f"{{{field}: {said}}}"))
        return {**shape, "filter": f'{{"$and": [{asked}, {asked}]}}'}
    if path == b"/v1/worker/records" and rng.random() < 0.5:
        return {"kind": '"core.work.tool_result.v1"', "body": _object(_faulty(rng, _RESULT))}
    if path == b"/v1/worker/infer" and rng.random() < 0.7:
        message = _object(
            _faulty(rng, {"role": '"user"', "content": '"x"', "call_id": '"c1"', "calls": "[]"})
        )
        return {"messages": f"[{', '.join([_MESSAGE, message] * rng.choice((1, 1, 50)))}]"}
    if path in (b"/v1/tokens", b"/v1/runs/th_run_x/events") and rng.random() < 0.3:
        return {}
    return shape


def _configuration(rng: Random) -> str:
    if rng.random() < 0.4:
        ceilings = rng.sample(list(_TIER.items())[2:], rng.randrange(1, 4))
        return _object(_faulty(rng, {**dict(list(_TIER.items())[:2]), **dict(ceilings)}))
    return _object(_faulty(rng, {"kind": '"core.engine.config.v1"', **rng.choice(_CONFIGURATION)}))


def _configured(rng: Random, body: str) -> Shape:
    where = {
        "thread": '"th_engine_config"',
        "actor": '"did:sync:system:engine"',
        "act": '"LEARN"',
        "body": body,
    }
    return where if rng.random() < 0.3 else {**where, "clock": rng.choice(NUMBERS)}


def _faulty(rng: Random, said: Shape) -> list[tuple[str, str]]:
    """Give the fields with one of them wrong, absent, said twice or not known; in one of eight none is."""
    pairs = [(f'"{name}"', value) for name, value in said.items()]
    how = rng.randrange(8)
    if pairs and how < 4:
        at = rng.randrange(len(pairs))
        pairs[at] = (pairs[at][0], rng.choice(VALUES))
    elif pairs and how == 4:
        del pairs[rng.randrange(len(pairs))]
    elif pairs and how == 5:
        pairs.append((rng.choice(pairs)[0], rng.choice(VALUES)))
    elif how == 6:
        pairs.append((rng.choice((*STRINGS, "1", "null", "x", "{}")), rng.choice(VALUES)))
    return pairs


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"


def _bytes(text: str) -> bytes:
    # A lone surrogate that no escape stands for is what UTF-8 would say of it, were it a character.
    return text.encode("utf-8", "surrogatepass")
