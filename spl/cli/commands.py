"""The commands by name, and the help that lists them, without click: that takes longer to load than Python to start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("spl.cli.instance:init", "Make the home and the operator's token."),
    "serve": ("spl.cli.serve:serve", "Run the daemon."),
    "stop": ("spl.cli.instance:stop", "Stop the daemon and wait until it has ended."),
    "status": ("spl.cli.instance:status", "Show the daemon's health."),
    "doctor": (
        "spl.cli.doctor:doctor",
        "Say whether this host can confine workers, and what to do where it cannot.",
    ),
    "service": (
        "spl.cli.service:service",
        "Print the units, and what goes beside them, that run the daemon as a service.",
    ),
    "run": ("spl.cli.runs:run", "Start a run towards GOAL and wait until it has ended."),
    "runs": ("spl.cli.runs:runs", "List runs, show one, follow what they do, or stop one."),
    "know": ("spl.cli.records:know", "Write a record and print it as the log holds it."),
    "thread": ("spl.cli.records:thread", "Read a thread."),
    "why": (
        "spl.cli.why:why",
        "Tell of the run on THREAD what was asked, allowed and done, and how it ended.",
    ),
    "verify": (
        "spl.cli.verify:verify",
        "Recompute the ids of a thread, an export or a log, and check chains, verdicts and sums.",
    ),
    "member": ("spl.cli.principals:member", "Add members, list them, or take one away."),
    "token": ("spl.cli.principals:token", "Show the operator's token; make, replace or end anyone's."),
    "profile": (
        "spl.cli.profiles:profile",
        "Show, compare, judge and write profiles, and run commands under them.",
    ),
    "escape": (
        "spl.cli.escape:escape",
        "Try to get out of a sandboxed run, in every known way, and see what stops it.",
    ),
    "provider": ("spl.cli.provider:provider", "Try the model provider of the running daemon."),
    "config": ("spl.cli.config:config", "Show the configuration in force, or change it."),
    "backup": ("spl.cli.backup:backup", "Copy the log, whole and examined, into a file of its own."),
    "restore": (
        "spl.cli.backup:restore",
        "Put a backup in the place of the log: FILE, or the newest that is whole.",
    ),
    "errors": (
        "spl.cli.errors:errors",
        "List the errors and the exit statuses, or say what CODE means and what to do.",
    ),
    "completion": ("spl.cli.completion:completion", "Print what a shell needs to complete commands."),
    "console": ("spl.cli.console:console", "Watch the daemon and act on it."),
    "bench": ("spl.cli.bench:bench", "Measure what confinement and judgment cost on this host."),
    "version": ("spl.cli.instance:version", "Print the version."),
}
"""Each command's place and its short help, so that what lists them loads none of them."""

HEADINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "Daemon": ("init", "serve", "stop", "status", "doctor", "console", "service"),
    "Runs": ("run", "runs", "why"),
    "The log": ("know", "thread", "verify", "backup", "restore"),
    "Who may what": ("member", "token", "config"),
    "Confinement": ("profile", "escape", "bench"),
    "Models": ("provider",),
    "Help": ("errors", "completion", "version"),
}
"""What the commands are listed under, each once."""

ABOUT: Final = "Run work loops in confined processes, each tool call judged by the kernel and on record."

_OPTIONS: Final = (("--version", "Show the version and exit."), ("-h, --help", "Show this message and exit."))


def overview(width: int) -> str:
    """Give the help of `spl` itself, no line of it longer than so many characters, as click would write it."""
    text = ["Usage: spl [OPTIONS] COMMAND [ARGS]...\n", _filled("  ", ABOUT, width)]
    sections: dict[str, Sequence[tuple[str, str]]] = {"Options": _OPTIONS}
    for heading, names in HEADINGS.items():
        sections[heading] = [(name, COMMANDS[name][1]) for name in names]
    # The same column under each heading.
    column = max(len(term) for rows in sections.values() for term, _ in rows)
    for heading, rows in sections.items():
        text += [f"\n{heading}:", *(_filled(f"  {term:{column}}  ", said, width) for term, said in rows)]
    return "\n".join(text) + "\n"


def _filled(before: str, text: str, width: int) -> str:
    import textwrap  # noqa: PLC0415 - not for what only looks a command up

    return textwrap.fill(text, width, initial_indent=before, subsequent_indent=" " * len(before))
