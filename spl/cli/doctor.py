"""The command that examines this host, and prints what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spl.cli.options import common, examples
from spl.cli.output import is_json, print_json, print_rows
from spl.errors import HostDoubtful, HostUnfit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bwrap.doctor import Finding, Severity


@click.command(
    epilog=examples(
        "spl doctor", "spl doctor -o json | jq -r '.findings[] | select(.severity != \"ok\") | .remedy'"
    )
)
@common
def doctor(home: str | None, output: str | None) -> None:
    """Say whether this host can confine workers, and what to do where it cannot.

    It needs no daemon and changes nothing, and the home may be one that is not there yet. When nothing failed, a
    trial worker of the default profile is made as a daemon would make it, in a throw-away home, and the layers that
    hold are listed. It exits 0 when all is well, 18 with warnings, 19 with failures.
    """
    from bwrap.doctor import Severity  # noqa: PLC0415
    from spl.cli.examination import examine  # noqa: PLC0415 - with it comes the whole daemon

    status, findings = examine(home)
    _print(status, findings, output)
    named = ", ".join(each.name for each in findings if each.severity is status)
    if status is Severity.FAILURE:
        raise HostUnfit(f"no worker can be confined on this host, for {named}")
    if status is Severity.WARNING:
        raise HostDoubtful(f"there are warnings about {named}")


def _print(status: Severity, findings: Sequence[Finding], output: str | None) -> None:
    if is_json(output):
        from bwrap import host as hosts  # noqa: PLC0415

        found = [each.wire() for each in findings]
        print_json({"object": "doctor", "status": status, "shape": hosts.shape(), "findings": found})
        return
    rows = [(each.name, each.severity.value, _seen(each), each.remedy) for each in findings]
    print_rows(("name", "severity", "observed", "remedy"), rows)


def _seen(finding: Finding) -> str:
    return f"{finding.observed} (expected {finding.expected})" if finding.expected else finding.observed
