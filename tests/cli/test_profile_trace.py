"""`spl profile trace` where a process of its own is too much: what an interrupt leaves behind in this one."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from spl.cli.profiles import trace
from spl.cli.profiles.free import Ended

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Trial:
    """Stands for a command with nothing to prepare."""

    def prepared(self, drafted: object) -> object:
        return drafted


def test_an_interrupt_before_a_confined_run_has_begun_leaves_nothing_unawaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(coroutine: Coroutine[Any, Any, object]) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run", interrupted)
    attempt = trace._Attempt(cast("trace._Trial", Trial()), Ended(0, ""), "strace", cast("Any", None))
    with warnings.catch_warnings(record=True) as said:
        # Of that alone: what another test left unclosed is collected here too.
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", RuntimeWarning)
        with pytest.raises(KeyboardInterrupt):
            attempt([], watched=True)
        gc.collect()

    assert [str(each.message) for each in said] == []
