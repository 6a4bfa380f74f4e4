"""Commands that show what a profile says, what it comes to on this host, and what it does to a command.

They work on a home alone and need no daemon; without a home there are the shipped profiles.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bwrap import bpf, floor, groups, render, seccomp, strace, trying
from bwrap import host as hosts
from bwrap.errors import ConfinementError, LayerError, ProfileError
from bwrap.library import SHIPPED, Library, UnknownProfile
from bwrap.lint import Severity, lint_here
from bwrap.merge import dotted
from bwrap.plan import Places, resolve
from bwrap.uids import Pool
from spl import hardening
from spl.cli.options import common
from spl.cli.output import is_json, print_json, print_line, print_rows
from spl.cli.text import shown
from spl.errors import (
    CommandNotExecutable,
    CommandNotFound,
    DaemonUnreachable,
    IsolationUnavailable,
    NotFound,
    ProfileBelowFloor,
    ProfileInvalid,
)
from spl.home import Home, locate, running_pid
from spl.settings import load, uid_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bwrap.host import Host
    from bwrap.plan import Plan
    from bwrap.profile import Profile
    from bwrap.trying import Prepared, Tried

    Json = dict[str, Any]

_BASE: Final = "base"
_DIGEST: Final = 12


@click.group()
def profile() -> None:
    """Show profiles, judge them, or try a command under one."""


@profile.command("list", short_help="List the profiles there are.")
@common
def list_profiles(home: str | None, output: str | None) -> None:
    """List the profiles that ship and those in the home's profiles folder.

    One below the floor can be shown and tried, and runs nothing. A file that cannot be used, also for bearing the
    name of a shipped profile, is listed with its error.
    """
    with _refusals():
        rows = render.listed(_library(_home(home)))
    if is_json(output):
        print_json({"object": "list", "data": rows, "has_more": False})
        return
    print_rows(
        ("name", "from", "floor", "digest", "extends", "description"),
        (
            [
                row["name"],
                row["source"],
                row["floor"],
                (row["digest"] or "")[:_DIGEST],
                row["extends"],
                _about(row),
            ]
            for row in rows
        ),
    )


@profile.command("show", short_help="Show what a profile says, and where.")
@click.argument("name")
@common
def show_profile(name: str, home: str | None, output: str | None) -> None:
    """Show what a profile says, all that it extends included, and where each value was said.

    In JSON sizes are bytes and durations seconds. It succeeds below the floor too, and says so.
    """
    with _refusals():
        found = _library(_home(home)).load(name)
        document = render.described(found)
    if is_json(output):
        print_json(document)
    else:
        _print_profile(found, document)


@profile.command("render", short_help="Show what it comes to on this host.")
@click.argument("name")
@common
@click.option(
    "--arch", type=click.Choice(groups.ARCHITECTURES), help="The filter's; this machine's unless given."
)
@click.option("--bpf", "program", is_flag=True, help="List the filter's program as well.")
def render_profile(name: str, home: str | None, output: str | None, arch: str | None, program: bool) -> None:
    """Show what a profile comes to on this host: bubblewrap's options, the limits, the filter in words.

    `{filter}`, `{status}`, `{block}` and `{image}` stand for the descriptors of one launch.
    """
    with _refusals():
        where = _home(home)
        found = _library(where).load(name)
        plan = _plan(found, where)
        if arch is not None:
            plan = replace(plan, filter=seccomp.compile_filter(groups.rules(found, arch), arch))
        document = render.described(found, plan)
        if program:
            document["filter"]["program"] = bpf.listing(bpf.load(plan.filter.program))
    if is_json(output):
        print_json(document)
    else:
        _print_plan(document)


@profile.command("lint", short_help="Say what is wrong with profiles.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@common
def lint_profiles(names: tuple[str, ...], home: str | None, output: str | None) -> None:
    """Say where profiles fall below the floor, and what in them may surprise.

    Without a name: every profile but `base`, which is there to be extended. It fails for a breach of the floor and
    for an error, which is a profile that cannot be used or that no run can start with, not for a warning.
    """
    with _refusals():
        where = _home(home)
        library = _library(where)
        strays = library.strays()
        every = dict.fromkeys((*library.shipped(), *library.own(), *strays))
        chosen = tuple(dict.fromkeys(names)) or tuple(
            name for name in every if name != _BASE or name in strays
        )
        remarks = [
            remark
            for name in chosen
            for remark in _remarks(library, name, strays, str(where.path), named=name in names)
        ]
    if is_json(output):
        print_json({"object": "list", "data": remarks, "has_more": False})
    else:
        for remark in remarks:
            _print_remark(remark)
        print_line(f"{_count(remarks)} in {shown(', '.join(chosen))}")
    for severity, kind, said in (
        (Severity.ERROR, ProfileInvalid, "there are errors in"),
        (Severity.BREACH, ProfileBelowFloor, "there are breaches of the floor in"),
    ):
        if at_fault := dict.fromkeys(each["profile"] for each in remarks if each["severity"] == severity):
            raise kind(f"{said} {', '.join(map(repr, at_fault))}", remedy="mend what is named above")


@profile.command("try", short_help="Run a command under a profile.")
@click.argument("name")
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
    program. Whatever else is said goes to standard error. With -o json the last line there is a document, since
    standard output is the command's.

    The command's own file and the shared objects it needs are shown to it as well. Nothing is checked as it is before
    a run, and there is no worker socket unless a daemon runs in the home.
    """
    hardening.protect()
    with _refusals():
        where = _home(home)
        found = _library(where).load(name)
        host = hosts.examine()
        words = (_program(command[0]), *command[1:])
        tracer = None if no_trace else strace.find()
        prepared = _prepare(found, where, host, words, read_only, traced=tracer is not None)
        pool = Pool(*uid_range(load({"home": home}).worker_uids))
        tried = asyncio.run(trying.run(prepared, strace=tracer, pool=pool))
    if no_trace:
        tried = replace(tried, unseen="")
    elif tracer is None:
        tried = replace(tried, unseen="strace is not installed")
    _print_tried(prepared, tried, output)
    context.exit(tried.status)


