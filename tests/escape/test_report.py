"""The report in the repository, held against the rows made afresh; and how a difference is told."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bwrap.library import Library
from escape import image, report, suite
from escape import page as pages
from escape.attempts import ATTEMPTS
from tests.bwrap.stage import examine
from tests.escape.conftest import is_left
from tests.escape.told import MUTATION, ROW

if TYPE_CHECKING:
    from pathlib import Path

    from escape.suite import Found

Json = dict[str, Any]

HOST = {"kernel": "6.1", "bubblewrap": "0.8.0 ab", "machine": "x86_64", "landlock_abi": 2}


def _report(*rows: Json, kernel: str = "6.1", lacks: tuple[Json, ...] = ()) -> Json:
    return {
        "version": "0",
        "hosts": {"hosted": {**HOST, "kernel": kernel}},
        "profiles": {},
        "rows": list(rows),
        "lacks": list(lacks),
        "mutations": [MUTATION],
    }


@pytest.mark.claim("E3")
@pytest.mark.timeout(400)
def test_the_report_in_the_repository_is_what_is_found(found: Found, mutated: Found) -> None:
    kept = report.load()
    kept["mutations"] = [each for each in kept["mutations"] if not is_left(each["layer"], each["shape"])]
    differ = report.differences(kept, report.document(found, mutated))
    assert differ == [], "escape/report.json is stale: run 'make escape' (as root), and look at what changed"


@pytest.mark.claim("E3")
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_what_the_report_says_of_every_layers_absence_is_what_is_found(mutated: Found) -> None:
    kept = report.load()
    differ = report.differences(kept, {**kept, "hosts": mutated.hosts, "mutations": mutated.mutations})
    assert differ == [], "escape/report.json is stale: run 'make escape' (as root), and look at what changed"


@pytest.mark.claim("E3")
def test_the_report_names_what_it_was_made_on() -> None:
    said = report.load()
    assert set(said["hosts"]) == set(suite.SHAPES)
    for host in said["hosts"].values():
        assert all(host[name] for name in ("kernel", "bubblewrap", "libseccomp", "interpreter", "image"))
    library = Library()
    assert said["profiles"] == {name: library.load(name).digest for name in library.shipped()}
    assert not [row["id"] for row in said["rows"] if not row["ok"]]
    assert not [each["name"] for each in said["mutations"] if not each["ok"]]
    assert {row["id"] for row in said["rows"]} >= set(ATTEMPTS) - {each["id"] for each in said["lacks"]}


@pytest.mark.parametrize(("name", "value"), [("layer", "network"), ("class", "files"), ("ok", False)])
def test_a_layer_a_class_and_a_verdict_must_be_the_same_on_every_host(name: str, value: object) -> None:
    differ = report.differences(_report(ROW), _report({**ROW, name: value}, kernel="6.18"))
    assert differ == [f"keyrings.add hosted worker: {name} {ROW[name]!r}, now {value!r}"]


def test_an_answer_must_be_the_same_where_the_kernel_is() -> None:
    other = {**ROW, "got": "ENETUNREACH at connect"}
    assert report.differences(_report(ROW), _report(other, kernel="6.18")) == []
    (said,) = report.differences(_report(ROW), _report(other))
    assert "ENETUNREACH" in said


def test_the_attempts_must_be_those_of_the_report_where_they_are_compiled_alike() -> None:
    kept, fresh = _report(ROW), _report(ROW)
    kept["hosts"]["hosted"]["image"], fresh["hosts"]["hosted"]["image"] = "ab", "cd"
    assert report.differences(kept, fresh) == ["the attempts are not those that the report was made with"]
    fresh["hosts"]["hosted"]["interpreter"] = "3.14"
    assert report.differences(kept, fresh) == []


def test_a_row_that_is_gone_or_new_is_told_and_one_that_a_host_lacks_is_not() -> None:
    assert report.differences(_report(ROW), _report()) == ["keyrings.add hosted worker: gone"]
    assert report.differences(_report(), _report(ROW)) == ["keyrings.add hosted worker: new"]
    lack = {"id": "keyrings.add", "shape": "hosted", "profile": "worker", "why": "there is no network"}
    assert report.differences(_report(ROW), _report(lacks=(lack,), kernel="6.18")) == []
    assert report.differences(_report(ROW), _report(lacks=(lack,))) == ["keyrings.add hosted worker: gone"]


def test_a_layer_whose_absence_is_noticed_no_more_is_told() -> None:
    for mutations in ([], [{**MUTATION, "ok": False}]):
        differ = report.differences(_report(ROW), {**_report(ROW, kernel="6.18"), "mutations": mutations})
        assert differ == ["without network, the daemon's network, hosted: gone"]


def test_an_attempt_that_turns_red_no_more_without_a_layer_is_told_on_a_like_host() -> None:
    other = {**MUTATION, "red": {}}
    differ = report.differences(_report(ROW), {**_report(ROW), "mutations": [other]})
    assert differ == ["without network, the daemon's network, hosted: network.tcp stays green"]
    assert report.differences(_report(ROW), {**_report(ROW, kernel="6.18"), "mutations": [other]}) == []


def test_a_shape_that_was_not_tried_is_no_like_host() -> None:
    other = {**ROW, "got": "ENETUNREACH at connect"}
    assert report.differences(_report(ROW), {**_report(other), "hosts": {}}) == []


def test_rows_that_say_the_same_are_told_once() -> None:
    strict, same_user = {**ROW, "profile": "strict"}, {**ROW, "shape": "same-user"}
    (one,) = report.collapsed([ROW, strict, same_user])
    assert one["where"] == "everywhere"
    first, second = report.collapsed([ROW, {**strict, "got": "EACCES at add_key"}, same_user])
    assert (first["where"], second["where"]) == ("hosted worker, same-user worker", "hosted strict")


def test_what_is_saved_is_what_is_read_one_row_a_line(tmp_path: Path) -> None:
    said = _report(ROW, {**ROW, "profile": "strict"})
    report.save(said, tmp_path / "r.json")
    assert report.load(tmp_path / "r.json") == said
    lines = (tmp_path / "r.json").read_text().splitlines()
    assert sum('"id": "keyrings.add"' in line for line in lines) == 2


def test_a_page_shows_what_is_red_and_escapes_what_was_answered() -> None:
    said = _report({**ROW, "ok": False, "got": "ESCAPED: a|b <c>"})
    said["mutations"] = [{**MUTATION, "ok": False}]
    page = pages.page(copy.deepcopy(said))
    assert "1 red" in page
    assert "RED: ESCAPED: a\\|b &lt;c>" in page
    assert "NOT NOTICED" in page


def test_the_image_is_the_same_whenever_it_is_sealed_and_holds_every_class() -> None:
    digests = []
    for _ in range(2):
        sealed = image.seal(examine().python)
        sealed.close()
        digests.append(sealed.digest)
    assert digests[0] == digests[1]
    assert set(image.sources()) >= {f"escape.attempts.{each.kind}" for each in ATTEMPTS.values()}


def test_the_command_line_shows_a_report() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spl.cli.main", "escape", "report", "-o", "json"],
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == report.load()
