"""`spl profile trace`: watches a command that runs free, and drafts the smallest profile that lets it run confined."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any, NoReturn

import click

from bwrap import difference, drafting, lines, strace
from bwrap import host as hosts
from bwrap.advice import Adviser
from bwrap.library import is_name
from bwrap.lint import lint_here
from bwrap.refusals import USUAL_CALLS
from spl import hardening
from spl.cli.options import common, examples
from spl.cli.profiles.attempting import Attempt, Trial, is_file
from spl.cli.profiles.free import Ended, run_free
from spl.cli.profiles.places import home_of, home_to_write, library_of, places_of, refusals
from spl.cli.profiles.refused import say_refused, wire
from spl.cli.profiles.saving import profile_name, require_free, save
from spl.cli.profiles.trial import pool_of, program_of
from spl.cli.progress import end_in_order, working
from spl.cli.text import brief, shown
from spl.errors import HostRefused, ProfileBelowFloor, ProfileInvalid
from spl.home import login

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bwrap.advice import Advice
    from bwrap.drafting import Draft
    from bwrap.library import Library
    from bwrap.lines import Line
    from bwrap.profile import Profile
    from bwrap.refusals import Refused

    Json = dict[str, Any]


@click.command(
    "trace",
    short_help="Run a command free, and draft the smallest profile for it.",
    epilog=examples(
        "spl profile trace -- uname -a",
        "spl profile trace --name greeter --save -- python3 -c 'import platform; print(platform.node())'",
    ),
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--extends", default="worker", show_default=True, metavar="PROFILE", help="What is drafted upon."
)
@click.option("--name", callback=profile_name, help="The draft's name; else the command's.")
@click.option(
    "--read-only",
    "read_only",
    multiple=True,
    metavar="PATH",
    type=click.Path(exists=True),
    help="A file or folder of the host to show whether it is seen to be needed or not; repeatable.",
)
@click.option(
    "--save", "to_save", is_flag=True, help="Put the draft into the home's profiles, if its name is free."
)
@click.option("--no-check", is_flag=True, help="Run the command once, free, and leave the draft untried.")
@common
def trace_profile(
    command: tuple[str, ...],
    extends: str,
    name: str | None,
    read_only: tuple[str, ...],
    to_save: bool,
    no_check: bool,
    home: str | None,
    output: str | None,
) -> None:
    """Run a command free under strace, then draft the smallest profile under which it runs as it did.

    Put `--` before the command. THE FIRST RUN IS NOT CONFINED: the command runs as you, and may do what you may. Then
    it runs confined, again and again, until no line of the draft can go: some runs for each line, a hundred at most.
    What it does outside itself it does in the free run; with --no-check that is the only one. However this is ended,
    the command and all that descends from it are ended with it, but for what has become another user's; what it has
    asked others to start (systemd, at, a container's daemon) goes on.

    It runs in `/` with PATH alone in its environment, free and confined, so give absolute paths. The free run has this
    command's input and output; the confined ones have the input if it is a file, and are held against the free one by
    their exit status and what they write to standard output. Everything else is told on standard error: what the draft
    adds, as a diff and as TOML, and what it cannot have because the floor forbids it. With -o json a document is
    the last line there, before an error. It succeeds when the command runs under the draft as it ran free.
    """
    with refusals():
        where = home_to_write(home) if to_save else home_of(home)
        library = library_of(where)
        over = library.load(extends)
        host = hosts.examine()
        places = places_of(where, hosted=host.shape is hosts.Shape.HOSTED)
        tracer = strace.find()
        if tracer is None:
            raise HostRefused("there is no strace on this host", remedy="install the package 'strace'")
        words = (_real(program_of(command[0])), *_utf_8(command[1:]))
        chosen = name or _named_for(words[0], library)
        if chosen in over.chain:
            raise click.UsageError(
                f"a draft upon {extends!r} cannot be called {chosen!r}: give another --name"
            )
        if to_save:
            require_free(library, where, chosen)
        pool = pool_of(home)
        trial = Trial(library, over, chosen, words, host, places, where)
        adviser = Adviser(over, library.draft, host, places)
        kept = [lines.show(os.path.abspath(path)) for path in read_only]
        # What can never be confined is not run free for nothing.
        trial.prepared(kept)
        end_in_order()
        _say(f"running it free, NOT confined, as {login()}")
        usage, free, seconds = run_free(tracer, words, over)
        hardening.protect()
        candidates = trial.candidates(usage, seconds)
        first, forbidden = drafting.judged(candidates, kept, adviser)
        forbidden = [each for each in forbidden if each[0] not in map(lines.allow, USUAL_CALLS)]
        attempt = Attempt(trial, free, tracer, pool)
        if no_check:
            draft = drafting.Draft([*kept, *(each for each in first if each not in kept)])
        else:
            with working("running it confined, to find what it can do without"):
                draft = drafting.draft(first, kept, adviser, attempt)
        text = trial.text(draft.lines, _remarks(draft, forbidden))
        drafted = library.draft(chosen, text)
        worth = bool(draft.lines) and (no_check or draft.same)
        path = save(library, where, chosen, text) if to_save and worth else None
    refused = [(row, adviser.on(row)) for row in draft.refused]
    base = library.load(chosen) if chosen in (*library.shipped(), *library.own()) and path is None else over
    diff = _diff(base, drafted)
    remarks = [each for each in lint_here(drafted, str(where.path)) if each.fault.file == f"{chosen}.toml"]
    if free.status != 0:
        _say(f"run free it ended with {free.status}: what it needs to end otherwise is not in the draft")
    _print_draft(diff, text, refused, draft, checked=not no_check)
    for each in remarks:
        _say(f"{each.severity}: {each.fault.place}: {each.fault.reason}")
    if path is not None:
        _say(f"written: {path}")
    elif to_save and not draft.lines and (no_check or draft.same):
        _say(f"not saved: it adds nothing to {extends!r}, which will do")
    if output == "json":
        document = {
            "object": "profile.trace",
            "name": chosen,
            "extends": extends,
            "toml": text,
            "lines": [str(each) for each in draft.lines],
            "against": base.name,
            "diff": diff,
            "not_drafted": [{"wanted": str(line), **advice.wire()} for line, advice in forbidden],
            "remarks": [each.wire() for each in remarks],
            "refused": [wire(row, advice) for row, advice in refused],
            "status": free.status,
            "checked": not no_check,
            "same": None if no_check else draft.same,
            "smallest": draft.smallest,
            "runs": 1 + draft.runs,
            "saved": path,
        }
        click.echo(json.dumps(document), err=True)
    if not (no_check or draft.same):
        _fail(command, free, attempt.ended, refused, alone=usage.reads_input and not is_file(0))


def _real(program: str) -> str:
    """Give a program's path with its folder's links followed, as it is named in the sandbox."""
    return os.path.join(os.path.realpath(os.path.dirname(program)), os.path.basename(program))


def _utf_8(words: Sequence[str]) -> Sequence[str]:
    try:
        "".join(words).encode()
    except UnicodeEncodeError:
        raise click.UsageError("a word of the command is no UTF-8, and no profile could name it") from None
    return words


def _named_for(program: str, library: Library) -> str:
    name = re.sub(r"[^a-z0-9-]+", "-", os.path.basename(program).lower()).strip("-")
    return name if is_name(name) and name not in library.shipped() else "traced"


def _remarks(draft: Draft, forbidden: Sequence[tuple[Line, Advice]]) -> list[str]:
    """Give the comments of a draft: who made it, and what it used that no profile can allow."""
    less = "no line of it can go" if draft.smallest else "lines of it may not be needed"
    found = [f"Drafted by 'spl profile trace': {less}."]
    if forbidden:
        found.append(
            "It runs without what it used of this:" if draft.same else "It may not run without this:"
        )
    for line, advice in forbidden:
        why = f"the floor forbids it ({advice.floor})" if advice.floor else brief(advice.reason, 100)
        found.append(f"not drafted: {shown(line.told)}: {why}")
    return found


def _diff(base: Profile, drafted: Profile) -> list[str]:
    """Give what the draft means beside what another profile does, as a unified diff."""
    return list(
        difflib.unified_diff(
            difference.listing(base), difference.listing(drafted), base.name, drafted.name, lineterm="", n=0
        )
    )


def _print_draft(
    diff: Sequence[str],
    text: str,
    refused: Sequence[tuple[Refused, Advice]],
    draft: Draft,
    *,
    checked: bool,
) -> None:
    for line in diff or ["it means what it extends means: nothing is needed beyond that"]:
        click.echo(shown(line), err=True)
    click.echo(err=True)
    for line in text.splitlines():
        click.echo(shown(line), err=True)
    click.echo(err=True)
    if not checked:
        _say("it was not tried: what the command does without may be in it, and what it needs may be missing")
    elif not draft.same:
        say_refused(refused, _say)
        _say("under this draft it does not run as it ran free")
    else:
        less = "no line of it can go" if draft.smallest else "whether lines of it can go is not known"
        _say(f"it runs under this draft as it ran free, and {less}; it was run {1 + draft.runs} times")
        if left := [row.what for row, _ in refused if row.usual is None]:
            _say(f"refused to it, and done without: {brief(', '.join(left), 240)}")


def _fail(
    command: Sequence[str],
    free: Ended,
    ended: Ended,
    refused: Sequence[tuple[Refused, Advice]],
    *,
    alone: bool,
) -> NoReturn:
    """Raise the error that says why; `alone` is whether the free run has read what no other could read again."""
    how = (
        f"it ends with {ended.status}, and free with {free.status}"
        if ended.status != free.status
        else "it writes something else to standard output"
    )
    what = f"under the draft {brief(shlex.join(command))!r} does not run as it ran free: {how}"
    if alone:
        raise ProfileInvalid(
            f"only the free run had standard input, which was read and is no file: {what}",
            remedy="give the input as a file ('< FILE'), which each run reads anew, or say --no-check",
        )
    hard = [(row, advice) for row, advice in refused if advice.line is None and row.usual is None]
    if hard:
        what = f"{what}; no profile allows {', '.join(row.what for row, _ in hard)}"
    if any(advice.floor for _, advice in hard):
        raise ProfileBelowFloor(
            what, remedy="have it do without: no profile lets a run have what the floor forbids"
        )
    raise ProfileInvalid(
        what,
        remedy="add what it lacks by hand ('spl profile try' shows it), or see what else in its output changes",
    )


def _say(text: str) -> None:
    click.echo(f"spl: profile trace: {shown(text)}", err=True)
