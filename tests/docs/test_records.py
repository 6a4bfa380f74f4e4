"""The page of record kinds, held against what a real daemon writes."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from spl.errors import IsolationUnavailable
from spl.kernel import names
from spl.records.record import record_id
from tests.docs.blocks import read
from tests.end_to_end.daemon import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escape.installation import Installation
    from tests.end_to_end.daemon import Daemon

Json = dict[str, Any]

PAGE = read("docs/records.md")
NOTE = "core.work.note.v1"
KINDS = {kind for name, kind in vars(names).items() if name.isupper() and str(kind).startswith("core.")} | {
    NOTE
}
OWN_WORDS = {names.PLAN, names.REPORT}


class Said(NamedTuple):
    """What the page says of a kind: its fields, whether each is always there, and its example."""

    fields: dict[str, bool]
    example: Json


def said() -> dict[str, Said]:
    """Give what the page says, by kind."""
    bodies = [json.loads(block.text) for block in PAGE.blocks if block.info == "json"]
    examples = {body.get("kind"): body for body in bodies}
    found = {}
    for section in re.split(r"^##", PAGE.prose, flags=re.MULTILINE):
        if heading := re.match(r"# `(core\.[^`]+)`$", section, re.MULTILINE):
            rows = re.findall(r"^\| `(\w+)`(\??) \|", section, re.MULTILINE)
            found[heading[1]] = Said({name: not optional for name, optional in rows}, examples[heading[1]])
    return found


SAID = said()


def unlike(kind: str, body: Json) -> set[str]:
    """Give the fields of a body that the page does not know, and those it says are always there that are not."""
    fields = SAID[kind].fields
    always = {name for name, is_always in fields.items() if is_always}
    return (body.keys() - fields.keys() - {"kind"}) | (always - body.keys())


@pytest.fixture(scope="module")
def written(world_readable: Installation) -> Iterator[list[Json]]:
    """Give the records of a daemon that was made to write every kind but a run's own words."""
    call = {"name": "calculate", "arguments": {"expression": "6 * 7"}}
    note = {"name": "record_note", "arguments": {"text": "hello"}}
    replies = [{"calls": [note, call]}, {"calls": [call]}, {"calls": [call]}, {"text": "That was all."}]
    shape = Shape("hosted", 0, tuple(world_readable.command), world_readable.env)
    with tempfile.TemporaryDirectory(prefix="spl-") as folder:
        script = Path(folder, "script.json")
        script.write_text(json.dumps({"replies": replies}))
        with shape.daemon(Path(folder, "home"), "--provider", f"script:{script}") as daemon:
            _have_all_written(daemon)
            yield daemon.request("GET", "/v1/records", limit=1000)["data"]


def _have_all_written(daemon: Daemon) -> None:
    member = daemon.request("POST", "/v1/members", {"label": "ada", "tier": "paid"})
    rule = {"name": "none", "action": "deny", "priority": 1, "expression": "false", "enabled": True}
    said = {"kind": names.CONFIG, "topic": "permission_rule", **rule}
    where = {"thread": names.CONFIG_THREAD, "actor": names.ENGINE, "act": "LEARN"}
    daemon.request("POST", "/v1/records", {**where, "body": said})
    daemon.configure(kind=names.TIER, tier="trial", daily_runs=3)
    daemon.configure(topic="admission_capacity", capacity=3)
    daemon.finish(daemon.start()["thread"])
    daemon.set_transport("sandboxed")
    daemon.finish(daemon.start()["thread"])
    profile = daemon.home / "profiles" / "mine.toml"
    profile.write_text('description = "Mine."\nextends = "worker"\n')
    daemon.configure(topic="work_loop_profile", profile="mine")
    profile.write_text("no profile")
    with pytest.raises(IsolationUnavailable):
        daemon.start()
    daemon.request("DELETE", f"/v1/tokens/{member['token_id']}")
    daemon.request("DELETE", "/v1/members/ada")


def test_every_kind_that_the_kernel_knows_is_on_the_page_and_no_other() -> None:
    assert set(SAID) == KINDS


@pytest.mark.parametrize("kind", sorted(KINDS - OWN_WORDS))
def test_an_example_has_the_fields_that_the_page_says(kind: str) -> None:
    assert unlike(kind, SAID[kind].example) == set()


@pytest.mark.parametrize("kind", sorted(KINDS - OWN_WORDS))
def test_what_a_daemon_writes_has_the_fields_that_the_page_says(kind: str, written: list[Json]) -> None:
    bodies = [record["body"] for record in written if record["body"]["kind"] == kind]

    assert bodies
    assert [unlike(kind, body) for body in bodies if unlike(kind, body)] == []


def test_the_example_of_a_whole_record_has_the_id_that_its_content_gives() -> None:
    whole = next(json.loads(block.text) for block in PAGE.blocks if block.info == "json")
    hashed = (whole[name] for name in ("thread", "actor", "act", "body", "clock", "data_type"))

    assert whole["id"] == record_id(tuple(whole["parents"]), *hashed)
    fields = PAGE.prose.partition("## The record")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", fields, re.MULTILINE)) == whole.keys() - {"object"}
