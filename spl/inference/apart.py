"""Work on what is long, done beside the event loop, for all that the daemon serves waits for that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

LONG: Final = 32_768
"""Characters, or bytes, that are worked on in a few milliseconds."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def apart(size: int, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Do work on so many characters, in a thread of its own if they are many; gives and raises what it does."""
    if size > LONG:
        return await asyncio.to_thread(work, *args, **kwargs)
    return work(*args, **kwargs)
