"""The table of the operator's API: each method of each path with what it takes, what it answers, and who answers it.

What stands here is what is done: a query is read by its model, a body by its own, and a scope is asked for before
either. `spl.api.description` makes the OpenAPI document of the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from spl import errors
from spl.api import documents
from spl.api.members import MemberBody, TokenBody
from spl.api.queries import Page, Query, RecordsQuery, RunsQuery, WatchQuery
from spl.api.requests import Body, CheckBody, EventBody, RecordBody, SearchBody, StartBody, read_body
from spl.kernel.principals import ADMIN, CONFIG_WRITE, METRICS_READ, RECORDS_READ, WORK_RUN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from spl.api.members import MembersApi
    from spl.api.operator import OperatorApi
    from spl.errors import SplError
    from spl.kernel.principals import Principal

_Q = TypeVar("_Q", bound=Query)
_B = TypeVar("_B", bound=Body)


@dataclass(frozen=True, slots=True)
class Asked(Generic[_Q, _B]):
    """A request of an operation, by someone who may make it: its query read, its body as yet unread."""

    request: Request
    principal: Principal
    query: _Q
    form: type[_B]

    @property
    def path(self) -> Mapping[str, str]:
        """The named parts of the path."""
        return self.request.path_params

    async def body(self) -> _B:
        """Read the body; raises what `read_body` raises."""
        return await read_body(self.request, self.form)


Plain = Asked[Query, Body]
"""A request without a query, or a body."""


@dataclass(frozen=True)
class Operation:
    """One method of one path.

    `answers` is the document by the status, `events` the document by the event's name for an answer that is a stream,
    `texts` the media types of an answer that is neither, which a request chooses among by what it accepts.
    `scope` is asked for before anything else; where it is None the handler asks, or it is anyone's who is known.
    `errors` are those of its own: `may_refuse` has what every operation of its kind can answer besides.
    """

    method: str
    path: str
    handler: Callable[[Asked[Any, Any]], Awaitable[Response]]
    summary: str
    answers: Mapping[int, Any] = field(default_factory=dict)
    details: str = ""
    query: type[Query] = Query
    body: type[Body] | None = None
    body_is_needed: bool = True
    scope: str | None = None
    errors: tuple[type[SplError], ...] = ()
    events: Mapping[str, Any] = field(default_factory=dict)
    needs_bearer: bool = True
    texts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its handler's name, which no other operation has."""
        return self.handler.__name__

    @property
    def takes_position(self) -> bool:
        """Whether a reader that comes again sends `Last-Event-ID`."""
        return issubclass(self.query, WatchQuery)

    def may_refuse(self) -> list[type[SplError]]:
        """Give every error that it can answer, in the order of their statuses."""
        found = {*self.errors, *_ALWAYS}
        if self.needs_bearer:
            found |= _OF_THE_KNOWN
        if self.scope is not None:
            found.add(errors.ScopeDenied)
        if "{" in self.path:
            found.add(errors.NotFound)
        if self.body is not None and any(each.is_required() for each in self.body.model_fields.values()):
            found.add(errors.MissingField)
        return sorted(found, key=lambda each: (each.status, each.code))


_ALWAYS: Final = {errors.InvalidBody, errors.BodyTooLarge, errors.Internal}
_OF_THE_KNOWN: Final = {
    errors.Unauthenticated,
    errors.TokenRevoked,
    errors.BodyTimeout,
    errors.RequestsExceeded,
}
_LOG: Final = (errors.StoreUnavailable, errors.StoreDamaged)
_STARTS: Final = (
    errors.RunActorNotCovered,
    errors.WorkConcurrencyExceeded,
    errors.WorkDailyCountExceeded,
    errors.WorkDailyCapExceeded,
    errors.ModelUnpriced,
    errors.AdmissionCeiling,
    errors.IsolationUnavailable,
    errors.DaemonStopping,
)

RECORD_EVENTS: Final = {
    "record.created": documents.RecordCreated,
    "heartbeat": documents.Heartbeat,
    "error": documents.Error,
    "server_shutdown": documents.Shutdown,
}
ENGINE_EVENTS: Final = {
    "engine.health": documents.Health,
    "engine.workers": documents.Workers,
    "engine.log": documents.LogLine,
    "heartbeat": documents.EngineHeartbeat,
    "error": documents.Error,
    "server_shutdown": documents.Shutdown,
}


def operations(api: OperatorApi, members: MembersApi) -> list[Operation]:
    """Give the table, in the order in which the API is described."""
    return [*_of_the_engine(api), *_of_records(api), *_of_runs(api), *_of_members(members)]


