"""The commands that print the files by which a host runs the daemon as a service: units and what goes beside them.

They come with the package, and stand nowhere that a service manager looks. See systemd.unit(5).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from bwrap.text import printable
from spl.cli.options import examples, output_option
from spl.cli.output import print_json, print_line, print_listing
from spl.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_WRITTEN: Final = "/usr/local/bin/spl"
"""What the units have for the path of `spl`."""

_HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - what a unit does not see
"""What ProtectHome= and PrivateTmp= hide from the system's unit (systemd.exec(5))."""

_OF_THE_SYSTEM: Final = "make the environment anew with the system's interpreter ('/usr/bin/python3 -m venv')"


class File(NamedTuple):
    """One file: where it goes on a host, and what it is for."""

    path: str
    meaning: str


_SYSTEM: Final = "systemd/system/spl-serve.service"

FILES: Final = {
    _SYSTEM: File("/etc/systemd/system/spl-serve.service", "the daemon of a host, as root: the hosted shape"),
    "systemd/system/own-user.conf": File(
        "/etc/systemd/system/spl-serve.service.d/own-user.conf",
        "the same as the user spl: the same-user shape",
    ),
    "systemd/user/spl-serve.service": File(
        "~/.config/systemd/user/spl-serve.service", "a daemon of one's own: the same-user shape"
    ),
    "systemd/sysusers.d/spl.conf": File("/etc/sysusers.d/spl.conf", "the user spl"),
    "systemd/tmpfiles.d/spl.conf": File("/etc/tmpfiles.d/spl.conf", "/run/spl from the host's start on"),
}
"""The files by name, which is their path below `folder`."""


class _Name(click.Choice[str]):
    """A file's name, or so much of its end as no other has."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give the whole name; raises `BadParameter`."""
        found = [name for name in self.choices if name.endswith(f"/{value}")]
        if len(found) > 1:
            self.fail(f"{value!r} is the end of several: type {' or '.join(map(repr, found))}.", param, ctx)
        return super().convert(found[0] if found else value, param, ctx)


def folder() -> Path:
    """Give the folder of what is for other programs of a host to read: the package's, or the one of this checkout."""
    package = Path(__file__).parents[1]
    installed = package / "contrib"
    return installed if installed.is_dir() else package.parent / "contrib"


@click.group()
def service() -> None:
    """Print the units, and what goes beside them, that run the daemon as a service."""


@service.command(
    "list",
    short_help="List the files, with where each goes.",
    epilog=examples("spl service list", "spl service list -o json | jq -r '.data[].name'"),
)
@output_option
def list_(output: str | None) -> None:
    """List the files that run the daemon as a service, with where each goes and what it is for."""
    rows = [{"name": name, **file._asdict()} for name, file in FILES.items()]
    print_listing({"object": "list", "data": rows, "has_more": False}, output, "name", "path", "meaning")


@service.command(
    short_help="Print one of the files.",
    epilog=examples(
        f"spl service show {_SYSTEM} >/etc/systemd/system/spl-serve.service",
        "spl service show systemd/user/spl-serve.service -o json | jq -r .text",
    ),
)
@click.argument("name", type=_Name(tuple(FILES)), metavar="NAME")
@output_option
def show(name: str, output: str | None) -> None:
    """Print one of the files, with this spl in it where it starts one; NAME as in the list, or as its end.

    It is plain text unless JSON is asked for. Of an spl that the system's unit could not run, or that others than root
    could replace, it warns on standard error.
    """
    text = (folder() / name).read_text(encoding="utf-8")
    if _WRITTEN in text:
        path = _own_path()
        text = text.replace(_WRITTEN, _quoted(path))
        for reason in (*_unnamed(path), *(_unsafe(path) if name == _SYSTEM else ())):
            click.echo(f"spl: warning: {shown(reason)}", err=True)
    if output == "json":
        print_json({"object": "service_file", "name": name, "path": FILES[name].path, "text": text})
    else:
        print_line(text.removesuffix("\n"))


def _own_path() -> str:
    """Give the path of this command as it was called: a link that an upgrade moves on is the better for a unit."""
    called = shutil.which(sys.argv[0])
    if called is None or os.path.basename(called) != "spl":
        called = os.path.join(os.path.dirname(sys.executable), "spl")
    return os.path.abspath(called)


def _quoted(path: str) -> str:
    """Give a path as ExecStart= takes it (systemd.service(5), systemd.unit(5))."""
    path = path.replace("%", "%%")
    if re.fullmatch(r"[\w%/.+@:-]+", path, re.ASCII):
        return path
    # A line's end in it would begin a directive of whoever has made the folder.
    return '"{}"'.format(printable(path.replace("\\", "\\\\").replace('"', '\\"')))


def _unnamed(path: str) -> Iterator[str]:
    """Yield why systemd takes this path for no program's, be it written as it may."""
    if re.search(r"[\x00-\x1f\x7f\"'\\]", path):
        yield f"systemd starts no program whose path has a quote, a backslash or a control character: {path!r}"


def _unsafe(path: str) -> Iterator[str]:
    """Yield why the system's unit cannot run this path as root, or should not."""
    package = os.path.realpath(Path(__file__).parents[1])
    interpreter = os.path.realpath(sys.executable)
    for each in dict.fromkeys((path, os.path.realpath(path), interpreter, package)):
        if not os.path.lexists(each):
            yield f"there is no {each!r}"
            continue
        if hidden := next((top for top in _HIDDEN if each.startswith(f"{top}/")), None):
            remedy = _OF_THE_SYSTEM if each == interpreter else "install spl elsewhere"
            yield f"{each!r} cannot be started by this unit, which does not see {hidden}: {remedy}"
        if writer := _writer(each):
            yield f"{each!r} would run as root, and {writer}"


def _writer(path: str) -> str | None:
    """Say who but root could replace what is at a path, if anyone."""
    for place in (path, *map(str, Path(path).parents)):
        status = os.lstat(place)
        if status.st_uid != 0:
            return f"{place!r} belongs to uid {status.st_uid}"
        # In a folder with the sticky bit others replace nothing of root's (inode(7)); a link has no mode of its own.
        free = stat.S_ISLNK(status.st_mode) or (
            stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        )
        if status.st_mode & 0o022 and not free:
            return f"{place!r} can be written by others than root"
    return None
