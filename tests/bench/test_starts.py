"""A start is timed by the daemon that makes it, and begun when its standby workers are as they are to be."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any

import pytest

from spl.bench import processes
from spl.bench.processes import Daemon, Ends, helping
from spl.errors import HostRefused

if TYPE_CHECKING:
    from pathlib import Path


def test_a_start_is_timed_from_its_connection_over_its_credential_to_its_first_model_call(
    place: Path,
) -> None:
    with helping(f"{place}/home", standby_workers=0) as helper:
        helper.set_transport("sandboxed")
        began = time.monotonic_ns()
        thread = helper.start()
        answered = time.monotonic_ns()
        ended = helper.ends.wait(thread)
        (start,) = helper.ask("starts")
        helper.set_transport("in_process")
        helper.ends.wait(helper.start())
        assert helper.ask("starts") == []
    times = [began, start["accepted"], start["asked"], start["entrusted"]]
    assert times == sorted(set(times))
    assert start["entrusted"] < answered
    assert start["entrusted"] < start["called"] < ended


class _Keeping(Daemon):
    """A daemon whose health says of its standby workers what it is given to say, the last of it again and again."""

    def __init__(self, *standby: dict[str, int] | None) -> None:
        self.ends = Ends(io.BytesIO(b"the disk is full\n"))
        self.left = list(standby)
        self._standbys = 1000

    def health(self) -> Any:
        said = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return {"work_loop": {} if said is None else {"standby": said}}


def test_nothing_is_begun_before_as_many_standby_workers_are_ready_as_are_kept() -> None:
    keeping = _Keeping({"target": 2, "ready": 0}, {"target": 2, "ready": 1}, {"target": 2, "ready": 2}, None)
    keeping.settle()
    assert keeping.left == [None]


def test_a_daemon_that_keeps_none_is_not_waited_for() -> None:
    _Keeping({"target": 0, "ready": 0}).settle()


def test_fewer_than_are_to_be_kept_are_enough_once_no_more_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_STANDBY_SECONDS", 0.0)
    _Keeping({"target": 2, "ready": 1}).settle()


def test_a_daemon_that_gets_no_standby_worker_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_STANDBY_SECONDS", 0.0)
    monkeypatch.setattr(processes, "SECONDS", 0.0)
    keeping = _Keeping({"target": 2, "ready": 0})
    keeping.ends._follower.join()
    with pytest.raises(HostRefused, match="has no standby worker ready; the last it said: the disk is full"):
        keeping.settle()
