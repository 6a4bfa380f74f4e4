"""The documents that the operator's API answers, as types: they describe, and the tests hold every answer to them.

Nothing is made from them when a request is answered. What is not named in one does not stand in it, but for those
whose fields are anyone's: a record's body, what else an error tells, a line of the log.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config

# pydantic takes no other before Python 3.12.
from typing_extensions import TypedDict

from spl.kernel.rows import State

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 in hex")]
Instant = Annotated[
    str, Field(description="a time in UTC, by ISO 8601", examples=["2026-01-31T12:00:00.000Z"])
]
Sequence = Annotated[int, Field(ge=1, description="where it stands in the log")]
Count = Annotated[int, Field(ge=0)]
RunState = Annotated[State, Field(description="whether it goes on, or how it ended")]
Usd = Annotated[float, Field(ge=0, description="US dollars")]


@with_config(ConfigDict(extra="forbid"))
class Closed(TypedDict):
    """What has no other fields than are named."""


@with_config(ConfigDict(extra="allow"))
class Open(TypedDict):
    """What may have other fields."""


class Alive(Closed):
    """The daemon answers."""

    status: Literal["ok"]


class Description(Open):
    """What this API is, as OpenAPI 3.1 describes it."""

    openapi: Literal["3.1.0"]
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


class Error(Open):
    """An error; with some codes it has more fields than these."""

    object: Literal["error"]
    type: Literal[
        "authentication_error", "permission_error", "request_error", "unavailable_error", "internal_error"
    ]
    code: Annotated[str, Field(description="what went wrong, by name")]
    message: Annotated[str, Field(description="what failed, on what, and why")]
    remedy: NotRequired[Annotated[str, Field(description="what to do, where the code alone does not say it")]]
    retry_after_secs: NotRequired[Annotated[int, Field(description="as the header Retry-After")]]


class _Listing(Closed):
    object: Literal["list"]
    has_more: Annotated[bool, Field(description="whether there is more beyond this page")]


# --- records ---


class Record(Closed):
    """A record as it stands in the log."""

    object: Literal["record"]
    id: Digest
    parents: list[Digest]
    thread: str
    actor: Annotated[str, Field(description="whose record it is, as a DID")]
    act: Literal["INTEND", "DO", "KNOW", "LEARN", "GET", "PUT", "CALL", "MAP"]
    body: dict[str, Any]
    clock: Annotated[int, Field(ge=0, description="rises with each record of an actor on a thread")]
    data_type: Literal["SCALAR", "FORMULA", "DISTRIBUTION", "REFERENCE", "MORPHISM", "VOID"]
    judged_by: str | None
    sequence: Sequence


class RecordListing(_Listing):
    """Records in sequence order."""

    data: list[Record]


class Plan(Closed):
    """How the log goes about a query."""

    sql: Annotated[str, Field(description="the filter as SQLite is asked, with `?` for each value")]
    indexed: Annotated[
        list[str], Field(description="the fields that are looked up; all else is read through")
    ]
    steps: Annotated[list[str], Field(description="what SQLite says of how it goes about it")]


class FoundListing(_Listing):
    """Records that a filter matches, in the order asked for."""

    data: list[Record]
    plan: NotRequired[Annotated[Plan, Field(description="where `explain` asks for it")]]


class Thread(Closed):
    """A thread: how many records it has, and where it begins and ends."""

    object: Literal["thread"]
    thread: str
    records: Annotated[int, Field(ge=1)]
    first_sequence: Sequence
    last_sequence: Sequence


class ThreadListing(_Listing):
    """Threads in the order they began."""

    data: list[Thread]


# --- runs ---


class Ceilings(Closed):
    """What one run may use; null is no ceiling."""

    max_turns: Annotated[int, Field(ge=1)] | None
    wall_clock_secs: float | None
    token_budget: Annotated[int, Field(ge=1)] | None
    budget_usd: Usd | None


class Run(Ceilings):
    """A run: what was decided of it, and how far it has come."""

    thread: str
    actor: str
    goal: str
    tier: str
    transport: Literal["in_process", "sandboxed"]
    profile: Annotated[str | None, Field(description="what confines it; null where it runs in process")]
    state: RunState
    model: str
    tools: list[str]
    narrowed: Annotated[list[str], Field(description="the tools granted that its transport withholds")]
    turns: Count
    spent_usd: Usd
    tool_calls_ok: Count
    tool_calls_failed: Count
    started_at: Instant
    ended_at: Instant | None
    summary: str | None
    outcome: Annotated[str | None, Field(description="how it ended; null while it goes on")]


class ListedRun(Run):
    """A run in a listing."""

    sequence: Annotated[int, Field(ge=1, description="its anchor's, to read on from")]


class RunListing(_Listing):
    """Runs, oldest or newest first."""

    data: list[ListedRun]


class Admission(Closed):
    """The places there are for sandboxed runs of one profile."""

    admission_capacity: Count
    admission_available: Count


class Preview(Closed):
    """What a start would be."""

    object: Literal["preview"]
    goal: str
    actor: str
    asked_by: str
    tier: str
    transport: Literal["in_process", "sandboxed"]
    profile: str | None
    tools: list[str]
    forbidden_tools: list[str]
    narrowed: list[str]
    ceilings: Ceilings
    model: str
    admission: Annotated[Admission | None, Field(description="null for a run in process")]
    would_start: bool
    refusals: Annotated[list[Error], Field(description="each error that the start would meet")]


class Event(Closed):
    """An event that a run was told."""

    object: Literal["event"]
    type: Literal["stop"]
    thread: str


# --- the engine ---


class LayerRefusal(Closed):
    """A layer of isolation that could not be confirmed."""

    layer: str
    expected: str
    observed: str
    remedy: str


class Instance(Closed):
    """Whose daemon it is, and where; the host and the home are told to the operator alone."""

    operator: str
    host: NotRequired[str]
    home: NotRequired[str]


class Standby(Closed):
    """The workers that are made ahead of the runs that take them."""

    target: Annotated[int, Field(ge=0, description="how many there are to be of each profile in use")]
    ready: Annotated[int, Field(ge=0, description="how many there are, of all profiles")]


class WorkLoop(Admission):
    """How runs are started."""

    transport: Literal["in_process", "sandboxed"]
    member_transport: Literal["in_process", "sandboxed"]
    profile: str
    tier_profiles: Annotated[dict[str, str], Field(description="the profiles chosen for one tier alone")]
    permission_rules: Annotated[int, Field(ge=0, description="how many there are")]
    standby: Standby
    refused: NotRequired[
        Annotated[
            LayerRefusal, Field(description="why nobody can be confined by the profile; the operator's alone")
        ]
    ]


class Cgroup(Closed):
    """What the daemon may divide among its workers, so that each has a group of its own."""

    delegated: Annotated[bool, Field(description="whether it was given one to divide, and could")]
    controllers: NotRequired[
        Annotated[
            list[Literal["memory", "pids"]], Field(description="what each worker's group is bounded by")
        ]
    ]
    kill: NotRequired[Annotated[bool, Field(description="whether a group can be killed as one")]]
    reason: NotRequired[Annotated[str, Field(description="why there is none, or what is missing")]]


class Isolation(Closed):
    """What the last worker showed of this host."""

    shape: Literal["hosted", "same-user"]
    layers: Annotated[list[str], Field(description="the layers that it confirmed")]
    refused: NotRequired[
        Annotated[LayerRefusal, Field(description="the layer that did not hold; the operator's alone")]
    ]
    cgroup: NotRequired[Annotated[Cgroup, Field(description="the operator's alone")]]


class Backup(Closed):
    """The newest backup of the log."""

    path: str
    records: Count
    at: Instant


class Store(Closed):
    """The log."""

    backend: Literal["sqlite"]
    failing: Annotated[str | None, Field(description="why the last record could not be written")]
    backup: NotRequired[Annotated[Backup | None, Field(description="the operator's alone")]]
    damaged: NotRequired[
        Annotated[
            str | None,
            Field(description="what the last backup found wrong with the log; the operator's alone"),
        ]
    ]


class Provider(Closed):
    """The model provider; never a key."""

    name: str
    model: str
    url: NotRequired[Annotated[str | None, Field(description="the operator's alone")]]
    priced: Annotated[bool, Field(description="whether the model has a price")]
    failing: NotRequired[
        Annotated[str | None, Field(description="why the last call gave no reply; the operator's alone")]
    ]


class Spend(Closed):
    """What the runs of a day have cost: all of them for the operator, a member's own for a member."""

    day: Annotated[str, Field(description="in UTC", examples=["2026-01-31"])]
    usd: Usd


