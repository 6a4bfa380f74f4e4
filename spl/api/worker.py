"""The worker socket's app: five doors, each a run's own, and one constant 404 for everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from spl.api.answers import error_answer, send_json, written
from spl.api.authentication import bearer
from spl.api.limits import body_limit, refuse_unread
from spl.api.peer import peer
from spl.api.requests import LONG, MOST_ITEMS, read_json
from spl.api.turns import Turns
from spl.errors import Internal, InvalidBody, NotFound, SplError, Unauthenticated

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from spl.kernel.credentials import Credentials

# Matched exactly, on the raw path: nothing decoded, nothing normalised, no query.
DOORS: dict[tuple[str, bytes], str] = {
    ("GET", b"/v1/worker/run"): "run",
    ("POST", b"/v1/worker/infer"): "infer",
    ("POST", b"/v1/worker/propose"): "propose",
    ("POST", b"/v1/worker/call"): "call",
    ("POST", b"/v1/worker/records"): "record",
}

_SHORT_BODY_BYTES = 256 << 10

_log = structlog.get_logger("spl.api")


def worker_app(credentials: Credentials, *, max_body_bytes: int) -> ASGIApp:
    """Give the application. A body is read only for a door and a live credential.

    `max_body_bytes` bounds what is said to the model, which is a whole conversation; elsewhere a run has less to say.
    """
    turns = Turns()
    short = body_limit(_door, min(max_body_bytes, _SHORT_BODY_BYTES))
    long = body_limit(_door, max_body_bytes)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        door = DOORS.get((scope["method"], scope["raw_path"])) if not scope["query_string"] else None
        if door is None:
            await refuse_unread(NotFound("there is nothing at this path"), receive, send)
            return
        said = bearer(
            *(value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization")
        )
        who = peer.get()
        run = credentials.find(said, who.pid or 0, who.accepted_at) if said else None
        if run is None:
            await refuse_unread(Unauthenticated("this door needs a live run credential"), receive, send)
            return
        async with run.entrance:
            # Once more, for it may have waited here until the run's end.
            if credentials.find(said or "", who.pid or 0, who.accepted_at) is not run:
                await refuse_unread(Unauthenticated("this door needs a live run credential"), receive, send)
                return
            inner = long if door == "infer" else short
            await inner({**scope, "run": run, "door": door, "turns": turns}, receive, send)

    return app


async def _door(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    try:
        document = written(await _answer(scope, message.get("body", b"")))
    except SplError as error:
        answer = error_answer(error)
    except Exception:  # noqa: BLE001 - logged, and answered without its text
        _log.exception("a door failed by a fault of the daemon's own", door=scope["door"])
        answer = error_answer(Internal("the daemon failed at this door"))
    else:
        await send_json(send, document)
        return
    await answer(scope, receive, send)


async def _answer(scope: Scope, body: bytes) -> Any:
    run, door = scope["run"], scope["door"]
    if len(body) <= LONG:
        return await run.door(door, await _payload(scope, body))
    async with scope["turns"].of(run.terms.thread):
        payload = await _payload(scope, body)
        if door == "record":
            return await run.door(door, payload)
    # A model or a tool may have to be waited for; what is written down is as much work as it was to read.
    return await run.door(door, payload)


async def _payload(scope: Scope, body: bytes) -> dict[str, Any]:
    # What is said to the model holds what tools said, commas and all.
    most = 4 * MOST_ITEMS if scope["door"] == "infer" else MOST_ITEMS
    payload: Any = await read_json(body, most_items=most) if scope["method"] == "POST" else {}
    if not isinstance(payload, dict):
        raise InvalidBody("the body must be a JSON object")
    return payload
