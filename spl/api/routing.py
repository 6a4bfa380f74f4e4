"""From the table of operations to Starlette's routes, and what is answered where none of them fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.routing import Route

from spl.api.answers import error_answer
from spl.api.operations import Asked
from spl.api.requests import Body
from spl.errors import Internal, MethodNotAllowed, NotFound, SplError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from spl.api.operations import Operation


def routes(operations: Iterable[Operation]) -> list[Route]:
    """Give one route for each path: Starlette answers 405 from the first that has the path, whatever follows."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        methods = by_path.setdefault(operation.path, {})
        methods[operation.method] = operation
        # An answer without an end has none.
        if operation.method == "GET" and not operation.events:
            methods["HEAD"] = operation
    return [
        (_Named if path.endswith("}") else _Listed)(path, _endpoint(methods), methods=list(methods))
        for path, methods in by_path.items()
    ]


def _endpoint(methods: dict[str, Operation]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        operation = methods[request.method]
        # None where anyone may ask; nothing of such an operation looks at it.
        principal: Any = request.scope.get("principal")
        if operation.scope is not None:
            principal.require(operation.scope)
        query = operation.query.read(request)
        return await operation.handler(Asked(request, principal, query, operation.body or Body))

    return endpoint


class _Listed(Route):
    """A route that has the methods it is given and no more: Starlette's own adds HEAD to every GET."""

    def __init__(
        self, path: str, endpoint: Callable[[Request], Awaitable[Response]], *, methods: list[str]
    ) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.methods = set(methods)


class _Named(_Listed):
    """A route to what goes by a name: asked with another method, the name is not looked up, and nothing is there."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or say that there is nothing."""
        if scope["method"] not in (self.methods or ()):
            raise NotFound("there is nothing at this path")
        await super().handle(scope, receive, send)


async def _on_error(_: Request, error: SplError) -> Response:
    return error_answer(error)


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    if error.status_code == 405:
        answer = error_answer(MethodNotAllowed(f"{request.method} is not answered here"))
        answer.headers["allow"] = (error.headers or {}).get("Allow", "")
        return answer
    return error_answer(NotFound("there is nothing at this path"))


async def _on_fault(_: Request, __: Exception) -> Response:
    """Answer a fault of our own; Starlette raises it again, and the listener logs what it was."""
    return error_answer(Internal("the daemon failed on this request"))


HANDLERS: Mapping[Any, Callable[[Request, Any], Awaitable[Response]]] = {
    SplError: _on_error,
    HTTPException: _on_http_error,
    Exception: _on_fault,
}
"""What answers an exception of each class."""
