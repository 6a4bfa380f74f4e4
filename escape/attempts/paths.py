"""Out by the worker socket: a sixth door, by method, by path, by the headers that a proxy would set."""

from __future__ import annotations

from escape.attempts._knocking import (
    DOORS,
    NOT_FOUND,
    OPERATORS,
    PLAN,
    POSTS,
    RUN,
    all_refused,
    codes,
    credential,
    knock,
    message,
    pour,
)
from escape.inside import stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from escape.attempt import Attempt
    from escape.inside import World

_OTHER_METHODS = (
    "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "QUERY", "PROPFIND", "MOVE", "PURGE", "PRI",
    "FOO", "put", "delete", "Patch", "get", "Get", "post", "POSt", "GETS", "GE", "POSTGET", "!",
)  # fmt: skip


def _methods(world: World) -> str:
    lines = [f"{method} {line.split()[1]}" for method in _OTHER_METHODS for line in DOORS]
    lines += ["POST /v1/worker/run", *(f"GET {line.split()[1]}" for line in POSTS)]
    return all_refused(world, (message(world, line) for line in lines), "a door opened")


def _head(world: World) -> str:
    lines = [f"HEAD {line.split()[1]}" for line in DOORS]
    return all_refused(
        world,
        (message(world, line) for line in [*lines, "HEAD /v1/records", "HEAD /"]),
        "there is something",
    )


def _overridden(world: World) -> str:
    headers = ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "_method")
    asked = [message(world, "POST /v1/worker/run", None, f"{name}: GET") for name in headers]
    asked += [
        message(world, "GET /v1/worker/records", {"kind": PLAN, "body": {}}, f"{n}: POST") for n in headers
    ]
    return all_refused(world, asked, "another method was believed")


def _operators(world: World) -> str:
    thread = world.neighbour_thread
    member = {"label": "from-inside", "tier": "team"}
    rule = {"kind": "core.engine.config.v1", "topic": "work_loop_profile", "profile": "base"}
    record = {"thread": "th_engine_config", "actor": "did:sync:system:engine", "act": "LEARN", "body": rule}
    asked: dict[str, object] = {
        "POST /v1/work/loop": {"goal": "Start another."},
        "POST /v1/work/loop/preview": {"goal": "Start another."},
        f"POST /v1/work/loop/{thread}/cancel": {},
        f"POST /v1/runs/{thread}/events": {"type": "stop"},
        "POST /v1/records": record,
        "POST /v1/members": member,
        "DELETE /v1/members/escape-1": None,
        "POST /v1/tokens": {"actor": "did:sync:user:from-inside"},
        "POST /v1/tokens/tok_000000000000/rotate": {},
        "DELETE /v1/tokens/tok_000000000000": None,
    }
    reads = (
        "records", "threads", "runs", "rules", "tiers", "members", "tokens", "profiles", "profiles/worker",
    )  # fmt: skip
    more = (
        f"threads/{thread}/records", "threads/th_engine_config/records", f"runs/{thread}", "engine/health",
    )  # fmt: skip
    lines = [*asked.items(), *((f"GET /v1/{path}", None) for path in (*reads, *more))]
    return all_refused(
        world, (message(world, line, body) for line, body in lines), "the operator's API answered"
    )


def _elsewhere(world: World) -> str:
    paths = (
        "/", "/health", "/healthz", "/metrics", "/openapi.json", "/docs", "/redoc", "/favicon.ico",
        "/.well-known/spl", "/v1", "/v1/", "/v1/worker", "/v1/worker/", "/v2/worker/run", "/worker/run",
        "/run", "/v1/worker/runs", "/v1/worker/admin", "/v1/worker/debug", "/v1/worker/tools",
        "/v1/worker/credential", "/v1/worker/record", "/debug/pprof", "/server-status", "/static/",
        "/_internal", "/proc/self/environ", "/etc/passwd",
    )  # fmt: skip
    lines = [f"{method} {path}" for method in ("GET", "POST") for path in paths]
    return all_refused(world, (message(world, line) for line in lines), "there is something")


def _spelled(*targets: str) -> Callable[[World], str]:
    def chain(world: World) -> str:
        return all_refused(
            world, (message(world, f"GET {target}") for target in targets), "another spelling was taken"
        )

    return chain


