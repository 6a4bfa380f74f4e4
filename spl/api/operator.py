"""The operator's API, on TCP and on the operator's socket."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from spl.api.answers import PAGE_BYTES, JsonAnswer, error_answer, listing, record_listing, within_a_page
from spl.api.engine import EngineStream
from spl.api.limits import body_limit, refuse_unread
from spl.api.members import MembersApi
from spl.api.requests import (
    LONG,
    Body,
    CheckBody,
    EventBody,
    RecordBody,
    SearchBody,
    StartBody,
    beginning,
    page,
    query,
    read_body,
)
from spl.api.streaming import EventStream
from spl.api.turns import Turns
from spl.api.watching import MOST_EACH
from spl.errors import (
    ActorNotCovered,
    Internal,
    InvalidBody,
    MethodNotAllowed,
    NotFound,
    RequestsExceeded,
    SplError,
)
from spl.kernel.principals import ADMIN, CONFIG_WRITE, RECORDS_READ
from spl.kernel.rows import STATES

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from spl.api.authentication import Authenticator
    from spl.api.watching import Watching
    from spl.kernel.kernel import Kernel
    from spl.kernel.principals import Principal
    from spl.logs import Recent
    from spl.records.record import Record
    from spl.transports.profiles import Profiles
    from spl.transports.starting import Transports

_OPEN = "/health"
"""The one path that needs no bearer."""

_MOST_EACH = MOST_EACH + 32
"""Requests of one member at once, its event streams among them: each may hold a body of the largest size."""

_SEARCH_SECONDS, _MEMBERS_SEARCH_SECONDS = 5.0, 1.0
"""How long the operator's search may take, and a member's: they are made one at a time."""

Handler = Callable[["Request", "Principal"], Awaitable["Response"]]


@dataclass(frozen=True)
class OperatorApi:
    """The routes; `health` gives what the daemon itself knows of its state."""

    kernel: Kernel
    transports: Transports
    profiles: Profiles
    authenticator: Authenticator
    watching: Watching
    health: Callable[[], Awaitable[dict[str, Any]]]
    log: Recent
    _turns: Turns = field(default_factory=Turns)
    _searches: Turns = field(default_factory=Turns)
    """A search may take a member's whole second: no listing waits behind those of many."""
    _going: Counter[str] = field(default_factory=Counter)

    def routes(self) -> list[Route]:
        """Give the routes, one a method and path."""
        members = MembersApi(self.kernel, self.authenticator)
        return [
            Route(_OPEN, _alive, methods=["GET"]),
            self._route("GET", "/v1/engine/health", self._engine_health),
            _no_head(self._route("GET", "/v1/engine/watch", self._engine_watch)),
            self._route("POST", "/v1/records", self._append),
            self._route("GET", "/v1/records", self._records),
            self._route("POST", "/v1/records/query", self._search),
            self._route("GET", "/v1/records/{id}", self._record),
            self._route("GET", "/v1/threads", self._threads),
            self._route("GET", "/v1/threads/{thread}/records", self._thread_records),
            _no_head(self._route("GET", "/v1/threads/{thread}/watch", self._watch)),
            _no_head(self._route("GET", "/v1/watch", self._watch)),
            self._route("POST", "/v1/work/loop", self._start),
            self._route("POST", "/v1/work/loop/preview", self._preview),
            self._route("POST", "/v1/work/loop/{thread}/cancel", self._cancel),
            self._route("GET", "/v1/runs", self._runs),
            self._route("GET", "/v1/runs/{thread}", self._run),
            self._route("POST", "/v1/runs/{thread}/events", self._event),
            self._route("POST", "/v1/provider/check", self._check_provider),
            self._route("GET", "/v1/rules", self._rules),
            self._route("GET", "/v1/tiers", self._tiers),
            self._route("POST", "/v1/members", members.add),
            self._route("GET", "/v1/members", members.members),
            self._route("DELETE", "/v1/members/{label}", members.revoke),
            self._route("POST", "/v1/tokens", members.mint),
            self._route("GET", "/v1/tokens", members.tokens),
            self._route("POST", "/v1/tokens/{id}/rotate", members.rotate),
            self._route("DELETE", "/v1/tokens/{id}", members.revoke_token),
            self._route("GET", "/v1/profiles", self._profiles),
            self._route("GET", "/v1/profiles/{name}", self._profile),
        ]

    def app(self, *, max_body_bytes: int) -> ASGIApp:
        """Give the application.

        Nothing of a body is read for someone who is not known, nor past `max_body_bytes` for anyone.
        """
        app = Starlette(
            routes=_merged(self.routes()),
            exception_handlers={
                SplError: _on_error,  # type: ignore[dict-item]
                HTTPException: _on_http_error,  # type: ignore[dict-item]
                Exception: _on_fault,
            },
        )
        app.router.redirect_slashes = False

        async def still_known(scope: Scope, receive: Receive, send: Send) -> None:
            # Asked again: the bearer may have been revoked, or rotated away, while the body was waited for.
            try:
                principal = self.authenticator.principal(Request(scope))
            except SplError as error:
                await error_answer(error)(scope, receive, send)
                return
            await app({**scope, "principal": principal}, receive, send)

        bodiless, limited = body_limit(app, 0), body_limit(still_known, max_body_bytes)

        async def known_only(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] == _OPEN:
                await bodiless(scope, receive, send)
                return
            try:
                who = self.authenticator.principal(Request(scope)).sees
                self._refuse_more(who)
            except SplError as error:
                await refuse_unread(error, receive, send)
                return
            if who is None:
                await limited(scope, receive, send)
                return
            self._going[who] += 1
            try:
                await limited(scope, receive, send)
            finally:
                self._going[who] -= 1
                if not self._going[who]:
                    del self._going[who]

        return known_only

    def _refuse_more(self, member: str | None) -> None:
        if member is not None and self._going[member] >= _MOST_EACH:
            raise RequestsExceeded(
                f"{member} has {self._going[member]} requests under way, as many as a member may have",
                retry_after_secs=1,
            )

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            return await handler(request, request.scope["principal"])

        return _at(path, endpoint, [method])

    async def _engine_health(self, request: Request, principal: Principal) -> Response:
        query(request)
        health = await self.health()
        if principal.sees is not None:
            # Why a layer does not hold, and what the backups are, is told with paths of the host.
            health["spend"]["usd"] = float(self.kernel.usage.spent(principal.sees))
            for part, told in (
                ("instance", "home"),
                ("instance", "host"),
                ("work_loop", "refused"),
                ("isolation", "refused"),
                ("store", "backup"),
                ("store", "damaged"),
                ("provider", "url"),
                ("provider", "failing"),
            ):
                health.get(part, {}).pop(told, None)
        return JsonAnswer(health)

    async def _engine_watch(self, request: Request, principal: Principal) -> Response:
        principal.require(ADMIN)
        query(request)
        return EngineStream(
            self.watching,
            principal,
            lambda: self.authenticator.principal(request),
            health=self.health,
            workers=self.transports.workers,
            log=self.log,
        )

    async def _append(self, request: Request, principal: Principal) -> Response:
        query(request)
        async with await self._turn(request, principal):
            body = await read_body(request, RecordBody)
            appended = await self.kernel.write(principal, body.draft())
            return JsonAnswer(appended.record.wire(), 201 if appended.created else 200)

    async def _records(self, request: Request, principal: Principal) -> Response:
        principal.require(RECORDS_READ)
        fields = query(request, "thread", "actor", "kind", "since", "limit")
        since, limit = page(fields)
        return await self._listing(
            principal,
            since,
            limit,
            thread=fields.get("thread"),
            actor=fields.get("actor"),
            kind=fields.get("kind"),
        )

    async def _record(self, request: Request, principal: Principal) -> Response:
        principal.require(RECORDS_READ)
        query(request)
        record = await self.kernel.store.get(request.path_params["id"])
        if record is None or not await self.kernel.reading(principal).may_read(record.thread):
            raise NotFound("there is no record with this id")
        return JsonAnswer(record.wire())

    async def _search(self, request: Request, principal: Principal) -> Response:
        principal.require(RECORDS_READ)
        query(request)
        async with self._searches.of(principal.sees):
            body = await read_body(request, SearchBody)
            found = await self.kernel.store.search(
                body.search(),
                owner=principal.sees,
                most_bytes=PAGE_BYTES,
                seconds=_SEARCH_SECONDS if principal.sees is None else _MEMBERS_SEARCH_SECONDS,
                explain=body.explain,
            )
            records = within_a_page(found.records)
        more = found.has_more or len(records) < len(found.records)
        plan = {} if found.plan is None else {"plan": found.plan._asdict()}
        return listing(records, has_more=more, **plan)

    async def _threads(self, request: Request, principal: Principal) -> Response:
        principal.require(RECORDS_READ)
        since, limit = page(query(request, "since", "limit"))
        async with self._turns.of(principal.sees):
            rows = await self.kernel.store.threads(owner=principal.sees, since=since, limit=limit + 1)
            return listing(
                [{"object": "thread", **row._asdict()} for row in rows[:limit]], has_more=len(rows) > limit
            )

    async def _thread_records(self, request: Request, principal: Principal) -> Response:
        principal.require(RECORDS_READ)
        since, limit = page(query(request, "since", "limit"))
        return await self._listing(principal, since, limit, thread=request.path_params["thread"])

    async def _watch(self, request: Request, principal: Principal) -> Response:
        principal.require(RECORDS_READ)
        position, since_clock = beginning(request, query(request, "since", "since_clock"))
        return EventStream(
            self.watching,
            principal,
            lambda: self.authenticator.principal(request),
            lambda: self._turns.of(principal.sees),
            thread=request.path_params.get("thread"),
            position=position,
            since_clock=since_clock,
        )

    async def _listing(
        self,
        principal: Principal,
        since: int,
        limit: int,
        *,
        thread: str | None,
        actor: str | None = None,
        kind: str | None = None,
    ) -> Response:
        def read(after: int, most: int) -> Awaitable[list[Record]]:
            return self.kernel.store.select(
                thread=thread,
                actor=actor,
                kind=kind,
                owner=principal.sees,
                since=after,
                limit=most,
                most_bytes=PAGE_BYTES,
            )

        async with self._turns.of(principal.sees):
            return await record_listing(read, since, limit)

    async def _turn(self, request: Request, principal: Principal) -> AbstractAsyncContextManager[None]:
        """Give the wait for one's turn to have a body worked on that is long, and none for another."""
        is_long = len(await request.body()) > LONG
        return self._turns.of(principal.sees) if is_long else nullcontext()

    async def _start(self, request: Request, principal: Principal) -> Response:
        query(request)
        async with await self._turn(request, principal):
            body = await read_body(request, StartBody)
        run = await self.transports.start(principal, body.start())
        return JsonAnswer(await self.kernel.rows.row(run.terms.thread), 201)

    async def _preview(self, request: Request, principal: Principal) -> Response:
        query(request)
        async with await self._turn(request, principal):
            body = await read_body(request, StartBody)
        return JsonAnswer(await self.transports.preview(principal, body.start()))

    async def _event(self, request: Request, principal: Principal) -> Response:
        query(request)
        async with await self._turn(request, principal):
            (await read_body(request, EventBody)).require_known()
        return await self._stop(request, principal)

    async def _cancel(self, request: Request, principal: Principal) -> Response:
        """Answer the older name of the stop event, which takes no body, or an empty object."""
        query(request)
        if await request.body():
            async with await self._turn(request, principal):
                await read_body(request, Body)
        return await self._stop(request, principal)

    async def _stop(self, request: Request, principal: Principal) -> Response:
        thread = request.path_params["thread"]
        await self.kernel.stop(principal, thread)
        return JsonAnswer({"object": "event", "type": "stop", "thread": thread}, 202)

    async def _runs(self, request: Request, principal: Principal) -> Response:
        principal.require(RECORDS_READ)
        fields = query(request, "state", "actor", "since", "limit", "order")
        since, limit = page(fields)
        order = fields.get("order", "oldest")
        if order not in ("oldest", "newest") or (order == "newest" and "since" in fields):
            raise InvalidBody("the query's 'order' must be oldest, or newest and without 'since'")
        if fields.get("state", "running") not in STATES:
            raise InvalidBody(f"the query's 'state' must be one of {', '.join(STATES)}")
        actor = fields.get("actor", principal.sees)
        if principal.sees not in (None, actor):
            raise ActorNotCovered(f"the bearer does not cover the runs of {actor!r}")
        state = fields.get("state")
        async with self._turns.of(principal.sees):
            if order == "newest":
                rows, more = await self.kernel.rows.newest(
                    state=state, actor=actor, limit=limit, most_bytes=PAGE_BYTES
                )
            else:
                rows, more = await self.kernel.rows.page(
                    state=state, actor=actor, since=since, limit=limit, most_bytes=PAGE_BYTES
                )
        return listing(rows, has_more=more)

    async def _run(self, request: Request, principal: Principal) -> Response:
        principal.require(RECORDS_READ)
        query(request)
        return JsonAnswer(await self.kernel.rows.row(request.path_params["thread"], whose=principal.sees))

    async def _check_provider(self, request: Request, principal: Principal) -> Response:
        query(request)
        body = await read_body(request, CheckBody)
        return JsonAnswer(await self.kernel.check_provider(principal, body.model))

    async def _rules(self, request: Request, principal: Principal) -> Response:
        principal.require(CONFIG_WRITE)
        query(request)
        rules = self.kernel.config.rules.listed()
        return listing(
            [{"object": "rule", **asdict(rule), "hits": hits} for rule, hits in rules], has_more=False
        )

    async def _tiers(self, request: Request, principal: Principal) -> Response:
        principal.require(RECORDS_READ)
        query(request)
        return listing([tier.wire() for tier in self.kernel.config.tiers()], has_more=False)

    async def _profiles(self, request: Request, principal: Principal) -> Response:
        principal.require(CONFIG_WRITE)
        query(request)
        return listing(await self.profiles.listed(), has_more=False)

    async def _profile(self, request: Request, principal: Principal) -> Response:
        principal.require(CONFIG_WRITE)
        query(request)
        return JsonAnswer(await self.profiles.described(request.path_params["name"]))


