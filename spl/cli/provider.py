"""The command that tries out the model provider."""

from __future__ import annotations

from typing import Final

import click

from spl.cli.options import common, examples
from spl.cli.output import print_document
from spl.client import Client

_SECONDS: Final = 3700.0
"""Longer than one try may take by any `provider_seconds`; one that is tried again for longer is not waited for."""


@click.group()
def provider() -> None:
    """Try the model provider of the running daemon."""


@provider.command(
    "check",
    short_help="Make one small model call and show what it took.",
    epilog=examples(
        "spl provider check", "spl provider check --model claude-sonnet-4-5 -o json | jq .calls_tools"
    ),
)
@click.option("--model", metavar="NAME", help="The model to call; the daemon's default unless given.")
@common
def check(model: str | None, home: str | None, output: str | None) -> None:
    """Have the daemon call its provider once, as a run would, and show who answered and what it took.

    The model is asked to call a tool: calls_tools says whether it did. It costs what such a call costs.
    """
    body = {} if model is None else {"model": model}
    answer = Client.locate(home).request("POST", "/v1/provider/check", body, timeout=_SECONDS)
    print_document(answer, output)