def _home(flag: str | None) -> Home:
    """Give the home, which need not be there; raises what `Home.open` does for one that is not safe."""
    path = locate(flag, os.environ)
    try:
        return Home.open(path, create=False)
    except DaemonUnreachable:
        return Home(Path(os.path.realpath(path)))


def _library(home: Home) -> Library:
    return Library(own=home.profiles)


@contextmanager
def _refusals() -> Iterator[None]:
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


def _about(row: Json) -> str:
    return str(row["description"] if row["error"] is None else row["error"]["message"])


def _print_profile(found: Profile, document: Json) -> None:
    print_line(f"{document['name']}: {shown(document['description'])}")
    if document["extends"]:
        print_line(f"extends {', '.join(document['extends'])}")
    print_line(f"digest {document['digest']}")
    for breach in document["floor"]["breaches"]:
        print_line(f"below the floor: {shown(breach['reason'])}")
    print_line()
    print_rows(("", "value", "profile", "where"), _value_rows(found))


def _value_rows(found: Profile) -> Iterator[Sequence[object]]:
    table = None
    for path, said, origin in found.values():
        if len(path) > 1 and path[0] != table:
            table = path[0]
            yield (f"[{table}]", "", "", "")
        place = origin.place
        if os.path.dirname(origin.document.file) == str(SHIPPED):
            place = os.path.basename(place)
        name, value = dotted(path[1:] or path), render.written(found, path, said)
        yield (
            f"  {name}" if len(path) > 1 else name,
            "(none)" if value == [] else value,
            origin.profile,
            place,
        )


def _plan(found: Profile, home: Home) -> Plan:
    """Resolve a profile as a daemon in this home would, whether one runs or not."""
    host = hosts.examine()
    bound = home.bound_worker_socket(hosted=host.shape is hosts.Shape.HOSTED)
    places = Places(str(home.path), bound)
    if _is_socket(bound):
        return resolve(found, host, places)
    # A plan shows only what is there, and the worker socket is while a daemon runs: another stands in for it.
    with tempfile.TemporaryDirectory(prefix="spl-") as folder, socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{folder}/w")
        plan = resolve(found, host, replace(places, worker_socket=f"{folder}/w"))
    mounts = tuple(
        replace(each, source=bound) if each.source == f"{folder}/w" else each for each in plan.mounts
    )
    return replace(plan, places=places, mounts=mounts)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _print_plan(document: Json) -> None:
    made = document["filter"]
    limits = [f"{name}={value}" for name, value in document["limits"].items()]
    absent = [f"not on this host: {path}" for path in document["absent"]]
    for title, lines in (
        ("bubblewrap's options", document["argv"]),
        ("command", [" ".join(document["command"])]),
        ("limits", limits),
        ("optional files", absent),
        (f"filter for {made['arch']}", made["rules"]),
        ("program", made.get("program", [])),
    ):
        if lines:
            print_line(f"# --- {title}")
            for line in lines:
                print_line(shown(line))
            print_line()
    print_line(f"argv digest    {document['argv_digest']}")
    print_line(f"filter digest  {made['digest']}")
    print_line(f"profile digest {document['digest']}")


