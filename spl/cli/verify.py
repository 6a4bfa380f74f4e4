"""The command that tells whether records are what was written: of one thread, of an export of it, or of a whole log."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from spl.cli.completion import runs_or_file
from spl.cli.options import common, examples
from spl.cli.output import is_json, print_json, print_pairs
from spl.cli.progress import working
from spl.cli.text import brief
from spl.client import Client, segment
from spl.errors import HostRefused, InvalidBody, NotFound, NotVerified
from spl.records.verification import ThreadVerification, records_of, verify_log, verify_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from spl.records.verification import Finding, Verification

    Row = tuple[str, str]

_STDIN: Final = "-"
_DATABASE: Final = b"SQLite format 3\0"

_MOST: Final = 1 << 28
"""Bytes of an export that are read; it is held whole, several times over."""

_LISTED: Final = 20
"""Records outside the chain that a table tells of; a document has them all."""

_KEEP: Final = "whoever can rewrite all of it could have made it so; keep the head and give --head"


@click.command(
    epilog=examples(
        "spl verify th_run_1",
        "spl thread records th_run_1 -o json | spl verify -",
        "spl verify ~/.syncro/hub.db",
    )
)
@click.argument("thread", metavar="THREAD|FILE", shell_complete=runs_or_file)
@common
@click.option(
    "--head", metavar="ID", help="The id that the run's chain must end in, kept from an earlier time."
)
def verify(thread: str, home: str | None, output: str | None, head: str | None) -> None:
    """Recompute the ids of a thread, an export or a log, and check chains, verdicts and sums.

    THREAD is read of the daemon. FILE is what `spl thread records THREAD -o json` gave (`-` takes it from standard
    input), or a log: a backup, or hub.db itself, whether its daemon runs or not. What is the path of something that
    exists is taken as FILE. Without --head the best answer is that what is there agrees with itself; with it, that the
    run is whole up to that record.
    """
    with working(f"verifying {thread}"):
        if thread == _STDIN or os.path.lexists(thread):
            source, found = _file(thread, head)
        else:
            source, found = "thread", _asked(thread, home, head)
    if is_json(output):
        print_json({"object": "verification", "source": source, "name": thread, **found.wire()})
    else:
        print_pairs(_page(source, thread, found))
    if found.findings.count:
        count, first = found.findings.count, found.findings.told[0]
        more = f" (and {count - 1} findings more)" if count > 1 else ""
        raise NotVerified(f"the {source} {thread!r} is not what it must be: {first.text}{more}")


def _asked(thread: str, home: str | None, head: str | None) -> ThreadVerification:
    if "/" in thread:
        # No thread has one, so a path was meant.
        raise NotFound(f"there is no file {thread!r}")
    pages = Client.locate(home).pages(f"/v1/threads/{segment(thread)}/records")
    found = verify_thread((record for page in pages for record in page["data"]), head=head)
    if not found.records:
        raise NotFound(f"there is neither a file nor a thread {thread!r}")
    return found


def _file(path: str, head: str | None) -> tuple[str, Verification]:
    try:
        # A descriptor of its own number: standard input may be closed.
        with open(0 if path == _STDIN else path, "rb", closefd=path != _STDIN) as file:
            start = file.read(len(_DATABASE))
            if start != _DATABASE or path == _STDIN:
                return "export", verify_thread(records_of(start + _whole(file, path)), head=head)
    except OSError as error:
        raise HostRefused(f"the file {path!r} cannot be read: {error.strerror}") from None
    if head is not None:
        raise InvalidBody(
            "a head is of one thread, and this is a log of many: export the thread, then verify that"
        )
    return "log", verify_log(path)


def _whole(file: BinaryIO, name: str) -> bytes:
    export = file.read(_MOST + 1)
    if len(export) > _MOST:
        raise InvalidBody(f"{name!r} has over {_MOST >> 20} MiB: verify the thread itself, or the log's file")
    return export


def _page(source: str, name: str, found: Verification) -> Iterator[Row]:
    """Give the page for people, a row a line; what others wrote stays in the column of what is said."""
    yield "verified", f"the {source} {name}"
    facts = found.wire()
    if isinstance(found, ThreadVerification):
        yield from _thread(found)
    else:
        yield "records", f"{facts['records']}, on {facts['threads']} threads, of {facts['runs']} runs"
    if found.elsewhere:
        yield "elsewhere", f"parents named that are not among these records: {found.elsewhere}"
    for finding in found.findings:
        yield "finding", _told(finding)
    if found.findings.count > len(found.findings.told):
        yield "finding", f"and {found.findings.count - len(found.findings.told)} more"
    yield "verdict", _verdict(found)


def _thread(found: ThreadVerification) -> Iterator[Row]:
    yield "thread", found.thread or "none"
    outside = len(found.outside)
    yield (
        "records",
        f"{found.records}, of which {found.chain} are the run's and {outside} stand outside its chain",
    )
    if found.begun:
        yield "run", "ended" if found.ended else "going on: no outcome is on record"
    else:
        yield "run", "none"
    yield "head", found.head or "none"
    for record in found.outside[:_LISTED]:
        yield (
            "outside",
            brief(f"{record.sequence} {record.id} {record.kind or 'no kind'} by {record.actor}", 300),
        )
    if outside > _LISTED:
        yield "outside", f"and {outside - _LISTED} more"


def _told(finding: Finding) -> str:
    where = [
        f"{name} {value}"
        for name, value in (("thread", finding.thread), ("sequence", finding.sequence), ("id", finding.id))
        if value is not None
    ]
    return f"{finding.check}: {finding.text}{' (' if where else ''}{', '.join(where)}{')' if where else ''}"


def _verdict(found: Verification) -> str:
    if found.verdict == "whole":
        return "whole: it ends in the head given"
    return f"{found.verdict}: {_KEEP}" if found.verdict == "internally consistent" else found.verdict
