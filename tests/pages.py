"""The pages of docs/ that are made from the code, each with its generator.

`python -m tests.pages` writes them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escape import report
from escape.page import page as escape_page
from tests import (
    claims,
    commands_page,
    confinement_pages,
    errors_page,
    logs_page,
    metrics_page,
    routes_page,
    settings_page,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PAGES: Mapping[str, Callable[[], str]] = {
    "docs/claims.md": claims.page,
    "docs/commands.md": commands_page.page,
    "docs/troubleshooting.md": errors_page.page,
    "docs/escape.md": lambda: escape_page(report.load()),
    "docs/layers.md": confinement_pages.layers_page,
    "docs/logs.md": logs_page.page,
    "docs/metrics.md": metrics_page.page,
    "docs/profiles.md": confinement_pages.profiles_page,
    "docs/routes.md": routes_page.page,
    "docs/settings.md": settings_page.page,
}


def write() -> None:
    """Write every page."""
    for path, page in PAGES.items():
        (claims.ROOT / path).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()
