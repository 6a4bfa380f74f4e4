from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spl.errors import ProviderFailed
from tests.server import error

if TYPE_CHECKING:
    from tests.cli.conftest import Spl
    from tests.server import Daemon

CHECKED = {"object": "provider_check", "provider": "openai", "url": "http://127.0.0.1:1/v1", "model": "m",
           "answered_by": "m-2024", "seconds": 0.1, "stop_reason": "tool_use", "calls_tools": True,
           "usage": {"input_tokens": 100, "output_tokens": 10}, "cost_usd": 7.72e-05,
           "usd_per_million": {"input": 3.0, "output": 15.0}}  # fmt: skip


def test_a_check_asks_the_daemon_for_one_call_and_prints_what_it_took(daemon: Daemon, spl: Spl) -> None:
    daemon.routes["POST /v1/provider/check"] = CHECKED

    assert json.loads(spl("provider", "check", "-o", "json").stdout) == CHECKED
    table = spl("provider", "check", "--model", "m", "-o", "table").stdout

    assert "m-2024" in table
    assert "0.0000772" in table
    assert [each.body for each in daemon.requests] == [{}, {"model": "m"}]


def test_a_provider_that_fails_its_check_fails_the_command(daemon: Daemon, spl: Spl) -> None:
    said = error(502, "PROVIDER_FAILED", "the provider 'openai' refused the key (401)")
    daemon.routes["POST /v1/provider/check"] = said

    done = spl("provider", "check")

    assert done.returncode == ProviderFailed.exit_status
    assert done.stderr.startswith("spl: PROVIDER_FAILED: the provider 'openai' refused the key (401); ")
