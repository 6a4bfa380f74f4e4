"""What is told to Prometheus, on an instance behind real sockets; and what is shipped to read it by."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from spl.errors import StoreDamaged
from spl.kernel import names
from spl.metrics import OTHER, OUTCOMES, VERDICTS
from spl.records.record import Draft
from spl.records.verification import judgement
from tests.api.served import serve
from tests.claims import ROOT
from tests.kernel.instance import call, calls, says
from tests.metrics_page import own

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.api.served import Served

Series = tuple[str, frozenset[tuple[str, str]]]

HOSTILE = 'evil"} 1 spl_runs_running{x="'
"""What would end a label, and begin another series, if it stood in one."""


async def scraped(served: Served) -> dict[Series, float]:
    """Give the value of each series."""
    answer = await served.ask("GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def of(found: Mapping[Series, float], name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


async def ran(served: Served, **asked: Any) -> str:
    """Start a run and wait for its outcome; gives its thread."""
    ended = served.here.written(names.OUTCOME)
    answer = await served.ask("POST", "/v1/work/loop", {"goal": HOSTILE, **asked})
    assert answer.status == 201, answer.body
    await ended
    return str(answer.json["thread"])


@pytest.mark.parametrize("runs", [40, pytest.param(200, marks=pytest.mark.soak)])
def test_no_hostile_name_is_in_a_label_and_the_number_of_series_is_the_same_after_one_run_and_after_many(
    tmp_path: Path, runs: int
) -> None:
    async def talk(served: Served) -> None:
        before = await scraped(served)
        await served.here.rule("evil", "true", action="allow")
        mia = await served.member("mia", "records:write", "work:run")
        said = {"thread": "th_mias", "actor": "did:sync:user:mia", "act": "KNOW"}
        forged = {"kind": "my.own.kind.v1", "rule": HOSTILE, "layer": HOSTILE, "outcome": HOSTILE}
        assert (await served.ask("POST", "/v1/records", {**said, "body": forged}, bearer=mia)).status == 201
        assert (await served.ask("POST", "/v1/work/loop", {"goal": "x"}, bearer=mia)).status == 503
        await ran(served, model=HOSTILE)
        once = await scraped(served)
        for _ in range(runs - 1):
            await ran(served, model=HOSTILE)
        often = await scraped(served)

        assert before.keys() == once.keys() == often.keys()
        for name, labels in often:
            assert name.startswith(("spl_", "process_", "python_gc_"))
            for label, value in labels:
                assert HOSTILE not in value, name
                assert not re.search(r"th_|did:|evil|mia", value), (name, label, value)
        assert of(often, "spl_runs_ended_total", transport="in_process", outcome="completed") == runs
        assert of(often, "spl_starts_refused_total", code="ISOLATION_UNAVAILABLE") == 1
        assert of(often, "spl_isolation_refusals_total", layer="network") == 1
        assert of(often, "spl_isolation_layer_refused", layer="network") == 1

    serve(
        tmp_path, talk, calls(call("calculate", "c0", expression="1+1"), call(HOSTILE, "c1")), says("Done.")
    )


def test_a_value_that_nobody_knows_counts_as_another_and_what_is_not_the_kernels_does_not_count(
    tmp_path: Path,
) -> None:
    async def talk(served: Served) -> None:
        mia, engine = "did:sync:user:mia", names.ENGINE
        for actor, transport in ((mia, "sandboxed"), (engine, "sandboxed"), (engine, HOSTILE)):
            body = {"kind": names.OUTCOME, "transport": transport, "outcome": HOSTILE}
            await served.here.store.append([Draft("th_x", actor, "KNOW", body)])
        found = await scraped(served)
        ended = {
            labels: value
            for (name, labels), value in found.items()
            if name == "spl_runs_ended_total" and value
        }
        assert ended == {
            frozenset({("transport", "sandboxed"), ("outcome", OTHER)}): 1,
            frozenset({("transport", OTHER), ("outcome", OTHER)}): 1,
        }

    serve(tmp_path, talk)


def test_what_is_counted_is_what_stands_in_the_log(tmp_path: Path) -> None:
    again = calls(call("calculate", expression="1/0"))
    replies = (
        calls(call("bash", "c0", command="x"), call("record_note", "c1", text="a")),
        again,
        again,
        again,
    )

    async def talk(served: Served) -> None:
        store = served.here.store
        await served.here.rule("no", 'resource == "tool:record_note"')
        thread = await ran(served, tools=["calculate", "record_note"])
        found = await scraped(served)

        for decision, layer in VERDICTS:
            bodies = await served.here.bodies(thread, names.TOOL_VERDICT)
            written = [(each["decision"], each["layer"]) for each in bodies].count((decision, layer))
            assert of(found, "spl_verdicts_total", decision=decision, layer=layer) == written
        assert of(found, "spl_verdicts_total", decision="deny", layer="rule") == 1
        assert of(found, "spl_verdicts_total", decision="deny", layer="grant") == 1
        assert of(found, "spl_verdict_seconds_count", decision="deny") == 2
        assert of(found, "spl_observations_total", rule="repeated_call") == 1
        turns = await served.here.bodies(thread, names.TURN)
        assert of(found, "spl_provider_call_seconds_count", provider="script") == len(turns) == 5
        tokens = sum(each["usage"]["output_tokens"] for each in turns)
        assert of(found, "spl_provider_tokens_total", provider="script", kind="output") == tokens
        assert of(found, "spl_log_records") == await store.count()
        assert of(found, "spl_log_commit_records_sum") == await store.count()
        assert of(found, "spl_runs_started_total", transport="in_process") == 1
        assert of(found, "spl_run_start_seconds_count", transport="in_process") == 1
        assert of(found, "spl_runs_running", transport="in_process") == 0

    serve(tmp_path, talk, *replies, says("Done."))


def test_a_log_that_takes_nothing_is_told_and_so_is_a_verdict_that_it_could_not_take(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open()
        await run.door("infer", {"messages": [{"role": "user", "content": "x"}]})
        assert (await scraped(served))["spl_log_failing", frozenset()] == 0
        served.here.store._refuse(StoreDamaged("it is damaged"))
        answer = await run.door("propose", {"call_id": "c1"})
        assert answer["layer"] == "log"
        found = await scraped(served)
        assert of(found, "spl_log_failing") == 1
        assert of(found, "spl_log_commits_failed_total") == 1
        assert of(found, "spl_verdicts_total", decision="deny", layer="log") == 1
        assert of(found, "spl_runs_running", transport="sandboxed") == 1
        assert (await served.ask("POST", "/v1/work/loop", {"goal": "x"})).status == 503
        found = await scraped(served)
        assert of(found, "spl_starts_refused_total", code="STORE_DAMAGED") == 1

    serve(tmp_path, talk, calls(call("calculate", expression="1+1")))


def test_a_verdict_that_nobody_waits_for_any_more_is_counted_once_it_is_durable(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open()
        await run.door("infer", {"messages": [{"role": "user", "content": "x"}]})
        held, release = served.here.store.hold(names.TOOL_VERDICT)
        proposing = asyncio.create_task(run.door("propose", {"call_id": "c1"}))
        await held.wait()
        proposing.cancel()
        assert of(await scraped(served), "spl_verdicts_total", decision="allow", layer="allow") == 0
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await proposing
        found = await scraped(served)
        assert of(found, "spl_verdicts_total", decision="allow", layer="allow") == 1
        assert of(found, "spl_verdict_seconds_count", decision="allow") == 1

    serve(tmp_path, talk, calls(call("calculate", expression="1+1")))


def test_it_is_for_the_scope_alone_which_nobody_has_by_default_and_in_the_form_that_is_asked_for(
    tmp_path: Path,
) -> None:
    async def talk(served: Served) -> None:
        usual, scraper = await served.member("mia"), await served.member("prometheus", "metrics:read")
        assert (await served.ask("GET", "/metrics", bearer=usual)).refusal == (403, "SCOPE_DENIED")
        assert (await served.ask("GET", "/metrics", bearer=None)).refusal == (401, "UNAUTHENTICATED")
        assert (await served.ask("GET", "/v1/records", bearer=scraper)).refusal == (403, "SCOPE_DENIED")
        accept = {"accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2"}
        answer = await served.ask("GET", "/metrics", bearer=scraper, headers=accept)
        assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        families = openmetrics.text_string_to_metric_families(answer.body.decode())  # type: ignore[no-untyped-call]
        assert "spl_verdicts" in [family.name for family in families]
        head = await served.ask("HEAD", "/metrics", bearer=scraper)
        assert (head.status, head.body) == (200, b"")
        plain = await served.ask("GET", "/metrics", bearer=scraper, headers={"accept": "*/*, application/x"})
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")

    serve(tmp_path, talk)


def test_every_outcome_that_there_is_has_a_series() -> None:
    assert set(OUTCOMES) == judgement._OUTCOMES


# --- what is shipped to read it by ---

_NAME = re.compile(r"\b((?:spl|process)_[a-z0-9_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!=|!~|=)\s*"([^"]*)"')
_FROM_PROMETHEUS = {"job", "instance", "le"}


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression of the alerts and the dashboard, with where it stands."""
    alerts = (ROOT / "contrib/prometheus/alerts.yml").read_text()
    for found in re.finditer(r"- alert: (\w+)\n(.*?)\n +labels:", alerts, re.DOTALL):
        yield found[1], found[2]
    dashboard = json.loads((ROOT / "contrib/grafana/spl.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def known() -> dict[str, dict[str, set[str]]]:
    """Give the values of each label of each sample's name."""
    found: dict[str, dict[str, set[str]]] = {"process_resident_memory_bytes": {}}
    for metric in own():
        for sample in metric.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


@pytest.mark.parametrize(("where", "expression"), [*expressions()])
def test_what_is_shipped_asks_for_metrics_and_labels_that_there_are(where: str, expression: str) -> None:
    samples = known()
    asked: set[str] = set()
    for name, matchers in _NAME.findall(expression):
        assert name in samples, f"{where}: {name}"
        asked |= samples[name].keys()
        for label, value in _MATCHER.findall(matchers):
            assert label in _FROM_PROMETHEUS | samples[name].keys(), f"{where}: {name} has no {label}"
            if label not in _FROM_PROMETHEUS:
                assert value in samples[name][label], f"{where}: {name} has no {label} of {value}"
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(grouped.split(", ")) <= _FROM_PROMETHEUS | asked, f"{where}: {grouped}"


def test_each_alert_says_what_it_means_and_which_page_says_what_to_do_and_is_tried() -> None:
    folder = ROOT / "contrib/prometheus"
    rules, tests = (folder / "alerts.yml").read_text(), (folder / "alerts_test.yml").read_text()
    alerts = rules.split("- alert: ")[1:]
    assert len(alerts) == 9
    for alert in alerts:
        assert re.search(r"^ +summary: \S", alert, re.MULTILINE)
        assert re.search(r"^ +description: \S", alert, re.MULTILINE)
        page, _, anchor = re.findall(r"^ +runbook: (\S+)$", alert, re.MULTILINE)[0].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in slugs
        assert f'alertname="{alert.split()[0]}",alertstate="firing"' in tests


def test_the_dashboard_is_one_by_its_structure() -> None:
    dashboard = json.loads((ROOT / "contrib/grafana/spl.json").read_text())
    assert (dashboard["uid"], dashboard["schemaVersion"]) == ("spl-daemon", 39)
    variables = {each["name"]: each["type"] for each in dashboard["templating"]["list"]}
    assert variables == {"datasource": "datasource", "job": "query", "instance": "query"}
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["description"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