class Health(Closed):
    """The daemon's state."""

    status: Annotated[
        Literal["ok", "stopping"],
        Field(description="`stopping` while runs leave before it ends, and none starts"),
    ]
    version: str
    uptime_secs: Annotated[float, Field(ge=0)]
    instance: Instance
    records: Count
    work_loop: WorkLoop
    isolation: Isolation
    store: Store
    provider: Provider
    spend: Spend


class Usage(Closed):
    """The tokens of one model call."""

    input_tokens: Count
    output_tokens: Count


class Price(Closed):
    """What a model costs, in US dollars for a million tokens."""

    input: Usd
    output: Usd


class ProviderCheck(Closed):
    """One small call of the model provider."""

    object: Literal["provider_check"]
    provider: str
    url: str | None
    model: str
    answered_by: str
    seconds: Annotated[float, Field(ge=0)]
    stop_reason: str
    calls_tools: bool
    usage: Usage
    cost_usd: Annotated[Usd | None, Field(description="null where the model has no price")]
    usd_per_million: Price | None
    remarks: NotRequired[list[str]]


class Rule(Closed):
    """A permission rule."""

    object: Literal["rule"]
    name: str
    action: str
    priority: int
    expression: str
    enabled: bool
    hits: Annotated[
        int, Field(ge=0, description="how often it decided since it was written or the daemon began")
    ]


