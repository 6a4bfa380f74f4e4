"""Who asks: the bearer, or `x-api-key`, on TCP, the kernel's word for the peer on the operator's socket."""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import TYPE_CHECKING

from spl.api.peer import peer
from spl.errors import TokenRevoked, Unauthenticated
from spl.kernel.principals import ADMIN, Principal

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from spl.kernel.members import Members


class Authenticator:
    """Knows the operator, by the token in the home and, on their own socket, by being the daemon's user; and members.

    `rotated` puts a new token into the home and gives it.
    """

    def __init__(self, operator: str, token: str, members: Members, *, rotated: Callable[[], str]) -> None:
        self._operator = Principal(operator, frozenset((ADMIN,)), operator=True)
        self._hash = _hash(token)
        self._earlier: list[bytes] = []
        self._members = members
        self._rotated = rotated

    def principal(self, request: Request) -> Principal:
        """Give who asks; raises `Unauthenticated` or `TokenRevoked`.

        A bearer is judged wherever it is presented: a wrong one is refused on the operator's socket too.
        """
        said = presented(request)
        if said is not None:
            if hmac.compare_digest(_hash(said), self._hash):
                return self._operator
            if any(hmac.compare_digest(_hash(said), each) for each in self._earlier):
                raise TokenRevoked("the bearer is an operator's token that was rotated")
            return self._members.find(said)
        # The listener of that socket admits the daemon's own user and nobody else; its mode is not all there is.
        who = peer.get()
        if who.kind == "unix" and who.uid == os.geteuid():
            return self._operator
        raise Unauthenticated("this needs a bearer")

    def rotate(self) -> str:
        """Put a new operator's token in place of the old one, which is dead from now on; gives it."""
        token = self._rotated()
        self._earlier.append(self._hash)
        self._hash = _hash(token)
        return token


def presented(request: Request) -> str | None:
    """Give the token that a request presents, as a bearer or, by its other name, as `x-api-key`; None without one.

    Two of a kind are an empty token, and so are two that differ: whoever reads the other one would see someone else.
    """
    said = bearer(*request.headers.getlist("authorization"))
    keys = request.headers.getlist("x-api-key")
    if not keys:
        return said
    key = keys[0].strip(" ") if len(keys) == 1 else ""
    return key if said in (None, key) else ""


def bearer(*headers: str) -> str | None:
    """Give the token of a request's Authorization headers, None without one.

    Another scheme is an empty token, and so are two headers: whoever reads the other one would see someone else.
    """
    if not headers:
        return None
    scheme, _, token = headers[0].partition(" ")
    return token.strip(" ") if scheme.lower() == "bearer" and len(headers) == 1 else ""


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
