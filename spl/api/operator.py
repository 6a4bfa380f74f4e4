"""The operator's API, on TCP and on the operator's socket: the application, and what answers its operations."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from spl.api.answers import PAGE_BYTES, JsonAnswer, error_answer, listing, record_listing, within_a_page
from spl.api.description import rendered
from spl.api.engine import Engine, EngineStream
from spl.api.limits import body_limit, refuse_unread
from spl.api.members import MembersApi
from spl.api.operations import operations
from spl.api.requests import LONG
from spl.api.routing import HANDLERS, routes
from spl.api.streaming import EventStream
from spl.api.turns import Turns
from spl.api.watching import MOST_EACH
from spl.errors import ActorNotCovered, NotFound, RequestsExceeded, SplError

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from contextlib import AbstractAsyncContextManager

    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from spl.api.authentication import Authenticator
    from spl.api.operations import Asked, Operation, Plain
    from spl.api.queries import Page, Query, RecordsQuery, RunsQuery, WatchQuery
    from spl.api.requests import Body, CheckBody, EventBody, RecordBody, SearchBody, StartBody
    from spl.api.watching import Watching
    from spl.kernel.kernel import Kernel
    from spl.kernel.principals import Principal
    from spl.records.record import Record
    from spl.transports.profiles import Profiles
    from spl.transports.starting import Transports

_MOST_EACH = MOST_EACH + 32
"""Requests of one member at once, its event streams among them: each may hold a body of the largest size."""

_SEARCH_SECONDS, _MEMBERS_SEARCH_SECONDS = 5.0, 1.0
"""How long the operator's search may take, and a member's: they are made one at a time."""


@dataclass(frozen=True)
class OperatorApi:
    """The handlers; `engine` has what the daemon itself knows of its state."""

    kernel: Kernel
    transports: Transports
    profiles: Profiles
    authenticator: Authenticator
    watching: Watching
    engine: Engine
    _turns: Turns = field(default_factory=Turns)
    _searches: Turns = field(default_factory=Turns)
    """A search may take a member's whole second: no listing waits behind those of many."""
    _going: Counter[str] = field(default_factory=Counter)
    _description: list[bytes] = field(default_factory=list)
    _describing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def operations(self) -> list[Operation]:
        """Give the table of what is answered, one row a method and path."""
        return operations(self, MembersApi(self.kernel, self.authenticator))

    def routes(self) -> list[Route]:
        """Give the routes, one a path."""
        return routes(self.operations())

    def app(self, *, max_body_bytes: int) -> ASGIApp:
        """Give the application.

        Nothing of a body is read for someone who is not known, nor past `max_body_bytes` for anyone.
        """
        table = self.operations()
        app = Starlette(routes=routes(table), exception_handlers=HANDLERS)
        app.router.redirect_slashes = False
        open_to_all = {operation.path for operation in table if not operation.needs_bearer}

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
            if scope["type"] == "http" and scope["path"] in open_to_all:
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

    async def alive(self, _: Plain) -> Response:
        """Answer `GET /health`."""
        return JsonAnswer({"status": "ok"})

    async def description(self, _: Plain) -> Response:
        """Answer `GET /openapi.json`, which is made when it is asked for first."""
        async with self._describing:
            if not self._description:
                self._description.append(await asyncio.to_thread(rendered, self.operations()))
        return Response(self._description[0], media_type="application/json")

    async def engine_health(self, asked: Plain) -> Response:
        """Answer `GET /v1/engine/health`."""
        health = await self.engine.health()
        whose = asked.principal.sees
        if whose is not None:
            # Why a layer does not hold, and what the backups are, is told with paths of the host.
            health["spend"]["usd"] = float(self.kernel.usage.spent(whose))
            for part, told in (
                ("instance", "home"),
                ("instance", "host"),
                ("work_loop", "refused"),
                ("isolation", "refused"),
                ("isolation", "cgroup"),
                ("store", "backup"),
                ("store", "damaged"),
                ("provider", "url"),
                ("provider", "failing"),
            ):
                health.get(part, {}).pop(told, None)
        return JsonAnswer(health)

    async def engine_watch(self, asked: Plain) -> Response:
        """Answer `GET /v1/engine/watch`."""
        return EngineStream(
            self.watching, asked.principal, lambda: self.authenticator.principal(asked.request), self.engine
        )

    async def metrics(self, asked: Plain) -> Response:
        """Answer `GET /metrics`."""
        async with self._turns.of(asked.principal.sees):
            text, kind = await self.engine.metrics(asked.request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    async def check_provider(self, asked: Asked[Query, CheckBody]) -> Response:
        """Answer `POST /v1/provider/check`."""
        body = await asked.body()
        return JsonAnswer(await self.kernel.check_provider(asked.principal, body.model))

    async def rules(self, _: Plain) -> Response:
        """Answer `GET /v1/rules`."""
        rules = self.kernel.config.rules.listed()
        return listing(
            [{"object": "rule", **asdict(rule), "hits": hits} for rule, hits in rules], has_more=False
        )

    async def tiers(self, _: Plain) -> Response:
        """Answer `GET /v1/tiers`."""
        return listing([tier.wire() for tier in self.kernel.config.tiers()], has_more=False)

    async def listed_profiles(self, _: Plain) -> Response:
        """Answer `GET /v1/profiles`."""
        return listing(await self.profiles.listed(), has_more=False)

    async def profile(self, asked: Plain) -> Response:
        """Answer `GET /v1/profiles/{name}`."""
        return JsonAnswer(await self.profiles.described(asked.path["name"]))

    async def append(self, asked: Asked[Query, RecordBody]) -> Response:
        """Answer `POST /v1/records`."""
        async with await self._turn(asked):
            body = await asked.body()
            appended = await self.kernel.write(asked.principal, body.draft())
            return JsonAnswer(appended.record.wire(), 201 if appended.created else 200)

    async def records(self, asked: Asked[RecordsQuery, Body]) -> Response:
        """Answer `GET /v1/records`."""
        query = asked.query
        return await self._listing(
            asked.principal,
            query.since,
            query.limit,
            thread=query.thread,
            actor=query.actor,
            kind=query.kind,
        )

    async def search(self, asked: Asked[Query, SearchBody]) -> Response:
        """Answer `POST /v1/records/query`."""
        whose = asked.principal.sees
        async with self._searches.of(whose):
            body = await asked.body()
            found = await self.kernel.store.search(
                body.search(),
                owner=whose,
                most_bytes=PAGE_BYTES,
                seconds=_SEARCH_SECONDS if whose is None else _MEMBERS_SEARCH_SECONDS,
                explain=body.explain,
            )
            records = within_a_page(found.records)
        more = found.has_more or len(records) < len(found.records)
        plan = {} if found.plan is None else {"plan": found.plan._asdict()}
        return listing(records, has_more=more, **plan)

    async def record(self, asked: Plain) -> Response:
        """Answer `GET /v1/records/{id}`."""
        record = await self.kernel.store.get(asked.path["id"])
        if record is None or not await self.kernel.reading(asked.principal).may_read(record.thread):
            raise NotFound("there is no record with this id")
        return JsonAnswer(record.wire())

    async def threads(self, asked: Asked[Page, Body]) -> Response:
        """Answer `GET /v1/threads`."""
        whose, since, limit = asked.principal.sees, asked.query.since, asked.query.limit
        async with self._turns.of(whose):
            rows = await self.kernel.store.threads(owner=whose, since=since, limit=limit + 1)
            return listing(
                [{"object": "thread", **row._asdict()} for row in rows[:limit]], has_more=len(rows) > limit
            )

    async def thread_records(self, asked: Asked[Page, Body]) -> Response:
        """Answer `GET /v1/threads/{thread}/records`."""
        query = asked.query
        return await self._listing(asked.principal, query.since, query.limit, thread=asked.path["thread"])

    async def watch(self, asked: Asked[WatchQuery, Body]) -> Response:
        """Answer `GET /v1/watch`."""
        return EventStream(
            self.watching,
            asked.principal,
            lambda: self.authenticator.principal(asked.request),
            lambda: self._turns.of(asked.principal.sees),
            thread=asked.path.get("thread"),
            position=asked.query.beginning(asked.request),
            since_clock=asked.query.since_clock,
        )

    async def watch_thread(self, asked: Asked[WatchQuery, Body]) -> Response:
        """Answer `GET /v1/threads/{thread}/watch`."""
        return await self.watch(asked)

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

    async def _turn(self, asked: Asked[Any, Any]) -> AbstractAsyncContextManager[None]:
        """Give the wait for one's turn to have a body worked on that is long, and none for another."""
        is_long = len(await asked.request.body()) > LONG
        return self._turns.of(asked.principal.sees) if is_long else nullcontext()

    async def start(self, asked: Asked[Query, StartBody]) -> Response:
        """Answer `POST /v1/work/loop`."""
        async with await self._turn(asked):
            body = await asked.body()
        run = await self.transports.start(asked.principal, body.start())
        return JsonAnswer(await self.kernel.rows.row(run.terms.thread), 201)

    async def preview(self, asked: Asked[Query, StartBody]) -> Response:
        """Answer `POST /v1/work/loop/preview`."""
        async with await self._turn(asked):
            body = await asked.body()
        return JsonAnswer(await self.transports.preview(asked.principal, body.start()))

    async def event(self, asked: Asked[Query, EventBody]) -> Response:
        """Answer `POST /v1/runs/{thread}/events`."""
        async with await self._turn(asked):
            (await asked.body()).require_known()
        return await self._stop(asked)

    async def cancel(self, asked: Plain) -> Response:
        """Answer `POST /v1/work/loop/{thread}/cancel`."""
        if await asked.request.body():
            async with await self._turn(asked):
                await asked.body()
        return await self._stop(asked)

    async def _stop(self, asked: Asked[Any, Any]) -> Response:
        thread = asked.path["thread"]
        await self.kernel.stop(asked.principal, thread)
        return JsonAnswer({"object": "event", "type": "stop", "thread": thread}, 202)

    async def runs(self, asked: Asked[RunsQuery, Body]) -> Response:
        """Answer `GET /v1/runs`."""
        query, whose = asked.query, asked.principal.sees
        actor = whose if query.actor is None else query.actor
        if whose not in (None, actor):
            raise ActorNotCovered(f"the bearer does not cover the runs of {actor!r}")
        async with self._turns.of(whose):
            if query.order == "newest":
                rows, more = await self.kernel.rows.newest(
                    state=query.state, actor=actor, limit=query.limit, most_bytes=PAGE_BYTES
                )
            else:
                rows, more = await self.kernel.rows.page(
                    state=query.state,
                    actor=actor,
                    since=query.since,
                    limit=query.limit,
                    most_bytes=PAGE_BYTES,
                )
        return listing(rows, has_more=more)

    async def run(self, asked: Plain) -> Response:
        """Answer `GET /v1/runs/{thread}`."""
        return JsonAnswer(await self.kernel.rows.row(asked.path["thread"], whose=asked.principal.sees))
