"""What the daemon tells Prometheus of itself: `GET /metrics`, and the only importer of `prometheus_client`.

What stands in the log is counted as it becomes durable, so that no count can differ from it. What is timed is told by
whoever times it, what is a state is looked at when it is asked for, and the log is never read for either.

A label's values are from sets that are closed here. What comes from outside, such as an actor, a thread, a goal, a
model, a path or the name of a rule, is none of them, and the number of series does not depend on what runs.
"""

from __future__ import annotations

import time
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from spl import errors
from spl.inference.broker import BROKEN_OFF
from spl.kernel.names import ENGINE, IN_PROCESS, LOOP, OBSERVATION, OUTCOME, REFUSAL, SANDBOXED
from spl.kernel.observations import SHIPPED
from spl.transports.starting import LOOK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from decimal import Decimal

    from spl.inference.model import Usage
    from spl.kernel.guard import Verdict
    from spl.kernel.kernel import Kernel
    from spl.records.record import Record
    from spl.records.sqlite import SqliteStore
    from spl.transports.starting import Transports

_M = TypeVar("_M", Counter, Gauge, Histogram)

OPENMETRICS: Final = "application/openmetrics-text"

OTHER: Final = "other"
"""What a value is counted as that is none of its label's."""

TRANSPORTS: Final = (IN_PROCESS, SANDBOXED)
OUTCOMES: Final = (
    "completed",
    "failed",
    "blocked",
    "cancelled",
    "max_turns",
    "budget_exhausted",
    "guardrail_halt",
)
VERDICTS: Final = (
    ("allow", "allow"),
    ("deny", "truncated"),
    ("deny", "malformed"),
    ("deny", "grant"),
    ("deny", "clamp"),
    ("deny", "rule"),
    ("deny", "log"),
    ("stop", "stop"),
)
"""Each decision with a layer that can give it; `log` is the layer of one that could not be written."""

BESIDE: Final = ("sandbox", "image", "profile")
"""What refuses a start before there are layers: the host's means, the worker's program, the profile."""

REFUSALS: Final = tuple(
    error.code
    for error in (
        errors.AdmissionCeiling,
        errors.DaemonStopping,
        errors.Internal,
        errors.InvalidBody,
        errors.IsolationUnavailable,
        errors.ModelUnpriced,
        errors.RunActorNotCovered,
        errors.StoreDamaged,
        errors.StoreUnavailable,
        errors.TokenRevoked,
        errors.WorkConcurrencyExceeded,
        errors.WorkDailyCapExceeded,
        errors.WorkDailyCountExceeded,
    )
)
_TOKENS: Final = ("input", "cached_input", "output")

_SHORT_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_START_BUCKETS: Final = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_CALL_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_RECORD_BUCKETS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)


class _Series(Generic[_M]):
    """Every series of a metric, made at once, so that each is there at 0 before anything has happened."""

    def __init__(self, metric: _M, rows: Iterable[tuple[str, ...]]) -> None:
        self._metric: _M = metric
        self._made: dict[tuple[str, ...], _M] = {row: metric.labels(*row) for row in rows}

    def of(self, *values: str) -> _M:
        """Give the series of these values; one that is none of its label's counts as `OTHER`."""
        return self._made.get(values) or self._metric.labels(
            *(
                value if value in known else OTHER
                for value, known in zip(values, zip(*self._made, strict=True), strict=True)
            )
        )

    def each(self) -> Iterable[tuple[str, _M]]:
        """Give the series with the value of their first label."""
        return ((row[0], series) for row, series in self._made.items())


