from __future__ import annotations

import re
import tomllib
from inspect import cleandoc
from typing import TYPE_CHECKING

import pytest

from spl.kernel import config, tiers
from spl.kernel.members import MEMBER_SCOPES
from spl.settings import Settings, load
from tests.claims import ROOT
from tests.commands_page import documented, leaves
from tests.docs.blocks import read

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = dict(leaves())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_all_its_options(name: str) -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    section = re.split(r"\n##+ ", page.partition(f"\n### {name}\n")[2])[0]
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


def test_the_example_of_a_configuration_file_is_one(tmp_path: Path) -> None:
    (example,) = (block.text for block in read("docs/settings.md").blocks if block.info == "toml")
    tmp_path.chmod(0o700)
    (tmp_path / "config.toml").write_text(example)

    settings = load({"home": tmp_path}, {})

    assert settings.model_fields_set == {"home", *tomllib.loads(example)}


@pytest.mark.parametrize("topic", sorted(config._TOPICS))
def test_every_topic_of_the_configuration_is_documented(topic: str) -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert f"\n| `{topic}` | `" in page


@pytest.mark.parametrize("page", ["api.md", "commands.md", "judgment.md"])
def test_every_scope_that_a_member_can_be_given_is_named_where_that_is_told(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [scope for scope in MEMBER_SCOPES if scope not in text] == []


def test_every_ceiling_of_a_tier_is_documented() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert [name for name in tiers._BOUNDS if f"`{name}`" not in page] == []
