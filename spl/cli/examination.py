"""This host examined: every cause of the table of `bwrap.doctor`, the home, and a trial worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from bwrap import doctor as causes
from bwrap import host as hosts
from bwrap import layers
from bwrap.doctor import Finding, Severity
from bwrap.errors import ConfinementError
from bwrap.library import Library
from bwrap.lint import Severity as Remarked
from bwrap.lint import lint
from bwrap.text import printable
from spl import daemon
from spl.cli.progress import working
from spl.errors import DaemonUnreachable, HomeUnsafe, HostRefused, SplError
from spl.home import Home, locate
from spl.settings import load

if TYPE_CHECKING:
    from pathlib import Path

_MEND = "mend what the message names"


def examine(home: str | None) -> tuple[Severity, list[Finding]]:
    """Give what is found, and the worst of it; where nothing failed a trial worker is made, which a person is told."""
    findings = [*_own(home), *_host()]
    if causes.worst(findings) is not Severity.FAILURE:
        with working("making a trial worker"):
            findings += _trial(home)
    return causes.worst(findings), findings


def _own(flag: str | None) -> list[Finding]:
    """Look at the home, the settings, and the profiles that are the user's own."""
    try:
        path = locate(flag, os.environ)
        home = Home.open(path, create=False) if os.path.lexists(path) else None
        at = printable(str(home.path)) if home else _to_be(path)
    except SplError as error:
        return [_failed("home", error)]
    found = [Finding("home", Severity.OK, at)]
    if home is not None and not os.access(
        home.path, os.W_OK
    ):  # EROFS, which root is told as well (access(2))
        remedy = "mount it so that it can be written, or give another --home"
        found = [
            Finding(
                "home", Severity.FAILURE, f"{at} cannot be written", "a home the daemon can write", remedy
            )
        ]
    try:
        load({"home": flag})
        found.append(Finding("settings", Severity.OK, "config.toml and the SPL_ variables are valid"))
    except SplError as error:
        found.append(_failed("settings", error))
    return found if home is None else [*found, _profiles(home)]


def _to_be(path: Path) -> str:
    with contextlib.suppress(DaemonUnreachable):
        Home.open(path, create=False)  # for what it says of a path before it looks at what is there
    parent = os.path.dirname(os.path.abspath(path))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise HomeUnsafe(f"the home {str(path)!r} cannot be made: nothing can be made in {parent!r}")
    return printable(f"{path} is not there yet, and can be made")


def _profiles(home: Home) -> Finding:
    """Look over the profiles of the user's own: nothing runs by one that cannot be used, and nobody is told before."""
    unusable: list[str] = []
    below: list[str] = []
    try:
        library = Library(own=home.profiles)
        unusable += map(str, library.strays().values())
        own = library.own()
    except ConfinementError as error:
        return Finding("profiles", Severity.WARNING, str(error), "to be able to read them", _MEND)
    for name in own:
        try:
            remarks = {each.severity: str(each.fault) for each in reversed(lint(library.load(name)))}
        except ConfinementError as error:
            unusable.append(str(error))
            continue
        if remarks.get(Remarked.ERROR):
            unusable.append(remarks[Remarked.ERROR])
        elif Remarked.BREACH in remarks:
            below.append(name)
    if unusable:
        more = f", and {len(unusable) - 1} more" if len(unusable) > 1 else ""
        return Finding(
            "profiles",
            Severity.WARNING,
            f"{unusable[0]}{more}",
            "each file in the home's profiles folder to be a profile that can be used",
            "'spl profile lint' names each, with what to do",
        )
    said = f"{len(own) or 'none'} of your own"
    return Finding("profiles", Severity.OK, f"{said}; below the floor: {', '.join(below)}" if below else said)


def _host() -> list[Finding]:
    profile, refused = None, ""
    try:
        profile = Library().load(daemon.PROFILE)
    except ConfinementError as error:
        refused = str(error)
    findings = causes.examine(causes.Machine(hosts.shape(), profile))
    # Without libseccomp no profile can be read, and the table says so.
    if refused and causes.worst(findings) is not Severity.FAILURE:
        findings.append(Finding("profile", Severity.FAILURE, printable(refused), remedy=_MEND))
    return findings


def _trial(flag: str | None) -> list[Finding]:
    try:
        settings = load({"home": flag})
        isolation, capacity = asyncio.run(daemon.trial(settings))
    except SplError as error:
        return [_failed("trial", error)]
    except OSError as error:
        return [_failed("trial", HostRefused(f"no throw-away home can be made for a trial worker: {error}"))]
    if isolation.refused is not None:
        return [Finding.of(f"layer {isolation.refused.layer}", isolation.refused)]
    claims = {layer.name: layer.claim for layer in layers.every_layer()}
    layers_found = [Finding(f"layer {name}", Severity.OK, claims[name]) for name in isolation.layers]
    return [*layers_found, _admission(capacity, settings.admission_capacity)]


def _admission(capacity: int, said: int | None) -> Finding:
    if capacity:
        return Finding("admission", Severity.OK, f"sandboxed runs at once: {capacity}")
    if said == 0:
        return Finding(
            "admission",
            Severity.WARNING,
            "sandboxed runs at once: none, since the setting admission_capacity is 0",
            "at least one",
            "take the setting away, or say another number with it or with 'spl config set-capacity'",
        )
    return Finding(
        "admission",
        Severity.WARNING,
        "sandboxed runs at once: none",
        "room for at least one, in half of the memory that is available",
        "free some memory, or say how many there may be with 'spl config set-capacity'",
    )


def _failed(name: str, error: SplError) -> Finding:
    return Finding(name, Severity.FAILURE, printable(error.message), remedy=error.remedy)
