from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from spl.threads import Unawaited


def test_a_call_gives_its_result_or_raises_its_error_in_another_thread() -> None:
    with Unawaited() as threads:
        assert threads.submit(divmod, 7, 2).result() == (3, 1)
        with pytest.raises(ZeroDivisionError):
            threads.submit(divmod, 7, 0).result()


def test_an_event_loop_takes_it_for_what_runs_beside_it() -> None:
    async def talk() -> int:
        asyncio.get_running_loop().set_default_executor(Unawaited())
        return sum(await asyncio.gather(*(asyncio.to_thread(abs, -each) for each in range(4))))

    assert asyncio.run(talk()) == 6


NEVER_ENDS = """
import asyncio, threading
from spl.threads import Unawaited

async def main():
    asyncio.get_running_loop().set_default_executor(Unawaited())
    begun = threading.Event()
    task = asyncio.create_task(asyncio.to_thread(lambda: (begun.set(), threading.Event().wait())))
    await asyncio.to_thread(begun.wait)
    task.cancel()

asyncio.run(main())
print("over")
"""


def test_a_process_ends_though_a_call_never_does() -> None:
    ended = subprocess.run([sys.executable, "-c", NEVER_ENDS], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "over\n", "")
