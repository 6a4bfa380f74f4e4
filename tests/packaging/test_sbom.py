"""The list of what is pinned, in a form that scanners read, says what the pins say."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.claims import ROOT
from tests.project.test_dependencies import pins, pyproject_names

TEXT = (ROOT / "requirements" / "sbom.cdx.json").read_text(encoding="utf-8")
DOCUMENT: dict[str, Any] = json.loads(TEXT)
COMPONENTS: list[dict[str, Any]] = DOCUMENT["components"]


def pinned(kind: str) -> dict[str, set[str]]:
    """Give a file's pins by their package URLs, each with its hashes."""
    return {
        f"pkg:pypi/{name}@{rest.split()[0]}": set(re.findall(r"sha256:([0-9a-f]{64})", rest))
        for name, rest in pins(ROOT / "requirements" / f"{kind}.txt").items()
    }


def scope(kind: str) -> set[str]:
    return {each["purl"] for each in COMPONENTS if each["scope"] == kind}


def test_each_pin_stands_there_with_its_version_and_hashes_and_nothing_else_does() -> None:
    every = pinned("runtime") | pinned("bwrap")
    said = {each["purl"]: {digest["content"] for digest in each["hashes"]} for each in COMPONENTS}

    assert said == every, "requirements/sbom.cdx.json is stale: run 'make sbom'"
    assert scope("required") == set(pinned("runtime"))
    assert scope("optional") == set(pinned("bwrap")) - set(pinned("runtime"))


def test_each_component_says_its_licence_and_the_product_what_it_asks_for() -> None:
    assert [each["name"] for each in COMPONENTS if not each.get("licenses")] == []
    needs = {each["ref"]: each.get("dependsOn", []) for each in DOCUMENT["dependencies"]}
    asked = {ref.partition("==")[0].lower().replace("_", "-") for ref in needs["root-component"]}
    assert asked == pyproject_names(of="runtime") | pyproject_names(of="bwrap")
    assert needs.keys() == {"root-component", *(each["bom-ref"] for each in COMPONENTS)}


def test_nothing_in_it_differs_from_one_making_to_the_next_or_says_where_to_download() -> None:
    assert (DOCUMENT["bomFormat"], DOCUMENT["specVersion"]) == ("CycloneDX", "1.6")
    assert "timestamp" not in DOCUMENT["metadata"]
    assert "serialNumber" not in DOCUMENT
    addresses = re.findall(r"https?://[^\"]*", TEXT)
    assert addresses == [DOCUMENT["$schema"]]
