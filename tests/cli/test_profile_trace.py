"""`spl profile trace` where a process of its own is too much: what an interrupt leaves behind in this one."""

from __future__ import annotations

import asyncio
import gc
import shutil
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from bwrap import strace
from spl.cli.profiles import attempting
from spl.cli.profiles.free import Ended, tracer_options

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path


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
    attempt = attempting.Attempt(cast("attempting.Trial", Trial()), Ended(0, ""), "strace", cast("Any", None))
    with warnings.catch_warnings(record=True) as said:
        # Of that alone: what another test left unclosed is collected here too.
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", RuntimeWarning)
        with pytest.raises(KeyboardInterrupt):
            attempt([], watched=True)
        gc.collect()

    assert [str(each.message) for each in said] == []


@pytest.mark.parametrize("knows", [True, False])
def test_the_kernel_is_to_kill_what_strace_leaves_where_this_strace_can_say_so(
    tmp_path: Path, knows: bool
) -> None:
    tracer = tmp_path / "strace"
    tracer.write_text(f"#!/bin/sh\necho '{'  --kill-on-exit' if knows else '  -f'}'\n")
    tracer.chmod(0o700)
    assert ("--kill-on-exit" in tracer_options(str(tracer))) is knows


INTERRUPTED = """
import os, signal, sh
from bwrap.library import Library
from spl.cli.profiles import free, keeper

class Command(sh.Command):
    def __call__(self, *words, **options):
        started = super().__call__(*words, **options)
        if "--help" not in words:
            os.kill(os.getpid(), signal.SIGINT)
        return started

sh.Command = Command
try:
    free.run_free(WORDS[0], WORDS[1:], Library().load("worker"))
except KeyboardInterrupt:
    print("interrupted", [] == keeper._children(os.getpid()))
"""


def test_an_interrupt_while_strace_starts_leaves_nothing_of_it() -> None:
    words = [strace.find(), shutil.which("sleep"), "1000"]
    ended = subprocess.run(
        [sys.executable, "-c", f"WORDS = {words!r}\n{INTERRUPTED}"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "interrupted True\n"), ended.stderr
