"""The page of the metrics: how they are had, and a row for each, made from what spl/metrics.py declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bwrap.layers import every_layer
from spl.metrics import Instruments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

INTRODUCTION: Final = """\
# Metrics

`GET /metrics` gives what the daemon counts and times of itself, in Prometheus' text form, or as OpenMetrics where that
is asked for by `Accept`. It needs a token with the scope `metrics:read`, which no member has unless it is given. A
scraper with no other scope can read no record:

```sh
spl serve --daemon
umask 077
TOKEN=$(spl member add prometheus --agent --scope metrics:read -o json | jq -er .token) &&
  printf '%s\\n' "$TOKEN" > spl.token
curl -sf -H "Authorization: Bearer $(cat spl.token)" http://127.0.0.1:9100/metrics | grep '^spl_runs_running'
curl -s -o /dev/null -w '%{http_code}\\n' -H "Authorization: Bearer $(cat spl.token)" http://127.0.0.1:9100/v1/records
spl config set-transport sandboxed
spl run 'Record a note whose text is exactly: hello . Use the record_note tool with only the text argument. Then stop.'
curl -sf -H "Authorization: Bearer $(cat spl.token)" http://127.0.0.1:9100/metrics | grep '^spl_verdicts_total.*allow'
```

The second is 403. `spl member add` is for the first time alone: typed again it is refused (`MEMBER_EXISTS`), and the
file stays as it is. `spl token mint --member prometheus` gives another token; once the scraper has that, `spl token
list` has the old one's id and `spl token revoke ID` ends it. `spl member revoke prometheus` ends all of them. The file
belongs where Prometheus' own user can read it and nobody else:

```text
scrape_configs:
  - job_name: spl
    authorization:
      credentials_file: /etc/prometheus/spl.token
    static_configs:
      - targets: ["127.0.0.1:9100"]
```

It tells of everybody's runs together: what is spent, what is refused, what is denied. So give the scope to whoever may
know that. **No label has a run, a thread, an actor, a goal, a model, a path or a rule of yours in it.** The values of
each label are those below, so the number of series does not depend on what runs; what would be another is counted as
`other`. A provider is told by its name, and not by its models, for a member may name any.

What stands in the log is counted as it becomes durable: starts, outcomes, observations, refusals by layer. All counters
begin at 0 with the daemon, and `rate()` knows that; what the runs of a daemon that was killed came to is not among
them. A scrape reads no record, and keeps the daemon from other work for a millisecond, and for another where sixty
workers live. Requests are not counted: the daemon listens on loopback for a few who are known, and what a request leads
to is counted as a start, a verdict or a commit.

## Alerts and a dashboard

In `contrib/`, which a wheel installs as `spl/contrib/` in `site-packages`, to be copied and changed:

| file | what it is |
|---|---|
| `prometheus/scrape.yml` | the job and the rules' file, for `prometheus.yml` |
| `prometheus/alerts.yml` | nine alerts, each with the page that says what to do (`runbook`) |
| `prometheus/alerts_test.yml` | the tests of these, for `promtool test rules` |
| `grafana/spl.json` | a dashboard of fourteen panels |

A `runbook` such as `docs/doctor.md` is a path from the root of a checkout or of the sdist, where `contrib/` lies too;
the wheel has no pages. Where yours are read elsewhere, put that address before each.

The alerts are of a daemon that is down or was started again and again, of sandboxed starts that are refused, a log that
takes no records, a provider that fails, no room for long, many denials, slow verdicts, and the cost of a day. The
dashboard is checked by its structure, and its queries against the metrics there are; it was loaded in no Grafana.

## Every metric

A counter's name ends in `_total`. A histogram has `_bucket`, `_sum` and `_count`; its count says how often it happened.

| metric | type | labels | meaning |
|---|---|---|---|
"""

REST: Final = """
Beside these stand `process_…` (processor time, memory, descriptors, start) and `python_gc_…`, as of every program that
uses Prometheus' own library.

Made by `make docs` from spl/metrics.py and tests/metrics_page.py.
"""


def page() -> str:
    """Give the text of docs/metrics.md."""
    return INTRODUCTION + "".join(map(_row, own())) + REST


def own() -> Iterator[Metric]:
    """Give every metric of the daemon's own, under the provider `echo`."""
    instruments = Instruments("echo", [layer.name for layer in every_layer()])
    return (metric for metric in instruments.registry.collect() if metric.name.startswith("spl_"))


def _row(metric: Metric) -> str:
    name = {"counter": f"{metric.name}_total", "info": f"{metric.name}_info"}.get(metric.type, metric.name)
    labels = {
        label: list(
            dict.fromkeys(sample.labels[label] for sample in metric.samples if label in sample.labels)
        )
        for label in dict.fromkeys(label for sample in metric.samples for label in sample.labels)
        if label != "le"
    }
    said = "; ".join(f"`{label}`: {_values(label, values)}" for label, values in labels.items())
    if metric.type == "info":
        said = "`version`, `shape`: `same-user`, `hosted`"
    # What Prometheus' own form has for an info; OpenMetrics calls it one.
    type_ = "gauge (in OpenMetrics info)" if metric.type == "info" else metric.type
    return f"| `{name}` | {type_} | {said} | {metric.documentation} |\n"


def _values(label: str, values: list[str]) -> str:
    if label == "provider":
        return "`anthropic`, `openai`, `echo` or `script`, the one that is set"
    if label == "layer" and "network" in values:
        return "the [layers](layers.md), `sandbox`, `image`, `profile`"
    return ", ".join(f"`{value}`" for value in values)
