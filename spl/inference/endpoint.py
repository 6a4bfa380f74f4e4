"""Where a provider answers: one HTTP client that asks again where that is safe, and lets no key out.

What a provider sends is a stranger's: it is bounded, it leads nowhere else, and of an error little is repeated.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import ssl
import time
import unicodedata
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

import httpx2

from spl import __version__
from spl.inference.answer import Malformed, strict
from spl.inference.apart import apart
from spl.inference.model import Unanswered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

REPLY_MOST: Final = 8 * 2**20
"""Bytes of a reply."""
ITEMS_MOST: Final = 250_000
"""Commas and brackets of a reply: a megabyte of nothing else comes to a hundred in memory."""
ATTEMPTS: Final = 4
"""How often a request is made, at most."""
WAIT_MOST: Final = 60.0
"""Seconds that a provider may ask to be left alone for between two attempts."""

_T = TypeVar("_T")

# What httpx2 leaves for its first client and its first request. A daemon does not wait for these: another release may
# have been installed over this one by then.
for _late in ("httpcore2", "anyio._backends._asyncio"):
    import_module(_late)

_AGAIN = frozenset((408, 409, 429, 500, 502, 503, 504, 529))
_ERROR_MOST = 64 * 1024
_ERROR_SECONDS = 5.0
_SAID_MOST = 200
_CONNECT_SECONDS = 10.0
_BACKOFF_SECONDS = 0.5, 8.0
# Less than servers leave an idle connection open for, 5 seconds in the shortest: one that is closed just as it is used
# again loses a reply that may have been paid for.
_IDLE_SECONDS = 3.0
# A key shorter than this is no secret: a word, such as the server's name, put where any will do.
_SECRET = 16
# So many characters in a row of a key are not repeated.
_RUN = 8

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{0,9})?")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,59}")
_ESCAPE = re.compile(r"\\u00([0-7][0-9a-fA-F])")

# They tell of each request; at their lowest level, its headers too.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why an attempt gave no reply; `after` is how many seconds the provider asks to be left alone for."""

    why: str
    unpaid: bool
    again: bool = False
    after: float | None = None


