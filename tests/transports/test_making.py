"""A worker is somebody's from the moment it is confirmed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spl.errors import InvalidBody
from spl.transports import sandboxed
from spl.transports.sandboxed import Sandbox


def test_a_worker_of_whose_layers_no_record_could_be_made_is_ended_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    async def stop(why: str) -> None:
        ended.append(why)

    async def launch(*_: object, **__: object) -> Any:
        seen = [{"layer": "home", "observed": "\ud800"}]
        return SimpleNamespace(receipt=SimpleNamespace(wire=lambda: {"layers": seen}), stop=stop)

    monkeypatch.setattr(sandboxed, "launch", launch)
    sandbox = Sandbox(cast("Any", None), cast("Any", None), cast("Any", None), 1.0)
    with pytest.raises(InvalidBody):
        asyncio.run(sandbox.make(cast("Any", None)))
    assert ended == ["never told of"]
