"""Commands that copy the log and put a copy back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spl.cli.instance import own_home
from spl.cli.options import common, examples
from spl.cli.output import print_document
from spl.cli.progress import working

if TYPE_CHECKING:
    from spl.records.restore import Restored


@click.command(epilog=examples("spl backup", "spl backup --to /mnt/spl.db -o json | jq -r .sha256"))
@common
@click.option(
    "--to", metavar="FILE", help="The file to make; one in the home's folder of backups unless given."
)
@click.option("--started-by", type=int, hidden=True, help="The daemon that this process is to end with.")
@click.option("--keep", type=click.IntRange(1), hidden=True, help="Remove all but so many backups.")
def backup(
    home: str | None, output: str | None, to: str | None, started_by: int | None, keep: int | None
) -> None:
    """Copy the log, whole and examined, into a file of its own.

    It may be in use meanwhile: the copy is of one moment. Nothing is ever written over.
    """
    from spl import hardening  # noqa: PLC0415
    from spl.records import backup as backups  # noqa: PLC0415

    opened = own_home(home)
    if started_by is not None:
        hardening.end_with(started_by)
        os.nice(19)
        backups.require_room(opened.database, opened.backups)
    with working("copying the log, and examining the copy"):
        made = backups.make(
            opened.database, opened.backups, None if to is None else Path(os.path.abspath(to))
        )
    removed = [] if keep is None else backups.prune(opened.backups, keep, made.path)
    print_document(
        {
            "path": str(made.path),
            "records": made.records,
            "sha256": made.sha256,
            **({"removed": [str(path) for path in removed]} if keep else {}),
        },
        output,
    )


@click.command(epilog=examples("spl restore", "spl restore --salvage", "spl restore /mnt/spl.db"))
@click.argument("file", required=False, type=click.Path())
@common
@click.option(
    "--salvage", is_flag=True, help="Take each later record too that the log now in place still holds whole."
)
def restore(file: str | None, home: str | None, output: str | None, salvage: bool) -> None:
    """Put a backup in the place of the log: FILE, or the newest that is whole.

    No daemon may run in the home. The log that was there is moved into the folder of backups; nothing is deleted. A
    restoring that was broken off is finished first, and is all that is done unless FILE is given. A backup of an
    earlier release is put there as it is, and the next start takes it to its own format.
    """
    from spl.records import restore as restoring  # noqa: PLC0415

    opened = own_home(home)
    with opened.lock(), working("putting a backup in the place of the log"):
        finished = restoring.finish(opened.database, opened.backups)
        done = finished if file is None else None
        if done is None:
            path = None if file is None else Path(os.path.abspath(file))
            done = restoring.restore(opened.database, opened.backups, path, salvage=salvage)
    print_document({"finished": done is finished, **_told(opened.database, done)}, output)


def _told(log: Path, done: Restored) -> dict[str, object]:
    from spl.records.formats import FORMAT  # noqa: PLC0415

    earlier = {"next_start": f"takes it to format {FORMAT}, after a backup"} if done.format < FORMAT else {}
    return {
        "log": str(log),
        "backup": None if done.source is None else str(done.source),
        "format": done.format,
        **earlier,
        "records": done.records,
        "salvaged": done.salvaged,
        "replaced": None if done.replaced is None else str(done.replaced),
        "held": done.held,
        "acknowledged": done.acknowledged,
        "passed_over": [{"path": str(path), "why": why} for path, why in done.passed_over],
    }