class Instruments:
    """Every metric there is; `layers` are the names of those that a worker can have."""

    def __init__(self, provider: str, layers: Sequence[str]) -> None:
        # When a series began is when the daemon did, and telling it of each would double their number.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.build = Info("spl_build", "The release, and its shape on this host.", registry=self.registry)
        self.began = self._gauge(
            "spl_start_time_seconds", "When the daemon was started, in seconds since 1970."
        )
        self._of_runs((*layers, *BESIDE))
        self._of_judgment()
        self._of_the_log()
        self._of_the_provider(provider)
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def _of_runs(self, layers: Sequence[str]) -> None:
        self.running = self._labelled(
            Gauge, "spl_runs_running", "Runs that are going on.", "transport", product(TRANSPORTS)
        )
        self.started = self._labelled(
            Counter, "spl_runs_started", "Runs that have begun.", "transport", product(TRANSPORTS)
        )
        self.ended = self._labelled(
            Counter,
            "spl_runs_ended",
            "Runs that have their outcome.",
            "transport outcome",
            product(TRANSPORTS, OUTCOMES),
        )
        self.start_seconds = self._labelled(
            Histogram,
            "spl_run_start_seconds",
            "From a start's being admitted to its loop going on by itself, every layer of a sandboxed one confirmed.",
            "transport",
            product(TRANSPORTS),
            buckets=_START_BUCKETS,
        )
        self.refused = self._labelled(
            Counter,
            "spl_starts_refused",
            "Starts that came to nothing, by the error's code.",
            "code",
            product(REFUSALS),
        )
        self.refused_by = self._labelled(
            Counter,
            "spl_isolation_refusals",
            "Sandboxed starts that came to nothing, by the layer that did not hold.",
            "layer",
            product(layers),
        )
        self.confirmed = self._labelled(
            Gauge,
            "spl_isolation_layer_confirmed",
            "1 where the worker that was made last had this layer.",
            "layer",
            product(layers),
        )
        self.unconfirmed = self._labelled(
            Gauge,
            "spl_isolation_layer_refused",
            "1 where the worker that was to be made last was refused by this layer.",
            "layer",
            product(layers),
        )
        self.capacity = self._gauge(
            "spl_admission_capacity", "Sandboxed runs of the default profile that may go on at once."
        )
        self.available = self._gauge(
            "spl_admission_available", "Sandboxed runs of the default profile that could be started now."
        )
        self.taken = self._gauge("spl_admission_used", "Places for sandboxed runs that are taken.")
        self.standby = self._gauge("spl_standby_workers", "Confined workers that wait for a run.")
        self.manned = self._labelled(
            Counter,
            "spl_sandboxed_starts",
            "Sandboxed runs that have begun, by whether their worker stood by or was made for them.",
            "worker",
            product(("standby", "new")),
        )
        self.workers = self._gauge("spl_workers", "Confined workers that are alive and have a run.")
        self.workers_memory = self._gauge(
            "spl_workers_resident_memory_bytes",
            "Resident memory of these workers together, what they share counted for each.",
        )

    def _of_judgment(self) -> None:
        self.verdicts = self._labelled(
            Counter,
            "spl_verdicts",
            "Verdicts on calls, by the layer of the guard that gave them.",
            "decision layer",
            VERDICTS,
        )
        self.verdict_seconds = self._labelled(
            Histogram,
            "spl_verdict_seconds",
            "From a call's being proposed to its verdict's being durable.",
            "decision",
            product(dict.fromkeys(decision for decision, _ in VERDICTS)),
            buckets=_SHORT_BUCKETS,
        )
        self.observations = self._labelled(
            Counter,
            "spl_observations",
            "Observations put beside results, by the shipped rule.",
            "rule",
            product(rule.name for rule in SHIPPED.rules),
        )

    def _of_the_log(self) -> None:
        self.records = self._gauge("spl_log_records", "Records in the log.")
        self.log_failing = self._gauge("spl_log_failing", "1 while the log takes no record.")
        self.commit_seconds = Histogram(
            "spl_log_commit_seconds",
            "A commit of the log, to its being on the disk.",
            registry=self.registry,
            buckets=_SHORT_BUCKETS,
        )
        self.commit_records = Histogram(
            "spl_log_commit_records",
            "Records in one commit, which takes all that wait.",
            registry=self.registry,
            buckets=_RECORD_BUCKETS,
        )
        self.commits_failed = Counter(
            "spl_log_commits_failed", "Commits that the log did not take.", registry=self.registry
        )

    def _of_the_provider(self, provider: str) -> None:
        self.call_seconds = self._labelled(
            Histogram,
            "spl_provider_call_seconds",
            "A call of the model provider.",
            "provider",
            [(provider,)],
            buckets=_CALL_BUCKETS,
        )
        self.calls_failed = self._labelled(
            Counter,
            "spl_provider_calls_failed",
            "Calls without a usable reply, by the error's code; BROKEN_OFF where the run ended before it came.",
            "provider code",
            [(provider, errors.ProviderFailed.code), (provider, BROKEN_OFF)],
        )
        self.cost = self._labelled(
            Counter,
            "spl_provider_cost_usd",
            "What the calls were charged at, in US dollars; one that broke off, at the most it can have cost.",
            "provider",
            [(provider,)],
        )
        self.tokens = self._labelled(
            Counter,
            "spl_provider_tokens",
            "Tokens that the calls took; input that came from the provider's cache is of its own kind.",
            "provider kind",
            product((provider,), _TOKENS),
        )
        self.provider_failing = self._labelled(
            Gauge,
            "spl_provider_failing",
            "1 where the last call gave no usable reply.",
            "provider",
            [(provider,)],
        )

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, registry=self.registry)

    def _labelled(
        self,
        kind: Callable[..., _M],
        name: str,
        about: str,
        labels: str,
        rows: Iterable[tuple[str, ...]],
        **more: Any,
    ) -> _Series[_M]:
        return _Series(kind(name, about, labels.split(), registry=self.registry, **more), rows)


