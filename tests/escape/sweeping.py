"""The sweep without a filter, for `test_sweep`: a worker whose filter lets every call through makes every call.

Prints what it found as one line of JSON: what the worker profile refuses, and what the sweep said.
"""

from __future__ import annotations

import asyncio
import json
import secrets
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
    with Stage() as stage, closing(image.seal(examine().python)) as sealed:
        async with Stub.listening(f"{stage.folder}/stub") as stub:
            plan = attempting.plan_of("worker", stage.home, stub.path)
            credential = secrets.token_hex(16)
            stub.goals[credential] = json.dumps({"attempts": [SWEEP], "world": attempting.world(plan)})
            launch = Weakened(plan, sealed, stage.ledger, (Change(plan=allowing_all),))
            confined = await launch.within(30)
            confined.entrust(json.dumps({"credential": credential}).encode() + b"\n")
            ended = await confined.stop("it took too long", grace=30)
            answers = stub.answers.get(credential, {})
            said = answers.get(SWEEP, ["it was never made", f"exit {ended.code}, {ended.signal}"])
            return {"refused": attempting.refused(plan), "said": said}


if __name__ == "__main__":
    protect()
    sys.stdout.write(json.dumps(asyncio.run(sweep())))
