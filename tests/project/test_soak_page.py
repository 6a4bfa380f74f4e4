"""docs/soak.md tells of the profile that is shipped, and not of one that was."""

from __future__ import annotations

from bwrap.library import Library
from tests.claims import ROOT


def test_the_soak_was_of_the_worker_profile_as_it_is_now() -> None:
    page = (ROOT / "docs" / "soak.md").read_text(encoding="utf-8")

    # Not the filter's digest: that is the compiler's as well, and libseccomp is the host's.
    row = f"| profile | `worker`, `{Library().load('worker').digest}` |"
    assert row in page, "docs/soak.md is stale: run 'make soak' (as root)"