class Metrics:
    """The metrics of one daemon, from when it is made.

    What a dead daemon's runs came to is not among them: whoever reads them sees by `spl_start_time_seconds` that they
    began anew. It belongs to the event loop that the log was opened in.
    """

    def __init__(
        self,
        kernel: Kernel,
        store: SqliteStore,
        transports: Transports,
        *,
        version: str,
        shape: str,
        layers: Sequence[str],
    ) -> None:
        self._kernel = kernel
        self._store = store
        self._transports = transports
        self._provider = kernel.broker.provider.name
        self._own = Instruments(self._provider, layers)
        self._own.build.info({"version": version, "shape": shape})
        self._own.began.set(time.time())
        self._own.records.set(store.found.records)
        self._counted: dict[str | None, Callable[[dict[str, Any]], None]] = {
            LOOP: lambda body: self._own.started.of(body["transport"]).inc(),
            OUTCOME: lambda body: self._own.ended.of(body["transport"], body["outcome"]).inc(),
            OBSERVATION: lambda body: self._own.observations.of(body["rule"]).inc(),
            REFUSAL: lambda body: self._own.refused_by.of(body["layer"]).inc(),
        }
        store.subscribe(self._written)
        store.committed = self._committed
        kernel.judged = self._judged
        kernel.broker.called = self._called
        transports.started = lambda transport, seconds: self._own.start_seconds.of(transport).observe(seconds)
        transports.manned = lambda stood_by: self._own.manned.of("standby" if stood_by else "new").inc()
        transports.refused = lambda code: self._own.refused.of(code).inc()

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Give the text of all metrics as they are now, and its content type: OpenMetrics where `accept` names it."""
        await self._look()
        if any(kind.partition(";")[0].strip().lower() == OPENMETRICS for kind in accept.split(",")):
            text: bytes = openmetrics.generate_latest(self._own.registry)  # type: ignore[no-untyped-call]
            return text, openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self._own.registry), CONTENT_TYPE_PLAIN_0_0_4

    async def _look(self) -> None:
        """Set what is a state."""
        kernel, isolation, own = self._kernel, self._transports.isolation, self._own
        room = await self._transports.room(kernel.config.profile, seconds=LOOK_SECONDS)
        going = [run.terms.transport for run in kernel.live.values()]
        for transport, running in own.running.each():
            running.set(going.count(transport))
        own.capacity.set(room.capacity)
        own.available.set(room.available)
        own.taken.set(kernel.admission.taken)
        own.standby.set(self._transports.standby()["ready"])
        workers = self._transports.workers()
        own.workers.set(len(workers))
        own.workers_memory.set(sum(worker["memory_bytes"] for worker in workers))
        for layer, confirmed in own.confirmed.each():
            confirmed.set(layer in isolation.layers)
        for layer, refused in own.unconfirmed.each():
            refused.set(isolation.refused is not None and isolation.refused.layer == layer)
        own.log_failing.set(self._store.failing is not None)
        own.provider_failing.of(self._provider).set(kernel.broker.failing is not None)

    def _written(self, record: Record) -> None:
        self._own.records.set(record.sequence)
        # In the kernel's own words alone: a run or a member may have written the rest.
        count = self._counted.get(record.kind) if record.actor == ENGINE else None
        if count is not None:
            count(record.body)

    def _committed(self, seconds: float, records: int | None) -> None:
        if records is None:
            self._own.commits_failed.inc()
            return
        self._own.commit_seconds.observe(seconds)
        self._own.commit_records.observe(records)

    def _judged(self, verdict: Verdict, seconds: float) -> None:
        self._own.verdicts.of(verdict.decision, verdict.layer).inc()
        self._own.verdict_seconds.of(verdict.decision).observe(seconds)

    def _called(self, seconds: float, cost_usd: Decimal, usage: Usage, failed: str | None) -> None:
        own, provider = self._own, self._provider
        own.call_seconds.of(provider).observe(seconds)
        own.cost.of(provider).inc(float(cost_usd))
        tokens = (usage.input_tokens - usage.cached_tokens, usage.cached_tokens, usage.output_tokens)
        for kind, number in zip(_TOKENS, tokens, strict=True):
            own.tokens.of(provider, kind).inc(number)
        if failed is not None:
            own.calls_failed.of(provider, failed).inc()
