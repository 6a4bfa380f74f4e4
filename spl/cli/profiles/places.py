"""Where the profiles of a home are, what of this host they are resolved on, and how their faults are told.

A home alone is enough, and needs no daemon; without one there are the shipped profiles.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bwrap import host as hosts
from bwrap.errors import ConfinementError, LayerError, ProfileError
from bwrap.library import SHIPPED, Library, UnknownProfile
from bwrap.plan import Places, resolve
from spl.errors import DaemonUnreachable, IsolationUnavailable, NotFound, ProfileInvalid, SettingsInvalid
from spl.home import Home, locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.plan import Plan
    from bwrap.profile import Profile


def home_of(flag: str | None) -> Home:
    """Give the home, which need not be there; raises what `Home.open` does for one that is not safe."""
    path = locate(flag, os.environ)
    try:
        return Home.open(path, create=False)
    except DaemonUnreachable:
        return Home(Path(os.path.realpath(path)))


def home_to_write(flag: str | None) -> Home:
    """Give the home to put a profile into, made if need be; never one beside a daemon that SPL_URL names elsewhere."""
    if flag is None and os.environ.get("SPL_URL"):
        raise SettingsInvalid(
            "a profile is written into a home and SPL_URL names a daemon by address: give --home"
        )
    return Home.open(locate(flag, os.environ), create=True)


def library_of(home: Home) -> Library:
    """Give the profiles of a home, with the shipped ones."""
    return Library(own=home.profiles)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what the library raises into the errors that a person is shown."""
    try:
        yield
    except UnknownProfile as error:
        raise NotFound(error.reason, remedy="'spl profile list' lists the profiles there are") from None
    except ProfileError as error:
        # What is wrong with a whole file, or with the folder, has no place in it.
        remedy = {} if error.line else {"remedy": "mend what the message names, or take it out of the way"}
        raise ProfileInvalid(str(error), **error.wire(), **remedy) from None
    except LayerError as error:
        message = (
            f"the layer {error.layer} cannot be had: expected {error.expected}, observed {error.observed}"
        )
        raise IsolationUnavailable(message, **error.wire()) from None
    except ConfinementError as error:
        raise IsolationUnavailable(f"no filter can be made: {error}", layer="syscalls") from None


def places_of(home: Home, *, hosted: bool) -> Places:
    """Give the places of a home that profiles name by token."""
    return Places(str(home.path), home.bound_worker_socket(hosted=hosted))


def plan_of(found: Profile, home: Home) -> Plan:
    """Resolve a profile as a daemon in this home would, whether one runs or not."""
    host = hosts.examine()
    places = places_of(home, hosted=host.shape is hosts.Shape.HOSTED)
    bound = places.worker_socket
    if is_socket(bound):
        return resolve(found, host, places)
    # A plan shows only what is there, and the worker socket is while a daemon runs: another stands in for it.
    with tempfile.TemporaryDirectory(prefix="spl-") as folder, socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{folder}/w")
        plan = resolve(found, host, replace(places, worker_socket=f"{folder}/w"))
    mounts = tuple(
        replace(each, source=bound) if each.source == f"{folder}/w" else each for each in plan.mounts
    )
    return replace(plan, places=places, mounts=mounts)


def is_socket(path: str) -> bool:
    """Whether a path leads to a unix socket."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def short(place: str) -> str:
    """Give a file and line as a person reads it: of a shipped profile, which all know, by its name alone."""
    return os.path.basename(place) if os.path.dirname(place) == str(SHIPPED) else place
