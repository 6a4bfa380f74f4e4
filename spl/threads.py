"""Threads that the end of the process does not wait for.

What runs beside the event loop may take long: asyncio would wait for it at its own end, and the interpreter once more.
Nothing that must be finished is done here without being awaited.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    P = ParamSpec("P")
    T = TypeVar("T")


class Unawaited(ThreadPoolExecutor):
    """A thread of its own for each call, which goes when the process does."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a call and give the future of its result; raises `RuntimeError` when no thread can be had."""
        future: Future[T] = Future()
        threading.Thread(target=_settle, args=(future, partial(fn, *args, **kwargs)), daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for nothing."""


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whoever waits for the future is told
        future.set_exception(error)
    else:
        future.set_result(result)