def _of_the_engine(api: OperatorApi) -> list[Operation]:
    return [
        Operation(
            "GET",
            "/health",
            api.alive,
            "Whether the daemon answers",
            {200: documents.Alive},
            needs_bearer=False,
        ),
        Operation(
            "GET",
            "/openapi.json",
            api.description,
            "This description",
            {200: documents.Description},
            needs_bearer=False,
        ),
        Operation(
            "GET",
            "/v1/engine/health",
            api.engine_health,
            "The daemon's state",
            {200: documents.Health},
            "What is told with paths of the host, and why a layer does not hold, is told to the operator alone; "
            "`spend` is a member's own to a member.",
            errors=_LOG,
        ),
        Operation(
            "GET",
            "/v1/engine/watch",
            api.engine_watch,
            "The daemon's state as it changes, its workers and its log",
            details="The newest 200 lines of the log come first. Nothing is repeated to whoever comes again.",
            scope=ADMIN,
            events=ENGINE_EVENTS,
            errors=(errors.WatchersExceeded,),
        ),
        Operation(
            "GET",
            "/metrics",
            api.metrics,
            "What the daemon counts and times of itself, for Prometheus",
            details="It tells of everybody's runs together, and of nobody's by name.",
            scope=METRICS_READ,
            texts=("text/plain", "application/openmetrics-text"),
        ),
        Operation(
            "POST",
            "/v1/provider/check",
            api.check_provider,
            "Make one small call of the model provider",
            {200: documents.ProviderCheck},
            "It costs what it costs, and no ceiling holds for it.",
            body=CheckBody,
            scope=ADMIN,
            errors=(errors.ProviderFailed,),
        ),
        Operation(
            "GET",
            "/v1/rules",
            api.rules,
            "The permission rules in the order they are asked, the disabled too",
            {200: documents.RuleListing},
            scope=CONFIG_WRITE,
        ),
        Operation(
            "GET",
            "/v1/tiers",
            api.tiers,
            "The tiers with their ceilings as they are now",
            {200: documents.TierListing},
            scope=RECORDS_READ,
        ),
        Operation(
            "GET",
            "/v1/profiles",
            api.listed_profiles,
            "Every profile, those that cannot be used among them",
            {200: documents.ProfileListing},
            scope=CONFIG_WRITE,
            errors=(errors.ProfileInvalid,),
        ),
        Operation(
            "GET",
            "/v1/profiles/{name}",
            api.profile,
            "One profile resolved, as it is now",
            {200: documents.Profile},
            "One below the floor, or that this host cannot confine by, comes to nothing: `refused` says why.",
            scope=CONFIG_WRITE,
            errors=(errors.ProfileInvalid, errors.DaemonStopping),
        ),
    ]


def _of_records(api: OperatorApi) -> list[Operation]:
    return [
        Operation(
            "POST",
            "/v1/records",
            api.append,
            "Write a record",
            {201: documents.Record, 200: documents.Record},
            "200 for one that was there already. It needs the scope `records:write`, or `config:write` for "
            "configuration.",
            body=RecordBody,
            errors=(
                errors.ScopeDenied,
                errors.ActorNotCovered,
                errors.KindReserved,
                errors.MissingField,
                errors.IngestFailed,
                errors.ExpressionInvalid,
                errors.ProfileInvalid,
                errors.ProfileBelowFloor,
                errors.DaemonStopping,
                *_LOG,
            ),
        ),
        Operation(
            "GET",
            "/v1/records",
            api.records,
            "Records by thread, actor and kind",
            {200: documents.RecordListing},
            query=RecordsQuery,
            scope=RECORDS_READ,
            errors=_LOG,
        ),
        Operation(
            "POST",
            "/v1/records/query",
            api.search,
            "The records that a filter matches",
            {200: documents.FoundListing},
            body=SearchBody,
            scope=RECORDS_READ,
            errors=(errors.QueryExceeded, *_LOG),
        ),
        Operation(
            "GET",
            "/v1/records/{id}",
            api.record,
            "One record",
            {200: documents.Record},
            scope=RECORDS_READ,
            errors=_LOG,
        ),
        Operation(
            "GET",
            "/v1/threads",
            api.threads,
            "The threads in the order they began",
            {200: documents.ThreadListing},
            query=Page,
            scope=RECORDS_READ,
            errors=_LOG,
        ),
        Operation(
            "GET",
            "/v1/threads/{thread}/records",
            api.thread_records,
            "A thread's records in sequence order",
            {200: documents.RecordListing},
            query=Page,
            scope=RECORDS_READ,
            errors=_LOG,
        ),
        Operation(
            "GET",
            "/v1/threads/{thread}/watch",
            api.watch_thread,
            "A thread as it grows",
            details="First what the log holds, then each record once it is durable, without a gap or a repeat.",
            query=WatchQuery,
            scope=RECORDS_READ,
            events=RECORD_EVENTS,
            errors=(errors.WatchersExceeded, *_LOG),
        ),
        Operation(
            "GET",
            "/v1/watch",
            api.watch,
            "Every thread that the bearer may read, as it grows",
            details="First what the log holds, then each record once it is durable, without a gap or a repeat.",
            query=WatchQuery,
            scope=RECORDS_READ,
            events=RECORD_EVENTS,
            errors=(errors.WatchersExceeded, *_LOG),
        ),
    ]