def _remarks(
    library: Library, name: str, strays: Mapping[str, ProfileError], home: str, *, named: bool
) -> list[Json]:
    """Give every remark on a profile; that it cannot be used is one, and that a file bears its name in vain."""
    found = [(str(Severity.ERROR), "", strays[name])] if name in strays else []
    # `base` is not judged when nobody asked for it.
    if named or name != _BASE:
        try:
            found += [
                (str(each.severity), each.row, each.fault) for each in lint_here(library.load(name), home)
            ]
        except ProfileError as error:
            if isinstance(error, UnknownProfile) and name not in library.own():
                raise
            found.append((str(Severity.ERROR), "", error))
    return [
        {"profile": name, "severity": severity, "row": row, **fault.wire()} for severity, row, fault in found
    ]


def _print_remark(remark: Json) -> None:
    where = ":".join(str(remark[key]) for key in ("file", "line", "column") if remark[key] is not None)
    row = f" ({remark['row']})" if remark["row"] else ""
    place = f"{remark['place']}: " if remark["place"] else ""
    print_line(f"{shown(where)}: {remark['severity']}{shown(row)}: {shown(place)}{shown(remark['reason'])}")
    for line in remark["excerpt"].split("\n") if remark["excerpt"] else ():
        print_line(shown(line))


def _count(remarks: Sequence[Json]) -> str:
    found = []
    for severity in (Severity.ERROR, Severity.BREACH, Severity.WARNING):
        number = sum(remark["severity"] == severity for remark in remarks)
        plural = "breaches" if severity is Severity.BREACH else f"{severity}s"
        found.append(f"{number} {severity if number == 1 else plural}")
    return ", ".join(found)


def _program(name: str) -> str:
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
    *,
    traced: bool,
) -> Prepared:
    bound = home.bound_worker_socket(hosted=host.shape is hosts.Shape.HOSTED)
    for breach in floor.breaches(found):
        _say(f"below the floor: {breach.fault}")
    if trying.WORKER_SOCKET in found.filesystem.sockets and not (_is_socket(bound) and running_pid(home)):
        _say("no daemon runs in this home, so its worker socket is left out")
        found = trying.without_worker_socket(found)
    prepared = trying.prepare(found, host, Places(str(home.path), bound), command, read_only)
    if prepared.added:
        _say(f"also mounted, for this command: {', '.join(prepared.added)}")
    _say("nothing is checked here as it is before a run; this shows what the profile asks for")
    _say("Landlock is not used here: a command may execute files it is shown, and a worker may not")
    if traced and host.shape is hosts.Shape.HOSTED:
        more = (
            ": enough here, too few for a run, which --no-trace shows" if found.limits.processes < 2 else ""
        )
        _say(f"strace runs under the command's uid, so the limit of processes is one higher{more}")
    return prepared


def _print_tried(prepared: Prepared, tried: Tried, output: str | None) -> None:
    if tried.unseen:
        _say(f"what was refused cannot be told: {tried.unseen}")
    known = ([tried.killed] if tried.killed else []) if tried.refused is None else tried.refused
    for row in known:
        if row.usual is None:
            times = "" if row.times == 1 else f", {row.times} times"
            _say(f"refused by the layer {row.layer}: {row.what} ({row.answer}{times})")
    if usual := [row.usual for row in known if row.usual is not None]:
        _say(f"not shown, and missed by nearly every program without harm: {', '.join(usual)}")
    if tried.refused == []:
        _say("nothing was seen to be refused")
    if output == "json":
        rows = None if tried.refused is None else [row._asdict() for row in tried.refused]
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
