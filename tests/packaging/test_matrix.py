"""docs/matrix.md says what passed, what is not here and which wheels there are; what it would run is there."""

from __future__ import annotations

import sys

from tests.claims import ROOT
from tests.packaging.matrix import MACHINES, MINORS, PARTS, Tried, ask, find, page


def test_what_is_run_on_each_python_is_there() -> None:
    named = {
        argument for arguments in PARTS.values() for argument in arguments if argument.startswith("tests/")
    }
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_a_python_is_found_by_its_minor_release_and_one_that_is_not_here_is_not() -> None:
    here = "{}.{}".format(*sys.version_info)
    found = find(here)

    assert found is not None
    assert ask(found, "'%d.%d' % sys.version_info[:2]") == here
    assert find("3.99") is None


def test_the_page_has_a_column_for_each_python_and_says_which_was_not_found_and_what_lacks_a_wheel() -> None:
    tried = [Tried(version, dict.fromkeys(PARTS, (3, 61.4))) for version in ("3.11.2", "3.12.1")]
    wheels: dict[tuple[str, str], str | None] = {
        (minor, machine): None for minor in MINORS for machine in MACHINES
    }
    wheels["3.14", "aarch64"] = "pydantic-core==2.50.5"

    text = page(tried, ["3.13", "3.14"], wheels)

    assert "\n| tests passed | 3.11.2 | 3.12.1 |\n|---|---|---|\n" in text
    assert text.count(" | 3 in 61 s | 3 in 61 s |\n") == len(PARTS)
    assert "not tried: Python 3.13 and 3.14." in text
    assert "\n| aarch64 | all | all | all | pydantic-core==2.50.5 |\n" in text
    assert "\n| x86_64 | all | all | all | all |\n" in text
    assert "\n\n\n" not in text
