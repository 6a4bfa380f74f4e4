"""docs/soak.md tells of the profile that is shipped, and not of one that was."""

from __future__ import annotations

from bwrap.library import Library
from tests.claims import ROOT
from tests.end_to_end import soak


def test_the_soak_was_of_the_worker_profile_as_it_is_now() -> None:
    page = (ROOT / "docs" / "soak.md").read_text(encoding="utf-8")

    # Not the filter's digest: that is the compiler's as well, and libseccomp is the host's.
    row = f"| profile | `worker`, `{Library().load('worker').digest}` |"
    assert row in page, "docs/soak.md is stale: run 'make soak' (as root)"


def test_the_page_has_the_section_of_every_part_in_order() -> None:
    receipt = {
        "bubblewrap": {"version": "0.8.0"},
        "interpreter": {"version": "3.11.2"},
        **{name: name for name in ("profile", "profile_digest", "filter_digest", "image_digest")},
    }

    text = soak.page(receipt, {part: f"\n## What {part} came to\n" for part in reversed(soak.PARTS)})

    assert "\n| bubblewrap | 0.8.0 |\n" in text
    assert text.endswith("\n\n".join(f"## What {part} came to" for part in soak.PARTS) + "\n")
    assert "\n\n\n" not in text
