"""The daemon as it would be if somebody logged what nobody should: run as `spl.cli.main` is.

It is careless only while the file named by `CARELESS` is there. Then it logs each bearer, run credential and key as
it comes by, as fields, within others, and in the text of an exception with its traceback.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import structlog

from spl.api.authentication import Authenticator, presented
from spl.cli.main import main
from spl.inference.endpoint import Endpoint
from spl.kernel.credentials import Credentials

if TYPE_CHECKING:
    import httpx2
    from starlette.requests import Request

    from spl.kernel.principals import Principal
    from spl.kernel.runs import Run

_log = structlog.get_logger("careless")

_principal, _find, _refusal = Authenticator.principal, Credentials.find, Endpoint._refusal


def say(where: str, secret: str | None) -> None:
    """Log a secret in every way there is, if it is time to."""
    if not secret or not os.path.exists(os.environ["CARELESS"]):
        return
    _log.info(
        f"careless with {secret}",
        where=where,
        secret=secret,
        deep={secret: [(b"authorization", secret.encode())]},
    )
    logging.getLogger("another").warning("careless with %r in %s", secret, where)
    try:
        raise RuntimeError(f"careless with {secret}")
    except RuntimeError:
        _log.exception("careless", where=where, error=f"http://ana:{secret}@proxy/")


def principal(self: Authenticator, request: Request) -> Principal:
    """Judge who asks, and say what they asked with."""
    say("a bearer", presented(request))
    return _principal(self, request)


def find(self: Credentials, bearer: str, pid: int, accepted_at: float) -> Run | None:
    """Find a run, and say by what."""
    say("a credential", bearer)
    return _find(self, bearer, pid, accepted_at)


async def refusal(self: Endpoint, response: httpx2.Response, key: str | None) -> object:
    """Read a provider's refusal, and say what it was asked with."""
    say("a key", key)
    return await _refusal(self, response, key)


if __name__ == "__main__":
    Authenticator.principal = principal  # type: ignore[method-assign]
    Credentials.find = find  # type: ignore[method-assign]
    Endpoint._refusal = refusal  # type: ignore[assignment]
    main()
