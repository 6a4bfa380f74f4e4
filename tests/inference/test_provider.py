"""A setting names its provider exactly, or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spl.errors import SettingsInvalid
from spl.inference.provider import provider_named

if TYPE_CHECKING:
    from pathlib import Path


def test_a_setting_names_its_provider(tmp_path: Path) -> None:
    script = tmp_path / "with:colon.json"
    script.write_text('{"replies": []}')

    assert provider_named("echo").name == "echo"
    assert provider_named(f"script:{script}").name == "script"


@pytest.mark.parametrize("setting", ["", "Echo", "echo:", "script", "script:", "anthropic"])
def test_a_setting_that_names_no_provider_is_refused(setting: str) -> None:
    with pytest.raises(SettingsInvalid, match="is not known: it is 'echo' or 'script:PATH'"):
        provider_named(setting)
