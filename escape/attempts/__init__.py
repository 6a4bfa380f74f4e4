"""Every attempt, a file a class. Sealed into the escape image: standard library and `escape.inside` only."""

from __future__ import annotations

from escape.attempts import (
    abi,
    bearers,
    calls,
    changes,
    commands,
    credential,
    descriptors,
    execution,
    families,
    folders,
    framing,
    home,
    host,
    ipc,
    kernel,
    keyrings,
    lifetime,
    limits,
    load,
    memory,
    mounts,
    namespaces,
    neighbours,
    network,
    paths,
    privilege,
    resources,
    scheduling,
    shown,
    signals,
    sockets,
    sweeps,
    terminals,
    tracing,
    trees,
    words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from escape.attempt import Attempt

CLASSES = (
    network,
    families,
    sockets,
    descriptors,
    commands,
    folders,
    terminals,
    credential,
    home,
    host,
    changes,
    shown,
    execution,
    mounts,
    trees,
    namespaces,
    tracing,
    signals,
    scheduling,
    neighbours,
    lifetime,
    privilege,
    keyrings,
    kernel,
    memory,
    sweeps,
    abi,
    limits,
    resources,
    ipc,
    paths,
    bearers,
    framing,
    words,
    calls,
    load,
)
"""The classes, in the order in which they are tried."""


def _attempts(module: ModuleType) -> Iterator[Attempt]:
    kind = module.__name__.rpartition(".")[2]
    for attempt in module.ATTEMPTS:
        if attempt.kind != kind:
            raise ValueError(f"{attempt.id} stands in the file of another class")
        yield attempt


ATTEMPTS: dict[str, Attempt] = {}
"""Every attempt by its id."""

for _module in CLASSES:
    for _each in _attempts(_module):
        if ATTEMPTS.setdefault(_each.id, _each) is not _each:
            raise ValueError(f"two attempts are called {_each.id}")
