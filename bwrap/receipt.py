"""The receipt: what was claimed of one process and what was observed, before anything was entrusted to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bwrap import findings, layers
from bwrap.errors import LayerError
from bwrap.host import file_digest
from bwrap.mounts import IMAGE
from bwrap.text import printable

if TYPE_CHECKING:
    from bwrap.process import Process


@dataclass(frozen=True, slots=True)
class Confirmed:
    """One layer whose every finding was as claimed."""

    layer: str
    claim: str
    findings: tuple[findings.Finding, ...]

    def wire(self) -> dict[str, object]:
        """Give the layer as it stands in a record."""
        seen = [
            {"how": each.how, "expected": each.expected, "observed": each.observed} for each in self.findings
        ]
        return {"layer": self.layer, "claim": self.claim, "confirmed": True, "observed": seen}


@dataclass(frozen=True, slots=True)
class Receipt:
    """All that was confirmed of one process; `start_time` is in clock ticks since boot (proc(5)).

    Its wire form also names what could not be there: layers that this kernel does not have (`absent_layers`, by the
    daemon's own examination and never by the process's word), and optional sources of the profile (`absent`).
    """

    process: Process
    start_time: int | None
    argv_digest: str
    filter_digest: str
    image_digest: str
    layers: tuple[Confirmed, ...]

    def wire(self) -> dict[str, object]:
        """Give the receipt as it stands in a record."""
        plan = self.process.plan
        bubblewrap, python = plan.host.bubblewrap, plan.host.python
        return {
            "shape": str(self.process.shape),
            "profile": plan.profile,
            "profile_digest": plan.profile_digest,
            "pid": self.process.pid,
            "start_time": self.start_time,
            "uid": self.process.uid,
            "bubblewrap": {
                "path": printable(bubblewrap.path),
                "version": bubblewrap.version,
                "digest": bubblewrap.digest,
            },
            "interpreter": {"path": printable(python.path), "version": python.version},
            "argv_digest": self.argv_digest,
            "filter_digest": self.filter_digest,
            "image_digest": self.image_digest,
            "layers": [each.wire() for each in self.layers],
            "landlock_abi": plan.host.landlock,
            "absent_layers": layers.absent(plan),
            "absent": [printable(path) for path in plan.absent],
        }


def confirm(process: Process, answer: bytes, nonce: str, image_digest: str) -> tuple[Confirmed, ...]:
    """Hold a process's `ready` line and what is seen from outside against every layer its plan claims.

    Raises `LayerError` for the first layer that is not as claimed, and of the layer `image` when the program, as it
    stands before the process, is not the sealed one.
    """
    results = _results(answer, nonce, image_digest)
    confirmed: list[Confirmed] = []
    look = process.looked_at()
    for layer in layers.table(process.plan, process.shape):
        seen = findings.judge(look, layer, results)
        _require(layer, seen)
        confirmed.append(Confirmed(layer.name, layer.claim, tuple(seen)))
    _require_image(process, image_digest)
    return tuple(confirmed)


def look_again(process: Process) -> None:
    """Hold what is seen from outside now against every layer once more.

    Raises `LayerError` for the first layer that is not as claimed any more. It takes half a millisecond.
    """
    look = process.looked_at()
    for layer in layers.table(process.plan, process.shape):
        _require(layer, findings.look(look, layer))


def _require(layer: findings.Layer, seen: list[findings.Finding]) -> None:
    for finding in seen:
        if not finding.confirmed:
            raise LayerError(
                layer.name,
                expected=f"{finding.expected} ({finding.how})",
                observed=finding.observed,
                remedy=layer.remedy,
            )


def _require_image(process: Process, image_digest: str) -> None:
    """Look at the program from outside: what an attempt gave is the word of whatever program made it."""
    try:
        digest = file_digest(process.inside(IMAGE))
    except OSError as error:
        digest = error.strerror or str(error)
    if digest != image_digest:
        raise _another_program(image_digest, digest)


def _another_program(image_digest: str, observed: str) -> LayerError:
    return LayerError(
        "image",
        expected=f"the sealed program {image_digest}",
        observed=observed,
        remedy="report this: another program was started",
    )


def _results(answer: bytes, nonce: str, image_digest: str) -> dict[str, object]:
    try:
        said = json.loads(answer)
        echoed, digest, results = said["ready"], said["image"], said["results"]
    except (ValueError, KeyError, TypeError, RecursionError):
        echoed, digest, results = None, None, None
    if echoed != nonce or not isinstance(results, dict):
        raise LayerError(
            "image",
            expected="the sealed program's answer to this launch",
            observed="an answer without this launch's nonce",
            remedy="report this: another program answered",
        )
    if digest != image_digest:
        raise _another_program(image_digest, str(digest))
    return results