def _no_head(route: Route) -> Route:
    """Give a route without the HEAD that Starlette adds to every GET: an answer without an end has none."""
    (route.methods or set()).discard("HEAD")
    return route


async def _alive(_: Request) -> Response:
    return JsonAnswer({"status": "ok"})


def _merged(routes: list[Route]) -> list[Route]:
    """Give one route for each path: Starlette answers 405 from the first that has the path, whatever follows."""
    by_path: dict[str, list[Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, []).append(route)
    return [_by_method(path, found) if len(found) > 1 else found[0] for path, found in by_path.items()]


def _by_method(path: str, routes: list[Route]) -> Route:
    by_method = {method: route.endpoint for route in routes for method in route.methods or ()}

    async def endpoint(request: Request) -> Response:
        answer: Response = await by_method[request.method](request)
        return answer

    return _at(path, endpoint, list(by_method))


class _Named(Route):
    """A route to what goes by a name: asked with another method, the name is not looked up, and nothing is there."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or say that there is nothing."""
        if scope["method"] not in (self.methods or ()):
            raise NotFound("there is nothing at this path")
        await super().handle(scope, receive, send)


def _at(path: str, endpoint: Callable[[Request], Awaitable[Response]], methods: list[str]) -> Route:
    return (_Named if path.endswith("}") else Route)(path, endpoint, methods=methods)


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
