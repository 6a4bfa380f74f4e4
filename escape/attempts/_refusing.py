"""Many calls that must all be refused alike: how they are made, and the wall that says so."""

from __future__ import annotations

import os

from escape.attempt import Attempt, Wall
from escape.inside import Stopped, call, calls_work, every, numbered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Step = tuple[str, tuple[Any, ...]]

NOWHERE = -1
"""No descriptor, no process, and as an address no memory of a process's."""

_OPENING = frozenset(
    (
        *("bpf", "epoll_create1", "eventfd", "eventfd2", "fanotify_init", "inotify_init", "inotify_init1"),
        *("io_uring_setup", "landlock_create_ruleset", "memfd_create", "memfd_secret", "perf_event_open"),
        *("signalfd4", "socket", "timerfd_create", "userfaultfd"),
    )
)
"""Calls whose value is a descriptor."""


def steps(each: Iterable[Step]) -> str:
    """Make some calls; any that works is an escape. A descriptor that one gives is closed."""
    return every(*(_reached(name, arguments) for name, arguments in each))


def _reached(name: str, arguments: tuple[Any, ...]) -> Callable[[], str]:
    def route() -> str:
        value = call(name, *arguments)
        if name in _OPENING:
            os.close(value)
        return f"{name} works"

    return route


def answer(number: int, arguments: Iterable[Any], name: str = "") -> str:
    """Make a call by number and give the errno it answers, or `works`; what it gave or set is undone."""
    try:
        value = numbered(number, *arguments, step="it")
    except Stopped as end:
        return end.answer.removesuffix(" at it")
    if name in _OPENING:
        os.close(value)
    elif name == "umask":
        numbered(number, value)
    return "works"


def answers(errno: str, *names: str) -> str:
    """Give the answer of a chain in which several calls are refused with one errno."""
    return ", ".join(f"{errno} at {name}" for name in names)


def same(layer: str, *names: str, errno: str = "EPERM") -> Wall:
    """Give the wall of a layer that answers several calls with one errno."""
    return Wall(layer, answers(errno, *names))


def refused(
    id: str,  # noqa: A002 - as in `Attempt`
    sentence: str,
    *calls: Step,
    escape: str,
    errno: str = "EPERM",
    walls: Iterable[Wall] = (),
    cve: str = "",
    lacking: str = "",
) -> Attempt:
    """Give an attempt at calls which the filter must refuse, all with one errno.

    `lacking` says why a machine has none of them.
    """
    here = dict.fromkeys(name for name, _ in calls)
    return Attempt(
        id,
        sentence,
        lambda _: steps(calls),
        control=calls_work,
        walls=[same("syscalls", *here, errno=errno), *walls],
        escape=escape,
        cve=cve,
        lacking={", ".join(f"no number at {name}" for name in here): lacking} if lacking else {},
    )
