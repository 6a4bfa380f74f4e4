"""How a run ended: a pure function from what the kernel saw to the outcome it writes.

A run cannot say that it succeeded; it can only stop asking. Success is a clean end after a last reply without
calls, and is checked against what its tools did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spl.inference.model import Reply

_SUMMARY_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class Ending:
    """How the loop itself ended, as its transport saw it.

    `clean` is an end by itself without a fault; `exit` is the process's code or signal (None in process); `cause`
    is `wall_clock`, `daemon` or `stop` when this side ended it, `memory` when the kernel did since it took more than it
    may, and `host_memory` when others left too little; `said` is what the loop said on its way out, untrusted.
    """

    clean: bool
    exit: dict[str, object] | None = None
    cause: str | None = None
    said: str = ""


@dataclass(slots=True)
class Tally:
    """What became of the calls the model made; denied and cut-off calls count as failed.

    `going` calls are allowed and have no result yet: those that are left when the run ends have failed. `unwritten`
    calls did not run because the log could not take their verdicts: they stand in no record and no count.
    """

    ok: int = 0
    failed: int = 0
    denied: int = 0
    going: int = 0
    ok_in_kernel: int = 0
    unwritten: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on a run; `budget_kind` is there for `budget_exhausted` alone, `stopped_by` for `cancelled`."""

    outcome: str
    summary: str
    budget_kind: str | None = None
    stopped_by: str | None = None

    @property
    def success(self) -> bool:
        """Whether the run completed what it was given."""
        return self.outcome == "completed"

    @property
    def state(self) -> str:
        """The run's state from now on."""
        return {"completed": "done", "cancelled": "stopped"}.get(self.outcome, "stopped_short")


STOPPED: Final = Outcome("failed", "The daemon was stopped while the run was going.")
"""How a run ends that the daemon's own end leaves no time for."""


def decide(
    ending: Ending, *, end: Outcome | None, last: Reply | None, tally: Tally, wall_clock_secs: float | None
) -> Outcome:
    """Decide a run's outcome.

    `end` is what the kernel itself ended the run with (a stop, a ceiling, a provider's failure): it stands however the
    loop went out after it. `last` is the model's last reply.
    """
    if end is not None:
        return end
    if ending.cause == "daemon":
        return STOPPED
    if ending.cause == "wall_clock":
        seconds = "" if wall_clock_secs is None else f" of {wall_clock_secs:g} seconds"
        return Outcome(
            "budget_exhausted", f"The run's wall clock{seconds} ran out (wall_clock_secs).", "wall_clock"
        )
    if ending.cause == "memory":
        return Outcome("failed", "The kernel ended the loop, which took more memory than its profile may.")
    if ending.cause == "host_memory":
        return Outcome(
            "failed", "The kernel ended the loop, since this host or the daemon's cgroup ran out of memory."
        )
    if not ending.clean:
        return Outcome("failed", _cut(f"The loop ended with {_exit(ending)}. {ending.said}".strip()))
    if last is None:
        return Outcome("failed", "The loop ended before the model's first reply.")
    if last.calls:
        return Outcome("failed", "The loop ended with calls of the last reply unanswered.")
    if last.stop_reason == "no_model":
        return Outcome("blocked", _cut(last.text))
    if last.stop_reason == "refusal":
        return Outcome("failed", _cut(f"The model declined to go on. {last.text}".strip()))
    if last.stop_reason == "length":
        return Outcome("failed", "The last reply was cut off by the output limit.")
    return _checked(last, tally)


def _checked(last: Reply, tally: Tally) -> Outcome:
    if (tally.failed or tally.unwritten) and not tally.ok:
        if tally.failed == tally.denied and not tally.unwritten:
            return Outcome("blocked", _cut(f"Every tool call was denied. The last reply: {last.text}"))
        return Outcome("failed", _cut(f"Every tool call failed. The last reply: {last.text}"))
    return Outcome("completed", _cut(last.text))


def sentence(message: str) -> str:
    """Give an error's message, which begins small and ends without a stop, as a summary's sentence."""
    return f"{message[:1].upper()}{message[1:].removesuffix('.')}."


def evidence(tally: Tally, *, in_process: bool) -> str:
    """Say whose word the tools' success rests on: the kernel's, if one ran there, else the worker's own."""
    return "kernel" if in_process or tally.ok_in_kernel else "worker"


def _exit(ending: Ending) -> str:
    if ending.exit is None:
        return "a fault"
    return " ".join(f"{key} {value}" for key, value in ending.exit.items())


def _cut(text: str) -> str:
    return text if len(text) <= _SUMMARY_LIMIT else text[: _SUMMARY_LIMIT - 1] + "…"
