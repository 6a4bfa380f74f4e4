"""Commands about the instance as a whole: its home, and the daemon that runs in it."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from spl import __version__
from spl.cli.options import Number, common, examples, output_option
from spl.cli.output import is_json, print_document, print_json, print_line, print_pairs, print_rows
from spl.errors import DaemonUnreachable, HomeInUse, SettingsInvalid
from spl.home import Home, locate, login, running_pid

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHAPES: Final = {
    "hosted": "hosted: the daemon is root's, and each worker has a uid of its own",
    "same-user": "same-user: the daemon is yours, and each worker is confined as you; root's would be hosted",
}


@click.command(epilog=examples("spl init", "spl init --home /srv/spl -o json | jq -r .token"))
@common
@click.option(
    "--new-log",
    is_flag=True,
    help="Also move the log away, if there is one, and begin an empty one: without members, rules, tiers or runs.",
)
def init(home: str | None, output: str | None, new_log: bool) -> None:
    """Make the home and the operator's token.

    A table says of each path what it is and who may use it, and what to do next. What is there already stays as it is,
    but for the log with --new-log, which is moved with its backups into a folder of its own among the backups.
    """
    if new_log:
        _refuse_another(home)
    path = locate(home, os.environ)
    there = os.path.lexists(path)
    opened = Home.open(path, create=True)
    opened.ensure_token(login())
    paths: dict[str, object] = {
        "home": opened.path,
        "config": opened.config,
        "token": opened.token,
        "operator_socket": opened.operator_socket,
    }
    if new_log:
        from spl.records import restore  # noqa: PLC0415 - SQLite, for this alone

        with opened.lock():
            restore.finish(opened.database, opened.backups)
            paths["replaced"] = restore.begin_anew(opened.database, opened.backups).replaced or ""
    if is_json(output):
        print_json({name: str(path) for name, path in paths.items()})
    else:
        _explain(opened, paths, there=there)


def _explain(home: Home, paths: Mapping[str, object], *, there: bool) -> None:
    """Say of each path what it is and who may use it, and what comes next."""
    from bwrap import host as hosts  # noqa: PLC0415 - for a person alone

    state = "it was already there, and stays as it is" if there else "made now; yours alone (0700)"
    rows = [
        ("home", paths["home"], f"everything of this instance; {state}"),
        ("config", paths["config"], "settings, if you write any ('spl serve' does without it); yours alone"),
        (
            "token",
            paths["token"],
            "the operator's bearer, for TCP; yours alone (0600): whoever has it is you",
        ),
        (
            "operator_socket",
            paths["operator_socket"],
            "where this command finds the daemon, once it runs; yours alone (0600), and no token is needed",
        ),
        ("log", home.database, "every record, once the daemon has run; yours alone (0600)"),
        ("profiles", home.profiles, "profiles of your own, if you write any; nobody else may write there"),
        ("backups", home.backups, "copies of the log; yours alone (0700)"),
    ]
    if "replaced" in paths:
        rows.append(
            ("replaced", paths["replaced"] or "nothing", "the log that was there, moved with its backups")
        )
    print_rows(("", "path", "what it is"), ((name, str(path), said) for name, path, said in rows))
    print_line()
    print_pairs(
        (
            ("shape", _SHAPES[hosts.shape().value]),
            (
                "next",
                "'spl doctor' says whether this host can confine workers, and what to do where it cannot",
            ),
            ("", "'spl serve' runs the daemon (--daemon: in the background)"),
            ("", "'spl run GOAL' starts a run; 'spl runs tail' and 'spl console' show what runs do"),
        )
    )


@click.command(epilog=examples("spl stop", "spl stop --timeout 120"))
@common
@click.option(
    "--timeout",
    type=Number(0, 3600),
    default=30,
    show_default=True,
    help="Seconds to wait for its end.",
)
def stop(home: str | None, output: str | None, timeout: float) -> None:
    """Stop the daemon and wait until it has ended.

    It is sent SIGTERM, and nothing stronger if it takes longer than the timeout, which must exceed the setting
    drain_seconds: for so long its runs may take to leave. Stopped a second time, it breaks them off.
    """
    opened = own_home(home)
    pid = running_pid(opened)
    try:
        descriptor = None if pid is None else os.pidfd_open(pid)
    except ProcessLookupError:
        descriptor = None
    if pid is None or descriptor is None:
        raise DaemonUnreachable(f"no daemon runs in the home {str(opened.path)!r}")
    try:
        # The descriptor is that of the daemon only if the lock was still held when it was opened.
        if running_pid(opened) == pid:
            with suppress(ProcessLookupError):  # told by another, it has ended since
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            if not ended.poll(timeout * 1000):
                raise HomeInUse(
                    f"the daemon (pid {pid}) has not ended {timeout:g} seconds after SIGTERM",
                    remedy="wait with a longer --timeout, look in its log what it waits for, or call this again: told "
                    "twice, it breaks off its runs",
                )
    finally:
        os.close(descriptor)
    print_document({"stopped": pid}, output)


def own_home(flag: str | None) -> Home:
    """Open the home on this machine; a daemon that SPL_URL names elsewhere is not the one in it."""
    _refuse_another(flag)
    return Home.open(locate(flag, os.environ), create=False)


def _refuse_another(flag: str | None) -> None:
    if flag is None and os.environ.get("SPL_URL"):
        raise SettingsInvalid(
            "this command works on a home and SPL_URL names a daemon by address: give --home"
        )


@click.command(epilog=examples("spl status", "spl status -o json | jq .work_loop"))
@common
def status(home: str | None, output: str | None) -> None:
    """Show the daemon's health."""
    from spl.client import Client  # noqa: PLC0415 - for this alone

    print_document(Client.locate(home).request("GET", "/v1/engine/health"), output)


@click.command(epilog=examples("spl version", "spl version -o json"))
@output_option
def version(output: str | None) -> None:
    """Print the version.

    It is plain text unless JSON is asked for, which also says what of the host a report of a fault should name: null is
    what is not there, or cannot be used ('spl doctor' says why).
    """
    if output == "json":
        print_json({"version": __version__, **_beneath()})
    else:
        print_line(f"spl {__version__}")


def _beneath() -> dict[str, str | None]:
    """Give the versions of what this installation stands on."""
    from bwrap import host  # noqa: PLC0415 - not for a plain version
    from bwrap.errors import LayerError  # noqa: PLC0415

    found: dict[str, str | None] = {
        "python": sys.version.split()[0],
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "shape": host.shape().value,
        "bubblewrap": None,
        "libseccomp": None,
    }
    with suppress(LayerError):
        found["bubblewrap"] = host.find_bubblewrap(host.shape()).version
    with suppress(LayerError):
        found["libseccomp"] = host.find_libseccomp()
    return found
