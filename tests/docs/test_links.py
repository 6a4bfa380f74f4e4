"""Every page can be found from the README, and every link leads somewhere."""

from __future__ import annotations

import os
import re
from functools import cache

import pytest

from tests import claims
from tests.docs.blocks import Page, names, read, take_apart

PAGES = names()


@cache
def page(name: str) -> Page:
    return read(name)


def broken(of: Page) -> list[str]:
    """Give the links of a page, of the kinds that can be followed here, that lead nowhere."""
    found = []
    for line, link in of.links():
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = os.path.normpath(os.path.join(os.path.dirname(of.name), path)) if path else of.name
        there = target == of.name or (claims.ROOT / target).exists()
        if not there or (anchor and anchor not in (of if target == of.name else page(target)).anchors()):
            found.append(f"{of.name}:{line}: {link}")
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there(name: str) -> None:
    assert broken(page(name)) == []


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for _, link in page("README.md").links()}

    assert set(PAGES) - {"README.md"} - linked == set()


def test_a_link_to_what_is_not_there_is_found_and_one_in_code_is_none() -> None:
    text = (
        "# Here it *is*, `twice`\n[a](#here-it-is-twice) [b](#gone) [c](../README.md) [d](gone.md)\n"
        "`[e](gone.md)`\n```\n[f](gone.md)\n```\n[g](security.md#threats) [h](security.md#gone) <https://example.org>\n"
    )

    assert broken(take_apart("docs/page.md", text)) == [
        "docs/page.md:2: #gone",
        "docs/page.md:2: gone.md",
        "docs/page.md:7: security.md#gone",
    ]


def test_every_promise_that_a_page_names_is_one_of_the_claims() -> None:
    known = {claim for section in claims.sections().values() for claim in section}
    # Two of a table's cells and more are ids; elsewhere they stand in parentheses.
    said = re.findall(r"(?<![\w-])(?:[TINKOAMBEV]\d{1,2})(?![\w-])", page("docs/security.md").prose)

    assert set(said) - known == set()
    assert len(set(said)) > 20
