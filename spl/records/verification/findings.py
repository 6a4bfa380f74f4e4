"""What a verification finds, and what it comes to: in the words of whoever is to judge by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

CONSISTENT: Final = "internally consistent"
WHOLE: Final = "whole"
NOT_VERIFIED: Final = "not verified"

Verdict: TypeAlias = Literal["internally consistent", "whole", "not verified"]

TOLD: Final = 100
"""Findings that are told; of more than these only the number is."""

_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it must be: where, what was checked, and a sentence.

    `sequence` and `id` are those that the record itself gives, None where it gives none or none is to blame.
    """

    check: str
    text: str
    sequence: int | None = None
    id: str | None = None
    thread: str | None = None

    def wire(self) -> dict[str, Any]:
        """Give the finding as it stands in a document."""
        return {
            "thread": self.thread,
            "sequence": self.sequence,
            "id": self.id,
            "check": self.check,
            "text": self.text,
        }


@dataclass(slots=True)
class Findings:
    """Findings as they come: the first `TOLD` are kept, and all are counted."""

    told: list[Finding] = field(default_factory=list)
    count: int = 0

    def add(self, finding: Finding) -> None:
        """Take one down."""
        self.count += 1
        if len(self.told) < TOLD:
            self.told.append(finding)

    def take(self, others: Findings) -> None:
        """Take down all of another's."""
        self.count += others.count
        self.told += others.told[: TOLD - len(self.told)]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.told)


@dataclass(frozen=True, slots=True)
class Outside:
    """A record on a run's thread that is none of the run's: nothing but its own id speaks for it."""

    sequence: int
    id: str
    actor: str
    kind: str | None

    def wire(self) -> dict[str, Any]:
        """Give it as it stands in a document."""
        return {"sequence": self.sequence, "id": self.id, "actor": self.actor, "kind": self.kind}


@dataclass(frozen=True, slots=True)
class Verification:
    """What was verified, and what was found; `verdict` is what it comes to.

    `elsewhere` counts the parents that were named and are not among the records before: they may stand on another
    thread, or nowhere, for whoever writes a record may name what parents they like.
    """

    records: int
    elsewhere: int
    findings: Findings

    @property
    def verdict(self) -> Verdict:
        """Say what the findings leave: that what is there agrees with itself, and no more."""
        return NOT_VERIFIED if self.findings.count else CONSISTENT

    def wire(self) -> dict[str, Any]:
        """Give the verification as a document, without its source."""
        return {
            "records": self.records,
            "elsewhere": self.elsewhere,
            **self._wire(),
            "verdict": self.verdict,
            "found": self.findings.count,
            "findings": [finding.wire() for finding in self.findings],
        }

    def _wire(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class ThreadVerification(Verification):
    """What was found of one thread.

    `chain` counts the records of its run, `head` is the last of them, and `ended` says that it is the outcome. `begun`
    says that there is a run. `asked` is the head that it was to end in, None where none was given.
    """

    thread: str | None
    begun: bool
    chain: int
    outside: tuple[Outside, ...]
    head: str | None
    ended: bool
    asked: str | None

    @property
    def verdict(self) -> Verdict:
        """Say what it comes to; only a head from elsewhere can show that nothing was made anew."""
        if self.findings.count:
            return NOT_VERIFIED
        return CONSISTENT if self.asked is None else WHOLE

    def _wire(self) -> dict[str, Any]:
        return {
            "thread": self.thread,
            "chain": self.chain,
            "outside": [record.wire() for record in self.outside],
            "head": self.head,
            "ended": self.ended,
        }


@dataclass(frozen=True, slots=True)
class LogVerification(Verification):
    """What was found of a whole log."""

    threads: int
    runs: int

    def _wire(self) -> dict[str, Any]:
        return {"threads": self.threads, "runs": self.runs}


def quoted(value: object) -> str:
    """Give the start of any value as a finding may quote it: ASCII, in one line, and short."""
    # Of a large value no more than a piece is written out: a repr is made of all of it.
    if isinstance(value, str):
        return ascii(value[: _SHOWN + 1])[:_SHOWN]
    if isinstance(value, list | tuple | Mapping):
        return f"a {'list' if not isinstance(value, Mapping) else 'mapping'} of {len(value)}"
    return ascii(value)[:_SHOWN]
