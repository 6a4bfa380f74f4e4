"""The bound on a request's body: how large it may be and how long it may take to come."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from spl.errors import BodyTimeout, BodyTooLarge, SplError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


def body_limit(app: ASGIApp, limit: int, *, seconds: float = 60.0) -> ASGIApp:
    """Give the application behind a bound of `limit` bytes and `seconds` on each request's body.

    The application is called once the whole body is there, so it meets no part of one that is refused. A
    body that says or turns out to be larger is answered 413 `BODY_TOO_LARGE`, one that takes longer 408
    `BODY_TIMEOUT`; the connection is closed and the rest left unread.
    """

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(seconds):
                body = await _body(scope, receive, limit)
        except TimeoutError:
            timeout = BodyTimeout(f"the request's body did not arrive within {seconds:g} seconds")
            await refuse_unread(timeout, receive, send)
        except BodyTooLarge as error:
            await refuse_unread(error, receive, send)
        else:
            if body is not None:
                await app(scope, _replay(body, receive), send)

    return limited


async def _body(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """Read the whole body; None if the client went away."""
    length = dict(scope["headers"]).get(b"content-length")
    if not limit and any(name == b"transfer-encoding" for name, _ in scope["headers"]):
        # Nothing is to come, and nobody who is not known is given time to say so.
        raise BodyTooLarge("this path takes no body")
    if length is not None and int(length) > limit:
        raise BodyTooLarge(f"the request's body of {int(length)} bytes is over the limit of {limit}")
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLarge(f"the request's body is over the limit of {limit} bytes")
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body as one message, then whatever comes after it."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def refuse_unread(error: SplError, receive: Receive, send: Send) -> None:
    """Answer an error without reading the request's body, and close the connection."""
    document = json.dumps(error.wire(), separators=(",", ":")).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(document)).encode()),
        (b"connection", b"close"),
        *([(b"www-authenticate", b"Bearer")] if error.status == 401 else []),
        *(
            (b"retry-after", str(said).encode())
            for name, said in error.fields.items()
            if name == "retry_after_secs"
        ),
    ]
    # Hypercorn queues a few messages for the application and then waits: were nobody to take them, it would
    # wait for ever, the answer given and the connection still open.
    rest = asyncio.create_task(_discard(receive))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": document})
    await rest


async def _discard(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
