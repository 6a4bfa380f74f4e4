"""The registry: each tool's name, what a model is told of it, its protection domain, and who runs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from spl.loop import tools as sandboxed
from spl.tools import mediated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from spl.records.record import Record


class Domain(StrEnum):
    """Where a tool may run, in order: in the worker, in the kernel for anyone, in the kernel in process only."""

    SANDBOXED = "sandboxed"
    MEDIATED = "mediated"
    KERNEL_TRUST = "kernel-trust-domain"


class Reader(Protocol):
    """What a mediated tool may read: the threads its run's actor may read."""

    async def read(self, thread: str, since: int, limit: int) -> list[Record] | None:
        """Give at most `limit` records of a thread above a sequence, or None where the actor may not read."""
        ...


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool; `run` is there only for those that the kernel runs."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    domain: Domain
    run: Callable[[Reader, Mapping[str, Any]], Awaitable[mediated.Result]] | None = None

    def wire(self) -> dict[str, Any]:
        """Give the tool as a run's contract and a model's request name it."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "domain": str(self.domain),
        }


def _mediated(name: str, run: Callable[[Reader, Mapping[str, Any]], Awaitable[mediated.Result]]) -> Tool:
    said = mediated.SCHEMAS[name]
    return Tool(name, said["description"], said["parameters"], Domain.MEDIATED, run)


TOOLS: dict[str, Tool] = {
    "record_note": _mediated("record_note", mediated.record_note),
    "read_thread": _mediated("read_thread", mediated.read_thread),
    **{
        name: Tool(name, said["description"], said["parameters"], Domain.SANDBOXED)
        for name, said in sandboxed.SCHEMAS.items()
    },
}
