"""The sweep without a filter, for `test_sweep`: a worker whose filter lets every call through makes every call.

Prints what it found as one line of JSON: what the worker profile refuses, and what the sweep said.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import closing

from escape import attempting, image
from escape.stub import Stub
from escape.weakened import Change, Weakened, allowing_all
from spl.hardening import protect
from tests.bwrap.stage import Stage, examine

SWEEP = "sweeps.calls"


async def sweep() -> dict[str, object]:
    """Give each call that is refused, with the errno it is to answer, and the sweep's answer without a filter."""
    host = examine()
    with Stage() as stage, closing(image.seal(host.python)) as sealed:
        async with Stub.listening(f"{stage.folder}/stub") as stub:
            plan = attempting.plan_of("worker", host, stage.home, stub.path)
            launch = Weakened(plan, sealed, stage.ledger, (Change(plan=allowing_all),))
            answers, ended = await stub.have(await launch.within(30), [SWEEP], attempting.world(plan))
            return {
                "refused": attempting.refused(plan),
                "said": answers.get(SWEEP, ["it was never made", ended]),
            }


if __name__ == "__main__":
    protect()
    sys.stdout.write(json.dumps(asyncio.run(sweep())))
