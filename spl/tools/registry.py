"""The registry: each tool's name, what a model is told of it, its protection domain, and who runs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from spl.loop import tools as sandboxed
from spl.tools import data, host, mediated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from spl.records.record import Record
    from spl.tools.data import DataPlane
    from spl.tools.host import Host
    from spl.tools.mediated import Result


class Domain(StrEnum):
    """Where a tool may run, in order: in the worker, in the kernel for anyone, in the kernel in process only."""

    SANDBOXED = "sandboxed"
    MEDIATED = "mediated"
    KERNEL_TRUST = "kernel-trust-domain"


class Reader(Protocol):
    """What a mediated tool may read: the threads its run's actor may read."""

    async def read(self, thread: str, since: int, limit: int) -> list[Record]:
        """Give at most `limit` records of a thread above a sequence; none where the actor may not read."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """What the tools of one run may reach; a sandboxed run has no data plane, and only the operator a host."""

    reader: Reader
    data: DataPlane | None = None
    host: Host | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool; `run` is there only for those that the kernel runs, `host` says that it is one of the host's."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    domain: Domain
    run: Callable[[Context, Mapping[str, Any]], Awaitable[Result]] | None = None
    host: bool = False

    def wire(self) -> dict[str, Any]:
        """Give the tool as a run's contract and a model's request name it."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "domain": str(self.domain),
        }


def _mediated(name: str, do: Callable[[Reader, Mapping[str, Any]], Awaitable[Result]]) -> Tool:
    async def run(context: Context, arguments: Mapping[str, Any]) -> Result:
        return await do(context.reader, arguments)

    return Tool(name, **mediated.SCHEMAS[name], domain=Domain.MEDIATED, run=run)


def _trusted(name: str, said: Mapping[str, Any], method: str, *, host: bool) -> Tool:
    async def run(context: Context, arguments: Mapping[str, Any]) -> Result:
        files = context.host if host else context.data
        if files is None:
            # The guard has said so before; this is the last door, and it has nothing behind it.
            return mediated.Result("error", f"this run has nothing that {name} could work on")
        result: Result = await getattr(files, method)(arguments)
        return result

    return Tool(name, **said, domain=Domain.KERNEL_TRUST, run=run, host=host)


TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        _mediated("record_note", mediated.record_note),
        _mediated("read_thread", mediated.read_thread),
        *(Tool(name, **said, domain=Domain.SANDBOXED) for name, said in sandboxed.SCHEMAS.items()),
        *(_trusted(name, said, name, host=False) for name, said in data.SCHEMAS.items()),
        *(_trusted(name, said, name.removeprefix("host_"), host=True) for name, said in host.SCHEMAS.items()),
    )
}
