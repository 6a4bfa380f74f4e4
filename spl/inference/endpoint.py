"""A provider's address over HTTP: what is sent there, tried again, waited for, and believed of what comes back.

See RFC 9110 (15.5.1, 10.2.3) for statuses and `Retry-After`. The key is read for each attempt, goes into one header
of it, and is in nothing that leaves this room.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import httpx2

from spl import __version__
from spl.inference.model import Unanswered
from spl.inference.secrecy import holds, told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from spl.inference.model import Reply

ATTEMPTS: Final = 4
"""How often a call is tried at the most."""
LONGEST_WAIT: Final = 60.0
"""Seconds that are waited between two tries at the most, and no longer when the provider asks for it."""
ANSWER_MOST: Final = 8 << 20
"""Bytes of an answer."""

_ERROR_MOST = 64 << 10
_CONNECT_SECONDS = 10.0
# Servers close what is idle after five seconds or more: a connection that is closed while a call goes out may have
# taken it, and such a call is not tried again.
_IDLE_SECONDS = 4.0
_FIRST_WAIT, _LAST_WAIT = 0.5, 8.0
_AGAIN = frozenset((408, 409, 429, 500, 502, 503, 504, 529))


class Malformed(Exception):
    """An answer that is not what its API says; the text is one clause that repeats nothing of it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Time as an endpoint goes by it: how it waits, the moment in seconds since 1970, and a chance from 0 to 1."""

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    now: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: httpx2.Headers
    body: bytes


class _Unreached(Exception):
    """Nothing can have been sent."""


class Endpoint:
    """One provider's address.

    `key` reads its key, None if there is none, and `authorize` gives the headers that carry one; `seconds` is the
    longest that one attempt may take.
    """

    def __init__(
        self,
        name: str,
        url: str,
        key: Callable[[], str | None],
        authorize: Callable[[str], Mapping[str, str]],
        *,
        seconds: float,
        pace: Pace | None = None,
    ) -> None:
        self.url = url
        self._who = f"the provider {name!r}"
        self._name = name
        self._key = key
        self._authorize = authorize
        self._seconds = seconds
        self._pace = pace or Pace()
        self._opened: httpx2.AsyncClient | None = None

    async def ask(
        self, path: str, document: Mapping[str, Any], read: Callable[[Any], Reply], headers: Mapping[str, str]
    ) -> Reply:
        """Post a document and give the reply that `read` finds in the answer; it raises Malformed.

        Raises Unanswered where there is none, and what reading the key raises.
        """
        try:
            content = json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        except (ValueError, RecursionError):
            raise Unanswered(f"{self._who} cannot be sent what is no JSON", unpaid=True) from None
        fault = ""
        for attempt in range(ATTEMPTS):
            key = self._key()
            wait: float | None = None
            try:
                answer = await self._attempt(path, content, {**headers, **self._credential(key)})
            except _Unreached as error:
                fault = f"{self._who} cannot be reached: {error}"
            else:
                if answer.status == httpx2.codes.OK:
                    return self._reply(answer.body, read, key)
                fault = told(self._name, answer.status, answer.body, key)
                if not _is_worth_another(answer):
                    raise Unanswered(fault, unpaid=True)
                wait = retry_after(answer.headers, self._pace.now())
                if wait is not None and wait > LONGEST_WAIT:
                    raise Unanswered(f"{fault}; it asks for {wait:.0f} seconds of patience", unpaid=True)
            if attempt + 1 < ATTEMPTS:
                await self._pace.sleep(self._backoff(attempt) if wait is None else wait)
        raise Unanswered(f"{fault}; it was tried {ATTEMPTS} times", unpaid=True)

    async def close(self) -> None:
        """Close its connections."""
        if self._opened is not None:
            await self._opened.aclose()

    def _credential(self, key: str | None) -> Mapping[str, str]:
        return {} if key is None else self._authorize(key)

    async def _attempt(self, path: str, content: bytes, headers: Mapping[str, str]) -> _Answer:
        """Send a request once; raises _Unreached if it cannot have been, and Unanswered if it is not known."""
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._client().stream("POST", self.url + path, content=content, headers=headers) as response,
            ):
                return _Answer(response.status_code, response.headers, await self._body(response))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            # An OpenSSL or errno text: it is about the connection, and was made here.
            raise _Unreached(_line(str(error)) or type(error).__name__) from None
        except (TimeoutError, httpx2.TimeoutException):
            raise Unanswered(
                f"{self._who} did not answer within {self._seconds:g} seconds (provider_seconds)",
                unpaid=False,
            ) from None
        except httpx2.HTTPError as error:
            raise Unanswered(
                f"the connection to {self._who} was lost before its answer was whole ({type(error).__name__})",
                unpaid=False,
            ) from None

    async def _body(self, response: httpx2.Response) -> bytes:
        is_reply = response.status_code == httpx2.codes.OK
        # It was asked to send things as they are: a few bytes that unfold to gigabytes are not unfolded.
        if is_reply and response.headers.get("content-encoding", "identity").lower() != "identity":
            raise Unanswered(f"{self._who} answered in an encoding it was not asked for", unpaid=False)
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if is_reply and len(body) > ANSWER_MOST:
                raise Unanswered(f"{self._who} gave an answer of over {ANSWER_MOST} bytes", unpaid=False)
            if not is_reply and len(body) > _ERROR_MOST:
                break
        return bytes(body)

    def _reply(self, body: bytes, read: Callable[[Any], Reply], key: str | None) -> Reply:
        try:
            reply = read(_parsed(body))
        except Malformed as error:
            raise Unanswered(f"{self._who} gave a malformed reply: {error}", unpaid=False) from None
        if holds([reply.wire(), reply.model], key):
            # As from a gateway that shows what it was sent: the run and its log must not come to have it.
            raise Unanswered(f"{self._who} gave a malformed reply: it holds the key", unpaid=False)
        return reply

    def _client(self) -> httpx2.AsyncClient:
        if self._opened is None:
            self._opened = httpx2.AsyncClient(
                # Neither proxies nor ~/.netrc: a key goes to the address that was written down, and nowhere else.
                trust_env=False,
                follow_redirects=False,
                timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS),
                headers={
                    "user-agent": f"spl/{__version__}",
                    "accept": "application/json",
                    "accept-encoding": "identity",
                    "content-type": "application/json",
                },
            )
        # What one answer wants remembered is no other's business: runs of many actors share this.
        self._opened.cookies.clear()
        return self._opened

    def _backoff(self, attempt: int) -> float:
        # Up to a quarter less, so that many runs that were refused at once do not all come back at once.
        longest: float = min(_FIRST_WAIT * 2**attempt, _LAST_WAIT)
        return longest * (1 - self._pace.chance() / 4)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Give the seconds that an answer asks to be left alone for, None if it does not say so in any known form."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        said = headers.get(name, "").strip()
        try:
            seconds = float(said) * unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", "")).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return max(moment - now, 0.0)


def _is_worth_another(answer: _Answer) -> bool:
    said = answer.headers.get("x-should-retry")
    if said in ("true", "false"):
        return said == "true"
    return answer.status in _AGAIN


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Malformed("it is not JSON") from None


def _refuse(_: str) -> object:
    raise ValueError("not JSON")


def _line(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:200].strip()
