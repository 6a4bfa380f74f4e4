"""`spl profile try`: a command run as a profile confines it, and what it was refused, with what would lift that."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from bwrap import floor, strace, trying
from bwrap import host as hosts
from bwrap.advice import Advice, Adviser
from bwrap.uids import Pool
from spl import hardening
from spl.cli.completion import profiles
from spl.cli.options import common, examples
from spl.cli.profiles.places import home_of, is_socket, library_of, places_of, refusals
from spl.cli.profiles.refused import known, say_refused, wire
from spl.cli.text import shown
from spl.errors import CommandNotExecutable, CommandNotFound
from spl.home import running_pid
from spl.settings import load, uid_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bwrap.host import Host
    from bwrap.plan import Places
    from bwrap.profile import Profile
    from bwrap.refusals import Refused
    from bwrap.trying import Prepared, Tried
    from spl.home import Home

    Json = dict[str, Any]


@click.command(
    "try",
    short_help="Run a command under a profile.",
    epilog=examples(
        "spl profile try worker -- id",
        "spl profile try strict --read-only /etc/hostname -- cat /etc/hostname",
    ),
)
@click.argument("name", shell_complete=profiles)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@common
@click.option(
    "--read-only",
    "read_only",
    multiple=True,
    metavar="PATH",
    type=click.Path(exists=True),
    help="A file or folder of the host to show as well; repeatable.",
)
@click.option("--no-trace", is_flag=True, help="Do not watch what is refused.")
@click.pass_context
def try_profile(
    context: click.Context,
    name: str,
    command: tuple[str, ...],
    home: str | None,
    output: str | None,
    read_only: tuple[str, ...],
    no_trace: bool,
) -> None:
    """Run a command as a profile confines it, and say what it was refused.

    Put `--` before the command. Its input and output are this command's, its environment holds PATH alone, and its
    exit status is given back: 128 and the number for a signal, 127 when there is no such command, 126 when it is no
    program. With each refusal stands the line of a profile that lifts it, or the promise of the floor that forbids
    every such line. Whatever else is said goes to standard error. With -o json the last line there is a document, since
    standard output is the command's.

    The command's own file and the shared objects it needs are shown to it as well. Nothing is checked as it is before
    a run, and there is no worker socket unless a daemon runs in the home.
    """
    hardening.protect()
    with refusals():
        where = home_of(home)
        library = library_of(where)
        found = library.load(name)
        host = hosts.examine()
        words = (program_of(command[0]), *command[1:])
        tracer = None if no_trace else strace.find()
        prepared = _prepare(found, where, host, words, read_only)
        # Closed whatever happens, for an interrupt may come before it has begun.
        with closing(trying.run(prepared, strace=tracer, pool=pool_of(home))) as trial:
            tried = asyncio.run(trial)
        places = places_of(where, hosted=host.shape is hosts.Shape.HOSTED)
        adviser = Adviser(found, library.draft, host, places)
        advised = [(row, adviser.on(row)) for row in known(tried)]
    if no_trace:
        tried = replace(tried, unseen="")
    elif tracer is None:
        tried = replace(tried, unseen="strace is not installed")
    _print_tried(prepared, tried, advised, output)
    context.exit(tried.status)


def program_of(name: str) -> str:
    """Find the program a person means, as their shell would."""
    path = os.path.abspath(name) if "/" in name else shutil.which(name)
    if path is None or not os.path.exists(path):
        raise CommandNotFound(f"there is no command {name!r} on this host")
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise CommandNotExecutable(f"{name!r} is no program, or not executable")
    return path


def _prepare(
    found: Profile,
    home: Home,
    host: Host,
    command: Sequence[str],
    read_only: Sequence[str],
) -> Prepared:
    places = places_of(home, hosted=host.shape is hosts.Shape.HOSTED)
    for breach in floor.breaches(found):
        _say(f"below the floor: {breach.fault}")
    within_reach = reachable(found, home, places)
    if within_reach is not found:
        _say("no daemon runs in this home, so its worker socket is left out")
    prepared = trying.prepare(within_reach, host, places, command, read_only)
    if prepared.added:
        _say(f"also mounted, for this command: {', '.join(prepared.added)}")
    _say("nothing is checked here as it is before a run; this shows what the profile asks for")
    _say("Landlock is not used here: a command may execute files it is shown, and a worker may not")
    return prepared


def pool_of(home: str | None) -> Pool:
    """Give the uids that the settings of a home leave to its workers; raises what `load` does."""
    return Pool(*uid_range(load({"home": home}).worker_uids))


def reachable(profile: Profile, home: Home, places: Places) -> Profile:
    """Give a profile without the worker socket unless a daemon runs in the home, for there is none then."""
    if trying.WORKER_SOCKET not in profile.filesystem.sockets:
        return profile
    if is_socket(places.worker_socket) and running_pid(home):
        return profile
    return trying.without_worker_socket(profile)


def _print_tried(
    prepared: Prepared, tried: Tried, advised: Sequence[tuple[Refused, Advice]], output: str | None
) -> None:
    if tried.unseen:
        _say(f"what was refused cannot be told: {tried.unseen}")
    say_refused(advised, _say)
    if tried.refused == []:
        _say("nothing was seen to be refused")
    if output == "json":
        rows = None if tried.refused is None else [wire(row, advice) for row, advice in advised]
        document = {
            "object": "try",
            "profile": prepared.plan.profile,
            "shape": str(prepared.plan.host.shape),
            "mounted": list(prepared.added),
            "exit": tried.exit.wire(),
            "status": tried.status,
            "refused": rows,
        }
        click.echo(json.dumps(document), err=True)


def _say(text: str) -> None:
    click.echo(f"spl: profile try: {shown(text)}", err=True)