class RuleListing(_Listing):
    """The rules in the order they are asked."""

    data: list[Rule]


class Tier(Closed):
    """A tier's ceilings as they are now; null is none."""

    object: Literal["tier"]
    tier: str
    max_turns: int | None
    wall_clock_secs: float | None
    token_budget: int | None
    default_budget_usd: Usd
    daily_cost_usd: Usd | None
    daily_runs: int | None
    concurrent_runs: int | None


class TierListing(_Listing):
    """The tiers."""

    data: list[Tier]


# --- members and tokens ---


class _Member(Closed):
    object: Literal["member"]
    label: str
    actor: str
    scopes: list[str]
    added_at: Instant
    tier: str


class Member(_Member):
    """A member."""


class MemberAdded(_Member):
    """A member that was added, and its first token, told this once."""

    token_id: str
    token: str


class MemberRevoked(_Member):
    """A member that was taken away."""

    revoked: Literal[True]
    stopped: Annotated[list[str], Field(description="the threads of the runs that were told to stop")]


class MemberListing(_Listing):
    """The members."""

    data: list[Member]


class _Token(Closed):
    object: Literal["token"]
    id: str
    actor: str
    scopes: list[str]
    minted_at: Annotated[Instant | None, Field(description="null for the operator's own")]


class Token(_Token):
    """What may be told of a live token."""


class TokenMinted(_Token):
    """A new token, told this once."""

    token: str


class TokenRevoked(_Token):
    """A token that was ended."""

    revoked: Literal[True]


class TokenListing(_Listing):
    """The live tokens."""

    data: list[Token]


# --- profiles ---


class Fault(Closed):
    """What is wrong at a place of a profile."""

    file: str
    line: int | None
    column: int | None
    place: str
    reason: str
    excerpt: str


class ProfileFault(Fault):
    """Why a profile cannot be used."""

    message: str


class ListedProfile(Closed):
    """A profile in a listing; of one that cannot be used only its name, its source and its error are known."""

    object: Literal["profile"]
    name: str
    source: Literal["shipped", "own"]
    description: str | None
    extends: Annotated[list[str], Field(description="its parent first")]
    digest: str | None
    floor: Literal["ok", "below"] | None
    error: ProfileFault | None


class ProfileListing(_Listing):
    """Every profile, shipped and the operator's own."""

    data: list[ListedProfile]


class Value(Closed):
    """A value of a profile, and what said it."""

    path: str
    value: Any
    profile: str
    file: str
    line: int


class Breach(Fault):
    """A row of the floor that a profile does not keep."""

    row: str
    layer: str


class Floor(Closed):
    """Whether a profile promises what every one must."""

    ok: bool
    breaches: list[Breach]


class Remark(Fault):
    """What `spl profile lint` says beside the breaches."""

    severity: str
    row: str


class Filter(Closed):
    """The system calls that a profile leaves."""

    arch: str
    digest: str
    rules: list[str]


class Profile(Closed):
    """A profile resolved; what it comes to on this host, or in `refused` why that is nothing."""

    object: Literal["profile"]
    name: str
    description: str
    extends: list[str]
    digest: str
    values: list[Value]
    floor: Floor
    remarks: list[Remark]
    argv: NotRequired[Annotated[list[str], Field(description="bubblewrap's options, a line each")]]
    command: NotRequired[list[str]]
    argv_digest: NotRequired[str]
    limits: NotRequired[Annotated[dict[str, int], Field(description="by the names of getrlimit(2)")]]
    absent: NotRequired[Annotated[list[str], Field(description="optional files that are not there")]]
    filter: NotRequired[Filter]
    refused: NotRequired[LayerRefusal]


# --- what an event stream tells ---


class RecordCreated(Closed):
    """`record.created`: a record that has become durable; the event's id is its sequence."""

    id: Digest
    record: Record


class Heartbeat(Closed):
    """`heartbeat`: nothing to tell up to a sequence, which is the event's id."""

    sequence: Count


class EngineHeartbeat(Closed):
    """`heartbeat`: nothing has changed."""


class Shutdown(Closed):
    """`server_shutdown`: the daemon stops, and the stream ends."""

    retry_after_ms: Count


class Worker(Closed):
    """The confined process of a run, and what of the host it uses."""

    thread: str
    pid: int
    memory_bytes: Annotated[int, Field(ge=0, description="resident, what it shares with others included")]
    cpu_seconds: Annotated[float, Field(ge=0, description="processor time so far")]


class Workers(Closed):
    """`engine.workers`: every worker that lives."""

    workers: list[Worker]


class LogLine(Closed):
    """`engine.log`: a line of the daemon's log."""

    number: Annotated[int, Field(ge=1, description="rises by one with each line of a daemon's life")]
    line: dict[str, Any]