class Endpoint:
    """A base URL that JSON is posted to; `name` is what the provider is called in settings and messages.

    `key` reads the key at every attempt, so that another takes effect without a restart, and `authorize` makes the
    headers that carry it. `seconds` bound one attempt from its connecting to its last byte. `sleep`, `clock` (seconds
    since 1970) and `jitter` (0 to 1) are those of the process unless others are given.
    """

    def __init__(
        self,
        url: str,
        *,
        key: Callable[[], str | None],
        authorize: Callable[[str], Mapping[str, str]],
        headers: Mapping[str, str],
        seconds: float,
        name: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.url = url
        self.name = name
        self._key = key
        self._authorize = authorize
        self._headers = headers
        self._seconds = seconds
        self._sleep = sleep
        self._clock = clock
        self._jitter = jitter
        self._client: httpx2.AsyncClient | None = None

    async def post(
        self, path: str, make: Callable[[], Mapping[str, Any]], read: Callable[[Any], _T], *, size: int = 0
    ) -> _T:
        """Post a document, again if it is sure that nothing was answered; give what is read of the reply's JSON.

        `make` makes the document, of about `size` characters; `read` raises Malformed. Raises Unanswered, and what
        reading the key raises.
        """
        content = await apart(size, _written, make)
        if content is None:
            raise self._unanswered(_Fault("was not asked: what it was to be sent is not JSON", unpaid=True))
        attempt = 1
        while True:
            key = self._key()
            answer = await self._attempt(path, content, key)
            if not isinstance(answer, _Fault):
                return await apart(len(answer), self._document, answer, key, read)
            if not answer.again or attempt == ATTEMPTS:
                raise self._unanswered(answer)
            if answer.after is not None and answer.after > WAIT_MOST:
                why = f"{answer.why}; it asks to be left alone for {answer.after:.0f} seconds"
                raise self._unanswered(_Fault(why, unpaid=True))
            await self._sleep(self._backoff(attempt) if answer.after is None else answer.after)
            attempt += 1

    async def close(self) -> None:
        """Close its connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _unanswered(self, fault: _Fault) -> Unanswered:
        return Unanswered(f"the provider {self.name!r} {fault.why}", unpaid=fault.unpaid)

    def _backoff(self, attempt: int) -> float:
        first, most = _BACKOFF_SECONDS
        # Up to a quarter less, so that runs which were refused together do not come back together.
        return min(first * 2.0 ** (attempt - 1), most) * (1 - self._jitter() / 4)

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is None:
            # Nothing of the environment: no proxies, no ~/.netrc. Certificates are those that the host trusts.
            self._client = httpx2.AsyncClient(
                headers={
                    "user-agent": f"spl/{__version__}",
                    "accept": "application/json",
                    "accept-encoding": "identity",
                    "content-type": "application/json",
                    **self._headers,
                },
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                follow_redirects=False,
                http1=True,
                http2=False,
                # A third, for connecting and its handshake have each their own.
                timeout=httpx2.Timeout(None, connect=min(_CONNECT_SECONDS, self._seconds / 3)),
                # As many as there are runs, which admission bounds: waiting for one would look like a slow reply.
                limits=httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS),
                trust_env=False,
            )
        return self._client

    async def _attempt(self, path: str, content: bytes, key: str | None) -> bytes | _Fault:
        """Give the whole body of a reply, or why there is none."""
        if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
            return _Fault("was not asked: its key is not one word of visible ASCII", unpaid=True)
        headers = {} if key is None else self._authorize(key)
        try:
            async with (
                asyncio.timeout(self._seconds) as bound,
                self._opened().stream("POST", self.url + path, content=content, headers=headers) as response,
            ):
                if response.status_code != 200:
                    # It has answered, and owes nothing but the words, which have a bound of their own.
                    bound.reschedule(None)
                    return await self._refusal(response, key)
                if _is_encoded(response):
                    return _Fault(
                        "gave a malformed reply: it is encoded, which was not asked for", unpaid=False
                    )
                body = await _read(response, REPLY_MOST)
                if body is None:
                    return _Fault(f"gave a malformed reply: it has over {REPLY_MOST} bytes", unpaid=False)
                return body
        except TimeoutError:
            return _Fault(f"did not answer within {self._seconds:g} seconds", unpaid=False)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return _unconnected(error)
        except httpx2.HTTPError:
            # What it may have said since the request went out is not known, but it may be charged for.
            return _Fault(
                "broke the connection off, or HTTP's rules, before its reply was whole", unpaid=False
            )

    async def _refusal(self, response: httpx2.Response, key: str | None) -> _Fault:
        status = response.status_code
        said = await _said(response)
        should = response.headers.get("x-should-retry", "").strip().lower()
        return _Fault(
            self._told(status, said, key),
            # A success of another kind may have been charged for.
            unpaid=not 200 < status < 300,
            again=status >= 400 and should != "false" and (status in _AGAIN or should == "true"),
            after=_asked_for(response.headers, self._clock()),
        )

    def _told(self, status: int, said: str, key: str | None) -> str:
        where = f"secrets/{self.name}.key"
        # The message is not repeated: providers put part of the key into it.
        if status == 403:
            return f"answered 403: it refuses what was asked, or the key of {where}"
        if status == 401:
            if key is None:
                return f"wants a key (401), and there is none in {where} that may be sent there"
            return f"refused the key (401), that of {where}"
        if 300 <= status < 400:
            return f"answered {status}, which leads elsewhere and is not followed"
        kind, message = _error(said)
        kind = "" if _shares(kind, key) else kind
        # What is cut off next may end within a run of the key.
        message = "" if _shares(message[: 2 * _SAID_MOST], key) else message
        cut = message if len(message) <= _SAID_MOST else f"{message[: _SAID_MOST - 1]}…"
        hint = "; is provider_url right?" if status == 404 else ""
        return f"answered {status}{f' ({kind})' if kind else ''}{f': {cut}' if cut else ''}{hint}"

    def _document(self, body: bytes, key: str | None, read: Callable[[Any], _T]) -> _T:
        try:
            if body.count(b",") + body.count(b"[") + body.count(b"{") > ITEMS_MOST:
                raise Malformed(f"it has more than {ITEMS_MOST} commas and brackets")
            text = body.decode()
            if key is not None and len(key) >= _SECRET and _unescaped(key) in _unescaped(text):
                # A gateway that sends back what it was sent: from here it would go to the run, and into the log.
                raise Malformed("it holds the key")
            return read(strict(text))
        except UnicodeDecodeError:
            fault = "it is not JSON"
        except Malformed as error:
            fault = str(error)
        raise self._unanswered(_Fault(f"gave a malformed reply: {fault}", unpaid=False))


def _written(make: Callable[[], Mapping[str, Any]]) -> bytes | None:
    """Give a document as it is sent, None if it is not JSON."""
    try:
        # A lone surrogate, which is no character, is sent as a question mark.
        return json.dumps(make(), ensure_ascii=False, allow_nan=False).encode(errors="replace")
    except (TypeError, ValueError, RecursionError):
        return None


def _is_encoded(response: httpx2.Response) -> bool:
    # Not decoded: a kilobyte that comes to gigabytes is the oldest trick there is.
    return response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity")


async def _read(response: httpx2.Response, most: int) -> bytes | None:
    """Give a whole body, None if it has more bytes than that."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > most:
            return None
    return bytes(body)


async def _said(response: httpx2.Response) -> str:
    """Give what an error's answer says, nothing if that cannot be had: its status is answer enough."""
    if _is_encoded(response):
        return ""
    try:
        async with asyncio.timeout(_ERROR_SECONDS):
            body = await _read(response, _ERROR_MOST)
    except (TimeoutError, httpx2.HTTPError):
        return ""
    return "" if body is None else body.decode(errors="replace")


def _error(said: str) -> tuple[str, str]:
    """Give the kind and the message of an error's JSON, as either API writes it; nothing of anything else."""
    try:
        document = strict(said)
    except Malformed:
        return "", ""
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, str):
        return "", _printable(error)
    if not isinstance(error, dict):
        return "", ""
    kinds = (error.get("code"), error.get("type"))
    kind = next((each for each in kinds if isinstance(each, str) and _IDENTIFIER.fullmatch(each)), "")
    message = error.get("message")
    return kind, _printable(message) if isinstance(message, str) else ""


