"""The metrics of a real daemon, in the text form, to a scraper that may do nothing else."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from spl import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape


def scraped(daemon: Daemon, token: str) -> dict[tuple[str, ...], float]:
    """Give each sample's value by its name and the values of its labels, in the order of their names."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{daemon.port}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_daemon_tells_of_its_workers_its_layers_and_itself(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        asked = {"label": "prometheus", "agent": True, "scopes": ["metrics:read"]}
        token = daemon.request("POST", "/v1/members", asked)["token"]
        daemon.set_transport("sandboxed")
        before = scraped(daemon, token)
        daemon.finish(daemon.start()["thread"])
        found = scraped(daemon, token)

        assert before.keys() == found.keys()
        assert found["spl_runs_ended_total", "completed", "sandboxed"] == 1
        assert found["spl_run_start_seconds_count", "sandboxed"] == 1
        assert (
            0 < found["spl_verdict_seconds_sum", "allow"] < found["spl_verdict_seconds_count", "allow"] * 20
        )
        assert found["spl_log_commit_seconds_count",] > before["spl_log_commit_seconds_count",]
        assert found["spl_isolation_layer_confirmed", "syscalls"] == 1
        assert found["spl_isolation_layer_confirmed", "separate_user"] == (shape.name == "hosted")
        assert found["spl_admission_available",] == found["spl_admission_capacity",] > 0
        assert found["spl_build_info", shape.name, __version__] == 1
        # Though nobody else may read them: the daemon cannot be dumped.
        assert found["process_open_fds",] > 3
        assert found["process_resident_memory_bytes",] > 1 << 20
