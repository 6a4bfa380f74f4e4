"""The command that runs the daemon, in the foreground or started into the background."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Final

import click

from spl.cli import completion, detached
from spl.cli.options import common, examples
from spl.cli.output import print_json
from spl.cli.text import shown
from spl.errors import DaemonStopping
from spl.home import Home

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from spl.settings import Settings

_READY_SECONDS: Final = 60.0
_UNKNOWN_FAILURE: Final = 70


@click.command(
    epilog=examples(
        "spl serve",
        "spl serve --daemon --provider echo",
        "spl serve --provider anthropic --model claude-sonnet-4-5",
    )
)
@common
@click.option("--port", type=int, help="The TCP port on 127.0.0.1; 0 lets the kernel choose one.")
@click.option(
    "--provider",
    metavar="NAME",
    help="The model provider: anthropic, openai, echo, or script:PATH.",
    shell_complete=completion.providers,
)
@click.option("--provider-url", metavar="URL", help="Where the provider answers, unless at its own address.")
@click.option("--model", metavar="NAME", help="The model of runs that name none.")
@click.option(
    "--foreground/--daemon", default=True, help="Stay, or start in the background and return once ready."
)
@click.option(
    "--detached", "let_go", is_flag=True, hidden=True, help="Let go of standard output once announced."
)
@click.pass_context
def serve(
    context: click.Context,
    home: str | None,
    output: str | None,
    port: int | None,
    provider: str | None,
    provider_url: str | None,
    model: str | None,
    foreground: bool,
    let_go: bool,
) -> None:
    """Run the daemon.

    It says where it listens, as plain text unless JSON is asked for, and ends on SIGTERM or SIGINT. In the
    background its log is logs/daemon.log in the home.
    """
    from spl.settings import load  # noqa: PLC0415 - not for its help

    given = {"port": port, "provider": provider, "provider_url": provider_url, "model": model}
    settings = load({"home": home, **given})
    if foreground:
        _serve(settings, output, let_go=let_go)
    else:
        status = _start(settings, given, output)
        context.exit(status)


def _serve(settings: Settings, output: str | None, *, let_go: bool) -> None:
    import asyncio  # noqa: PLC0415 - not for --daemon, nor for its help

    from spl import hardening  # noqa: PLC0415

    hardening.drop_secrets()
    hardening.keep_standard()
    from spl.notify import Notifier  # noqa: PLC0415

    taken = Notifier.take()
    if let_go:
        # In the background it is not the process that the manager, if there is one, has started.
        taken.close()
    # Everything the daemon is made of: not for --daemon, whose other process imports it.
    from spl import daemon  # noqa: PLC0415

    def announce(text: str) -> None:
        _announce(text, output)
        if let_go:
            detached.let_go()

    with contextlib.closing(taken):
        try:
            asyncio.run(daemon.serve(settings, announce=announce, notifier=taken))
        finally:
            # Who tells it once more is late: it has given everything back, and its exit status says how it ended.
            for number in daemon.ENDING:
                signal.signal(number, signal.SIG_IGN)


def _start(settings: Settings, given: Mapping[str, object], output: str | None) -> int:
    home = Home.open(settings.home, create=True)
    # -P: a folder called spl where this is called must not be taken for the package.
    command = [sys.executable, "-P", "-m", "spl.cli.main", "serve", "--foreground", "--detached"]
    command += ["--home", str(settings.home)]
    for name, value in given.items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    log = home.logs / "daemon.log"
    started = detached.start(command, log, seconds=_READY_SECONDS + home.opening_seconds())
    if started.exit_status is None:
        _announce(started.announcement.rstrip("\n"), output)
        return 0
    if started.exit_status == 0:
        raise DaemonStopping(
            "the daemon was told to stop before it was ready, and has ended",
            remedy="start it again with 'spl serve'",
        )
    for line in started.said.splitlines() or (_unsaid(started.exit_status, log),):
        click.echo(shown(line), err=True)
    return started.exit_status if started.exit_status > 0 else _UNKNOWN_FAILURE


def _unsaid(status: int, log: Path) -> str:
    """Tell of a daemon that ended without a word, as on a full disk; a status below 0 is the signal that killed it."""
    how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
    return (
        f"spl: the daemon ended {how} before it was ready, and nothing of that is in {str(log)!r}; "
        "look whether there is room on its disk, and in 'spl errors' for what the status means"
    )


def _announce(text: str, output: str | None) -> None:
    if output == "json":
        print_json({"announcement": text})
    else:
        click.echo(text)