def _printable(text: str) -> str:
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())


def _shares(text: str, key: str | None) -> bool:
    """Tell whether a text shares a run of characters with the key."""
    if key is None or len(key) < _SECRET:
        return False
    # However it is written: in one case, in wide letters, with something between them.
    return any(
        secret[start : start + _RUN] in said
        for said, secret in ((text.casefold(), key.casefold()), (_letters(text), _letters(key)))
        for start in range(len(secret) - _RUN + 1)
    )


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def _unescaped(text: str) -> str:
    """Give a text without JSON's escapes of ASCII, those of JSON within JSON included."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text).replace("\\", "")


def _unconnected(error: httpx2.TransportError) -> _Fault:
    if isinstance(error, httpx2.ConnectTimeout):
        # Before its causes: of a handshake that is not answered TLS has an error too, that it wanted to read on.
        return _Fault("cannot be reached: nothing answers there", unpaid=True, again=True)
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            # Somebody else answers in its place, or its certificate has run out: neither mends itself in seconds.
            return _Fault(f"does not prove who it is: {_printable(cause.verify_message)}", unpaid=True)
        if isinstance(cause, ssl.SSLError):
            # Its numbers are its own, and none of errno's.
            return _Fault("does not speak TLS at its address: is that one of http?", unpaid=True)
    reasons = (_reason(each) for each in causes if isinstance(each, OSError) and each.errno)
    reason = _printable(next(reasons, "no connection was made"))
    return _Fault(f"cannot be reached: {reason}", unpaid=True, again=True)


def _reason(error: OSError) -> str:
    # asyncio puts the address in the place of what went wrong; a name that is not found has a number below 0.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            # One for each address of a name.
            for each in error.exceptions:
                yield from _causes(each)
        error = error.__cause__ or error.__context__


def _asked_for(headers: Mapping[str, str], now: float) -> float | None:
    """Give the seconds that a provider asks to be left alone for (RFC 9110, 10.2.3), None if it does not say."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        said = headers.get(name, "").strip()
        if _NUMBER.fullmatch(said):
            return float(said) / unit
    try:
        at = parsedate_to_datetime(headers.get("retry-after", ""))
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return max(0.0, at.timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