_DOTS = (
    "/v1/worker/../records", "/v1/worker/run/../../records", "/v1/worker/./run", "/v1/worker/run/.",
    "/v1/worker/run/..", "/v1/worker/.../run", "/../v1/worker/run", "/./v1/worker/run",
    "/v1/worker/run/../run",
)  # fmt: skip
_ENCODED = (
    "/v1/worker/%72un", "/v1/worker/ru%6e", "/v1/worker%2frun", "/v1%2fworker%2frun",
    "/v1/worker/%2e%2e/records", "/v1/worker/..%2frecords", "/v1/worker/%252e%252e/records",
    "/v1/worker/%c0%ae%c0%ae/records", "%2fv1/worker/run", "/v1/worker/run%00", "/v1/worker/run%20",
    "/v1/worker/run%0d%0aX:a", "/v1/worker/run%3f", "/v1/worker/%u0072un",
)  # fmt: skip
_SLASHES = (
    "//v1/worker/run", "/v1//worker/run", "/v1/worker//run", "/v1/worker/run/", "/v1/worker/run//",
    "v1/worker/run", "/v1/worker\\run", "\\v1\\worker\\run", "/v1/worker/..\\records", "///v1/records",
    "//v1/records",
)  # fmt: skip
_PARAMETERS = (
    "/v1/worker/run;", "/v1/worker/run;a=b", "/v1/worker;a=b/run", "/v1/worker/run?thread=th_engine_config",
    "/v1/worker/run?a", "/v1/worker/run??", "/v1/worker/run#", "/v1/worker/run#a",
    "/v1/records?/v1/worker/run", "/v1/records;/v1/worker/run", "/v1/worker/run?access_token=a",
    "/v1/worker/run&a=b", "/v1/worker/run.json",
)  # fmt: skip
_ABSOLUTE = (
    "http://spl/v1/worker/run", "http://localhost/v1/records", "https://spl/v1/worker/run",
    "//spl/v1/worker/run", "http://127.0.0.1:80/v1/records", "unix:/v1/worker/run", "file:///etc/passwd",
    "*", "spl:80", "localhost", "http://user@spl/v1/worker/run", "http:/v1/worker/run",
    "gopher://127.0.0.1/_GET",
)  # fmt: skip
_CASES = (
    "/V1/worker/run", "/v1/Worker/run", "/v1/worker/Run", "/v1/worker/RUN", "/V1/WORKER/RUN", "/V1/RECORDS",
)  # fmt: skip
_LONG = (
    f"/v1/worker/run{'/' * 10_000}", f"/v1/worker/run?{'a' * 10_000}",
    f"/v1/worker{'/..' * 3000}/v1/records", f"/{'a' * 15_000}", f"/v1/worker/run{'%00' * 4000}",
)  # fmt: skip


def _proxied(world: World) -> str:
    headers = (
        "X-Original-URL: /v1/worker/run", "X-Rewrite-URL: /v1/worker/run", "X-Original-URI: /v1/worker/run",
        "X-Forwarded-Prefix: /v1/worker", "X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1",
        "Forwarded: for=_op", "X-Forwarded-Host: localhost", "X-Forwarded-User: root", "Remote-User: root",
        "X-Accel-Redirect: /v1/records", "Origin: http://localhost",
        "Via: 1.1 spl", "X-Peer-Uid: 0",
    )  # fmt: skip
    asked = [
        message(world, line, None, each) for each in headers for line in ("GET /v1/records", "GET /v1/runs")
    ]
    asked += [
        each.replace(b"Host: spl", host)
        for each in asked[:1]
        for host in (b"Host: localhost", b"Host: /v1/worker")
    ]
    return all_refused(world, asked, "a header was believed")


def _leniently(world: World) -> str:
    own = credential(world)
    asked = [message(world, "GET /v1/worker/run?"), message(world, RUN, bearer=f"Bearer\r\n {own}")]
    asked += [message(world, RUN, bearer=f"{each}{own} ") for each in ("bEARER ", "Bearer   ")]
    return stopped(f"works: {', '.join(dict.fromkeys(codes(pour(world, each)) for each in asked))}")


_SPELLED = (
    ("dots", "walks out of a door's path by dots", _DOTS),
    ("encoded", "spells paths with percent signs", _ENCODED),
    ("slashes", "spells paths with other slashes", _SLASHES),
    ("parameters", "adds queries, parameters, fragments", _PARAMETERS),
    ("absolute", "asks for absolute URIs, as of a proxy", _ABSOLUTE),
    ("case", "spells paths in capitals", _CASES),
    ("long", "asks for paths of ten thousand characters", _LONG),
)
_ROWS = (
    ("methods", "knocks at each door with every other method", _methods),
    ("overridden", "names the door's method in the headers that frameworks believe", _overridden),
    ("operator", "uses each of the operator's own routes with its credential", _operators),
    ("elsewhere", "looks for a sixth door, a health page, a debugger", _elsewhere),
    ("proxied", "names itself, its path and its host in the headers of a trusted proxy", _proxied),
    *((name, sentence, _spelled(*targets)) for name, sentence, targets in _SPELLED),
)

ATTEMPTS: tuple[Attempt, ...] = (
    *(
        knock(f"paths.{name}", sentence, chain, NOT_FOUND, escape=OPERATORS)
        for name, sentence, chain in _ROWS
    ),
    knock("paths.head", "looks for what is there with HEAD", _head, "404", escape=OPERATORS),
    knock(
        "paths.lenient",
        "writes an empty query, its bearer padded and folded",
        _leniently,
        "works: 200",
        escape="one door has more spellings than its path",
        allowed="the server reads HTTP's looser forms too; it is the same door, and the same bearer",
    ),
)