def _of_runs(api: OperatorApi) -> list[Operation]:
    return [
        Operation(
            "POST",
            "/v1/work/loop",
            api.start,
            "Start a run",
            {201: documents.Run},
            "A ceiling narrows the tier's, and never widens it.",
            body=StartBody,
            scope=WORK_RUN,
            errors=(*_STARTS, *_LOG),
        ),
        Operation(
            "POST",
            "/v1/work/loop/preview",
            api.preview,
            "What a start would be",
            {200: documents.Preview},
            "Starts and writes nothing; `refusals` holds each error that the start would meet.",
            body=StartBody,
            scope=WORK_RUN,
            errors=(errors.RunActorNotCovered,),
        ),
        Operation(
            "POST",
            "/v1/work/loop/{thread}/cancel",
            api.cancel,
            "Stop a run, by the older name of the event",
            {202: documents.Event},
            "It takes no body, or an empty object.",
            body=Body,
            body_is_needed=False,
            scope=WORK_RUN,
            errors=(errors.RunNotFound, errors.RunFinished, *_LOG),
        ),
        Operation(
            "GET",
            "/v1/runs",
            api.runs,
            "The runs",
            {200: documents.RunListing},
            query=RunsQuery,
            scope=RECORDS_READ,
            errors=(errors.ActorNotCovered, *_LOG),
        ),
        Operation(
            "GET",
            "/v1/runs/{thread}",
            api.run,
            "One run",
            {200: documents.Run},
            scope=RECORDS_READ,
            errors=(errors.RunNotFound, *_LOG),
        ),
        Operation(
            "POST",
            "/v1/runs/{thread}/events",
            api.event,
            "Stop a run",
            {202: documents.Event},
            "Its next call is answered with a stop verdict, and it ends cancelled.",
            body=EventBody,
            scope=WORK_RUN,
            errors=(errors.EventUnknown, errors.RunNotFound, errors.RunFinished, *_LOG),
        ),
    ]


def _of_members(members: MembersApi) -> list[Operation]:
    return [
        Operation(
            "POST",
            "/v1/members",
            members.add,
            "Add a member",
            {201: documents.MemberAdded},
            body=MemberBody,
            scope=ADMIN,
            errors=(errors.MemberExists, *_LOG),
        ),
        Operation(
            "GET", "/v1/members", members.members, "The members", {200: documents.MemberListing}, scope=ADMIN
        ),
        Operation(
            "DELETE",
            "/v1/members/{label}",
            members.revoke,
            "Take a member away",
            {200: documents.MemberRevoked},
            "Its tokens are dead, and its runs told to stop.",
            scope=ADMIN,
            errors=_LOG,
        ),
        Operation(
            "POST",
            "/v1/tokens",
            members.mint,
            "Make a token",
            {201: documents.TokenMinted},
            "It is the operator's unless `label` names a member, and has all of its holder's scopes unless `scopes` "
            "names them.",
            body=TokenBody,
            scope=ADMIN,
            errors=(errors.NotFound, errors.ActorNotCovered, *_LOG),
        ),
        Operation(
            "GET",
            "/v1/tokens",
            members.tokens,
            "The live tokens",
            {200: documents.TokenListing},
            "The one named `operator` is that of the home's token file.",
            scope=ADMIN,
        ),
        Operation(
            "POST",
            "/v1/tokens/{id}/rotate",
            members.rotate,
            "Make a token in the place of one, which is dead from then on",
            {201: documents.TokenMinted},
            "`operator` too.",
            scope=ADMIN,
            errors=(errors.ActorNotCovered, errors.HostRefused, *_LOG),
        ),
        Operation(
            "DELETE",
            "/v1/tokens/{id}",
            members.revoke_token,
            "End a token",
            {200: documents.TokenRevoked},
            "The operator's own is only rotated.",
            scope=ADMIN,
            errors=_LOG,
        ),
    ]
