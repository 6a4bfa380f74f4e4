"""What a worker that means harm says at the doors; sealed with `hostile_image`, and read by its tests.

In bytes, `{}` stands for its own credential.
"""

from __future__ import annotations

NOT_ITS_OWN = (
    "core.work.loop.v1",
    "core.work.isolation.v1",
    "core.work.turn.v1",
    "core.work.tool_call.v1",
    "core.work.tool_verdict.v1",
    "core.work.observation.v1",
    "core.work.note.v1",
    "core.work.loop_outcome.v1",
    "core.work.refusal.v1",
    "core.engine.config.v1",
    "core.engine.tier.v1",
    "core.engine.member.v1",
    "core.engine.token.v1",
    "core.work.plan.v2",
    "core.work.unheard_of.v1",
    "core",
    "my.own.kind.v1",
    "CORE.WORK.PLAN.V1",
    "core.work.plan.v1 ",
    "",
)
"""Kinds that no run may write."""

FOREIGN_FIELDS = {
    "thread": "th_engine_config",
    "actor": "did:sync:system:engine",
    "act": "LEARN",
    "parents": [],
    "clock": 1,
    "judged_by": "did:sync:system:engine",
}
"""Fields of a record that are not a run's to say."""

NO_DOORS = (
    *(
        f"{method} /v1/worker/{door}"
        for method in ("PUT", "DELETE", "PATCH", "FOO")
        for door in ("run", "infer")
    ),
    "POST /v1/worker/run",
    "GET /v1/worker/records",
    "GET /v1/worker/run/",
    "GET /v1/worker/run?thread=th_engine_config",
    "GET /v1/worker/%72un",
    "GET /v1/worker/../runs",
    "GET http://localhost/v1/worker/run",
    "GET /",
    "GET /health",
    "GET /metrics",
    "GET /v1/engine/health",
    "GET /v1/records",
    "POST /v1/records",
    "GET /v1/threads",
    "GET /v1/threads/th_engine_config/records",
    "GET /v1/runs",
    "POST /v1/work/loop",
    "POST /v1/work/loop/preview",
    "GET /v1/members",
    "POST /v1/members",
    "POST /v1/tokens",
    "GET /v1/profiles",
    "OPTIONS *",
    "CONNECT localhost:443",
)
"""What the worker socket knows nothing of, the operator's own API among it."""

NO_BEARERS = ("", "Bearer", "Bearer dead", "Bearer {}x", "Basic {}", "{}")
"""Authorizations that are none."""

NO_JSON = {
    "nothing": b"",
    "half an object": b"{",
    "a list": b"[]",
    "a field twice": b'{"call_id": "a", "call_id": "b"}',
    "NaN": b'{"call_id": NaN}',
    "a lone surrogate": b'{"call_id": "\\ud800"}',
    "no UTF-8": b'{"call_id": "\xff"}',
    "100 000 brackets": b"[" * 100_000,
    "objects 10 000 deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "200 000 commas": b'{"a": [%s]}' % b",".join([b"1"] * 100_000),
    "a number of 200 000 digits": b'{"call_id": %s}' % (b"9" * 200_000),
}
"""Bodies that a door can make nothing of."""

_HEAD = b"Host: x\r\nAuthorization: Bearer {}\r\n"
NO_HTTP = {
    "no request": b"\x16\x03\x01 hello\r\n\r\n",
    "no host": b"GET /v1/worker/run HTTP/1.1\r\n\r\n",
    "a version of its own": b"GET /v1/worker/run SPL/1.1\r\n%b\r\n" % _HEAD,
    "a header without a colon": b"GET /v1/worker/run HTTP/1.1\r\n%bcolon\r\n\r\n" % _HEAD,
    "a header with a NUL": b"GET /v1/worker/run HTTP/1.1\r\n%bX: a\0b\r\n\r\n" % _HEAD,
    "two lengths": b"POST /v1/worker/propose HTTP/1.1\r\n%bContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"
    % _HEAD,
    "a length below nothing": b"POST /v1/worker/propose HTTP/1.1\r\n%bContent-Length: -1\r\n\r\n" % _HEAD,
    "an unknown encoding": b"POST /v1/worker/propose HTTP/1.1\r\n%bTransfer-Encoding: gzip\r\n\r\n" % _HEAD,
    "a head without end": b"GET /v1/worker/run HTTP/1.1\r\n%bX: %b" % (_HEAD, b"x" * 100_000),
}
"""Requests that are no HTTP."""

_TERABYTE = b"Content-Length: 1000000000000\r\n\r\n{"
_CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n"
_CHUNK = b"186a0\r\n%b\r\n" % (b"x" * 100_000)
HUGE = {
    "an announced terabyte for the model": b"POST /v1/worker/infer HTTP/1.1\r\n%b%b" % (_HEAD, _TERABYTE),
    "an announced terabyte": b"POST /v1/worker/records HTTP/1.1\r\n%b%b" % (_HEAD, _TERABYTE),
    "9 MB for the model": b"POST /v1/worker/infer HTTP/1.1\r\n%b%b%b" % (_HEAD, _CHUNKS, _CHUNK * 90),
    "1 MB": b"POST /v1/worker/records HTTP/1.1\r\n%b%b%b" % (_HEAD, _CHUNKS, _CHUNK * 10),
}
"""Requests whose body is over what a door takes."""
