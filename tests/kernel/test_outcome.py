from __future__ import annotations

from typing import Any

import pytest

from spl.inference.model import Call, Reply, Usage
from spl.kernel.outcome import Ending, Outcome, Tally, decide, evidence

CLEAN = Ending(clean=True)
END = Outcome("max_turns", "The run used its 3 turns.")
STOPPED = Outcome("cancelled", "Stopped by did:sync:user:op.")


def reply(text: str = "Done.", *, calls: int = 0, stop: Any = "end") -> Reply:
    made = tuple(Call(f"c{number}", "record_note", {}) for number in range(calls))
    return Reply(text, made, stop, Usage(), "script")


@pytest.mark.claim("K6", "T7")
@pytest.mark.parametrize(
    ("ending", "end", "last", "tally", "outcome", "state"),
    [
        (CLEAN, None, reply(), Tally(), "completed", "done"),
        (CLEAN, None, reply(), Tally(ok=1), "completed", "done"),
        (CLEAN, None, reply(), Tally(ok=1, failed=3, denied=2), "completed", "done"),
        # every call failed
        (CLEAN, None, reply(), Tally(failed=1), "failed", "stopped_short"),
        (CLEAN, None, reply(), Tally(failed=2, denied=1), "failed", "stopped_short"),
        (CLEAN, None, reply(), Tally(failed=2, denied=2), "blocked", "stopped_short"),
        # the loop ended too early, or not by itself
        (CLEAN, None, None, Tally(), "failed", "stopped_short"),
        (CLEAN, None, reply(calls=1), Tally(ok=1), "failed", "stopped_short"),
        (CLEAN, None, reply(stop="length"), Tally(ok=1), "failed", "stopped_short"),
        (CLEAN, None, reply(stop="no_model"), Tally(), "blocked", "stopped_short"),
        (Ending(clean=False, exit={"code": 1}), None, reply(), Tally(ok=1), "failed", "stopped_short"),
        (Ending(clean=False, exit={"signal": "SIGSYS"}), None, None, Tally(), "failed", "stopped_short"),
        (Ending(clean=False, said="x"), None, reply(), Tally(ok=1), "failed", "stopped_short"),
        # the kernel ended it
        (CLEAN, END, reply(calls=1), Tally(ok=1), "max_turns", "stopped_short"),
        (Ending(clean=False, exit={"code": 1}), END, reply(), Tally(), "max_turns", "stopped_short"),
        (
            CLEAN,
            Outcome("budget_exhausted", "x", "usd"),
            reply(),
            Tally(ok=1),
            "budget_exhausted",
            "stopped_short",
        ),
        (
            Ending(clean=False, cause="wall_clock"),
            None,
            reply(),
            Tally(ok=1),
            "budget_exhausted",
            "stopped_short",
        ),
        (
            Ending(clean=True, cause="wall_clock"),
            None,
            reply(),
            Tally(ok=1),
            "budget_exhausted",
            "stopped_short",
        ),
        (Ending(clean=False, cause="daemon"), END, reply(), Tally(ok=1), "max_turns", "stopped_short"),
        (Ending(clean=False, cause="stop"), STOPPED, reply(calls=1), Tally(ok=1), "cancelled", "stopped"),
        (Ending(clean=False, exit={"code": 1}), STOPPED, reply(), Tally(ok=1), "cancelled", "stopped"),
        (Ending(clean=False, cause="wall_clock"), STOPPED, None, Tally(), "cancelled", "stopped"),
        (Ending(clean=False, cause="daemon"), STOPPED, None, Tally(), "cancelled", "stopped"),
        (Ending(clean=False, cause="memory"), None, reply(), Tally(ok=1), "failed", "stopped_short"),
        (Ending(clean=False, cause="host_memory"), None, reply(), Tally(ok=1), "failed", "stopped_short"),
        (Ending(clean=False, cause="memory"), STOPPED, None, Tally(), "cancelled", "stopped"),
        # the daemon did, before anything else had
        (Ending(clean=False, cause="daemon"), None, reply(), Tally(ok=1), "failed", "stopped_short"),
    ],
)
def test_the_outcome_follows_from_what_the_kernel_saw(
    ending: Ending, end: Outcome | None, last: Reply | None, tally: Tally, outcome: str, state: str
) -> None:
    decided = decide(ending, end=end, last=last, tally=tally, wall_clock_secs=120)
    assert (decided.outcome, decided.state) == (outcome, state)
    assert decided.success is (outcome == "completed")
    assert decided.summary


@pytest.mark.parametrize("kind", ["usd", "tokens", "wall_clock"])
def test_an_exhausted_budget_names_its_kind(kind: str) -> None:
    if kind == "wall_clock":
        ending, end = Ending(clean=False, cause=kind), None
    else:
        ending, end = CLEAN, Outcome("budget_exhausted", "x", kind)
    assert decide(ending, end=end, last=None, tally=Tally(), wall_clock_secs=1).budget_kind == kind


@pytest.mark.parametrize(
    ("seconds", "said"), [(120, "wall clock of 120 seconds ran"), (None, "wall clock ran")]
)
def test_a_wall_clock_that_ran_out_is_named_with_its_seconds(seconds: float | None, said: str) -> None:
    ending = Ending(clean=False, cause="wall_clock")
    decided = decide(ending, end=None, last=None, tally=Tally(), wall_clock_secs=seconds)
    assert decided.summary == f"The run's {said} out (wall_clock_secs)."


def test_a_cancelled_run_is_stopped() -> None:
    assert Outcome("cancelled", "x").state == "stopped"


@pytest.mark.claim("K6")
@pytest.mark.parametrize(
    ("tally", "in_process", "whose"),
    [
        (Tally(ok=2), False, "worker"),
        (Tally(), False, "worker"),
        (Tally(ok=2, ok_in_kernel=1), False, "kernel"),
        (Tally(ok=2), True, "kernel"),
    ],
)
def test_a_success_on_the_workers_word_alone_says_so(tally: Tally, in_process: bool, whose: str) -> None:
    assert evidence(tally, in_process=in_process) == whose


def test_the_summary_of_an_unclean_end_says_how_and_is_bounded() -> None:
    ending = Ending(clean=False, exit={"signal": "SIGSYS"}, said="é" * 5000)
    summary = decide(ending, end=None, last=None, tally=Tally(), wall_clock_secs=None).summary
    assert summary.startswith("The loop ended with signal SIGSYS. éé")
    assert len(summary) == 2000
    last = reply("x" * 5000)
    assert len(decide(CLEAN, end=None, last=last, tally=Tally(), wall_clock_secs=None).summary) == 2000
