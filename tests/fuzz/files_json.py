"""JSON for `files`: scripts of the provider that replays, bodies of configuration records, documents of any kind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spl.kernel import tiers
from tests.fuzz.files_made import NUMBERS, mutated, text

if TYPE_CHECKING:
    from random import Random


def anything(random: Random, depth: int = 0) -> Any:
    """Give a value of JSON, of any kind."""
    numbers = (
        0,
        -0.0,
        1,
        1.0,
        2**53 + 1,
        2**63 - 1,
        2**63,
        -(2**63) - 1,
        2**64,
        10**300,
        1e22,
        1e308,
        5e-324,
        0.1,
    )
    match random.randrange(8):
        case 0 | 1:
            return random.choice(numbers)
        case 2:
            return random.choice((None, True, False))
        case 3 if depth < 3:
            return [anything(random, depth + 1) for _ in range(random.randrange(4))]
        case 4 if depth < 3:
            return {text(random)[:30]: anything(random, depth + 1) for _ in range(random.randrange(4))}
        case 5:
            return random.choice(("a", "\ud800", "a\0b", "did:sync:user:x", "x" * 300))
        case _:
            return text(random)


def script(random: Random) -> bytes:
    """Give a script of the provider that replays replies."""
    calls = [{"name": "verify", "arguments": {"n": 1}, "id": "c"}]
    good = {
        "replies": [
            {"text": "a", "calls": calls, "stop_reason": "tool_use"},
            {"fail": "no"},
            {"usage": {"input_tokens": 1, "output_tokens": 2}},
        ]
    }
    said = json.dumps(bent(random, good)).encode()
    many = random.choice((10, 2000, 20_000))
    match random.randrange(8):
        case 0 | 1:
            return mutated(random, said)
        case 2:
            return random.choice(
                (
                    b'{"replies": ' + b"[" * many,
                    b'{"replies": [' + b'{"text": "a"},' * many + b'{"text": "b"}]}',
                    b"9" * many,
                    b'{"replies": [{"calls": [{"name": "a", "arguments": {"n": 1e999}}]}]}',
                    b'{"replies": [{"text": "\\ud800"}]}',
                    b'{"replies": [{"usage": {"input_tokens": ' + b"9" * 4000 + b"}}]}",
                )
            )
        case _:
            return said


def bodies(random: Random) -> bytes:
    """Give some bodies of configuration and tier records, as a list in JSON."""
    return json.dumps([_body(random) for _ in range(random.randrange(1, 8))]).encode()


def document(random: Random) -> bytes:
    """Give JSON of any kind."""
    said = json.dumps(anything(random), ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
    if random.random() < 0.2:
        many = random.choice((10, 64, 65, 3000))
        said = random.choice(
            (b"[" * many + b"]" * many, b'{"a":' * many + b"1" + b"}" * many, random.choice(NUMBERS).encode())
        )
    return mutated(random, said) if random.random() < 0.4 else said


def bent(random: Random, value: Any) -> Any:
    """Give JSON with some of its values replaced, left out or said under another name."""
    if random.random() < 0.06:
        return anything(random)
    if isinstance(value, list):
        return [bent(random, each) for each in value for _ in range(random.choice((1, 1, 1, 1, 1, 0, 2)))]
    if isinstance(value, dict):
        return {
            (text(random) if random.random() < 0.04 else key): bent(random, each)
            for key, each in value.items()
            if random.random() > 0.05
        }
    return value


_RULES = ("args.a == 'x'", "run.turn > 2", "args.list.all(x, x > 1)", "1 / 0 == 1", "zz", "true ||")


def _body(random: Random) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        name: random.choice((1, 5, 0, 10**6, 1.5, True, None, -1, "5", [], 10**300, 1e308))
        for name in random.sample(
            ("max_turns", "wall_clock_secs", "token_budget", "default_budget_usd", "daily_cost_usd", "daily_runs",
             "concurrent_runs", "tools", "transport", "host", "forbidden_tools"), 3
        )
    }  # fmt: skip
    config = "core.engine.config.v1"
    tier: Any = random.choice((*tiers.NAMES, "trial", "nosuch", None, 1, [], {"a": 1}))
    actor = random.choice(
        ("did:sync:user:mia", "did:sync:user:op", "did:sync:agent:x", "did:x:y", "", 1, None, ["a"])
    )
    transport = random.choice(
        ("in_process", "sandboxed", "In_Process", "", None, 1, True, ["in_process"], {"a": "sandboxed"}, "x")
    )
    profile: Any = random.choice(("worker", "x", None, 1, []))
    capacity: Any = random.choice((0, 1, 4096, 4097, -1, True, None, 1.0, "1"))
    good: list[dict[str, Any]] = [
        {"kind": "core.engine.tier.v1", "tier": tier, **chosen},
        {"kind": config, "topic": "work_loop_transport", "transport": transport},
        {"kind": config, "topic": "work_loop_transport_members", "transport": transport},
        {"kind": config, "topic": "work_loop_profile", "profile": profile, "tier": tier},
        {"kind": config, "topic": "admission_capacity", "capacity": capacity},
        {"kind": config, "topic": "standby_workers", "workers": capacity},
        {"kind": config, "topic": "actor_tier", "actor": actor, "tier": tier},
        {
            "kind": config, "topic": "permission_rule", "name": random.choice(("a", "b", "", 1, "a\n", "x" * 65)),
            "action": random.choice(("allow", "deny", "ask", None, 1)),
            "priority": random.choice((0, 1, -5, 10**300, 1.5, True, None, "1")),
            "expression": random.choice(("true", "false", "zz", "", None, 1, random.choice(_RULES), "args.a == 1")),
            "enabled": random.choice((True, True, False, None, 0, "false")),
        },
        {"kind": config, "topic": random.choice(("nosuch", 1, None, [], "", {"a": 1}))},
    ]  # fmt: skip
    body = random.choice(good)
    changed = bent(random, body)
    return {**changed, "kind": body["kind"]} if isinstance(changed, dict) else body
