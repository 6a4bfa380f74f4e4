from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from spl import garbage
from spl.daemon import assemble
from spl.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Cycle:
    """What refers to itself, which only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_was_there_is_looked_through_no_more_and_what_comes_is() -> None:
    there = Cycle()
    garbage.settle()
    stayed, came = weakref.ref(there), weakref.ref(Cycle())
    del there
    gc.collect()
    assert stayed() is not None
    assert came() is None


def test_what_does_not_refer_to_itself_goes_at_once_as_before() -> None:
    there = {1: Cycle()}
    held = weakref.ref(there[1])
    there[1].itself = None  # type: ignore[assignment]
    garbage.settle()
    del there
    assert held() is None


def test_a_daemon_that_serves_has_its_parts_looked_through_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            settings = load({"home": tmp_path / "home", "port": 0, "provider": "echo"}, {})
            daemon = await assemble(settings, stack, asyncio.Event())
            assert not any(each is daemon.kernel for each in gc.get_objects())
            assert gc.get_threshold()[0] == garbage.YOUNG

    asyncio.run(main())
