"""Commands about the instance as a whole: its home, and the daemon that runs in it."""

from __future__ import annotations

import os
import select
import signal

import click

from spl import __version__
from spl.cli.options import common, output_option
from spl.cli.output import print_document, print_json, print_line
from spl.client import Client
from spl.errors import DaemonUnreachable, HomeInUse, SettingsInvalid
from spl.home import Home, locate, login, running_pid


@click.command()
@common
@click.option(
    "--new-log",
    is_flag=True,
    help="Also move the log away, if there is one, and begin an empty one: without members, rules, tiers or runs.",
)
def init(home: str | None, output: str | None, new_log: bool) -> None:
    """Make the home and the operator's token.

    What is there already stays as it is, but for the log with --new-log, which is moved into the folder of backups.
    """
    if new_log:
        _refuse_another(home)
    opened = Home.open(locate(home, os.environ), create=True)
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
    print_document({name: str(path) for name, path in paths.items()}, output)


@click.command()
@common
@click.option(
    "--timeout",
    type=click.FloatRange(0, 3600),
    default=30,
    show_default=True,
    help="Seconds to wait for its end.",
)
def stop(home: str | None, output: str | None, timeout: float) -> None:
    """Stop the daemon and wait until it has ended.

    It is sent SIGTERM, and nothing stronger if it takes longer than the timeout.
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
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            if not ended.poll(timeout * 1000):
                raise HomeInUse(f"the daemon (pid {pid}) has not ended {timeout:g} seconds after SIGTERM")
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


@click.command()
@common
def status(home: str | None, output: str | None) -> None:
    """Show the daemon's health."""
    print_document(Client.locate(home).request("GET", "/v1/engine/health"), output)


@click.command()
@output_option
def version(output: str | None) -> None:
    """Print the version.

    It is plain text unless JSON is asked for.
    """
    if output == "json":
        print_json({"version": __version__})
    else:
        print_line(f"spl {__version__}")
