from __future__ import annotations

from inspect import cleandoc

import pytest

from spl.settings import Settings
from tests.claims import ROOT
from tests.commands_page import documented, leaves

COMMANDS = dict(leaves())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_all_its_options(name: str) -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert cleandoc(COMMANDS[name].help or "")
    assert cleandoc(COMMANDS[name].help or "") in section
    for option, help_ in documented(COMMANDS[name]):
        assert help_.strip(), option
        assert option.replace("|", "\\|") in section


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented_with_its_variable(name: str) -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    description = Settings.model_fields[name].description
    assert description
    assert any(f"`SPL_{name.upper()}`" in line and description in line for line in page.splitlines())
