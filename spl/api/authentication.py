"""Who asks: the bearer on TCP, the kernel's word for the peer on the operator's socket."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from spl.api.peer import peer
from spl.errors import Unauthenticated
from spl.kernel.principals import ADMIN, Principal

if TYPE_CHECKING:
    from starlette.requests import Request


class Authenticator:
    """Knows the operator, by token hash and, on their own socket, by being the daemon's user."""

    def __init__(self, operator: str, token: str) -> None:
        self._operator = Principal(operator, frozenset((ADMIN,)))
        self._hash = _hash(token)

    def principal(self, request: Request) -> Principal:
        """Give who asks; raises `Unauthenticated`.

        A bearer is judged wherever it is presented: a wrong one is refused on the operator's socket too.
        """
        said = bearer(request.headers.get("authorization"))
        if said is not None:
            if hmac.compare_digest(_hash(said), self._hash):
                return self._operator
            raise Unauthenticated("the bearer is not known here")
        # The listener of that socket admits the daemon's own user and nobody else.
        if peer.get().kind == "unix":
            return self._operator
        raise Unauthenticated("this needs a bearer")


def bearer(header: str | None) -> str | None:
    """Give the token of an Authorization header, None without one; another scheme is an empty token."""
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
