from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from bwrap import floor, groups, layers, seccomp
from bwrap.explain import explained
from bwrap.library import Library
from bwrap.plan import Places, resolve
from tests.bwrap.stage import Stage, examine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.profile import Profile

LIBRARY = Library()
WORKER = LIBRARY.load("worker")
ODD = """\
extends = "strict"
description = "It can do nothing whatever, and nobody need look."

[namespaces]
net = false
uts = false

[filesystem]
read_only = ["/etc/passwd", "?/no/such/file"]
tmpfs = [{ path = "@scratch", size = "4M" }]
proc = "own"

[syscalls]
allow = ["kill", "clone", "@write-files"]
"""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        os.chmod(stage.folder, 0o755)
        yield stage


def page(stage: Stage, profile: Profile) -> dict[str, Any]:
    plan = resolve(profile, examine(), Places(stage.home, f"{stage.folder}/w"))
    return explained(profile, plan, WORKER, stage.home)


def said(document: dict[str, Any], title: str) -> str:
    (found,) = [section["lines"] for section in document["sections"] if title in section["title"]]
    return "\n".join(found)


def test_what_a_worker_can_do_and_cannot_is_said(stage: Stage) -> None:
    document = page(stage, WORKER)
    assert (document["above_floor"], document["can_run"], document["remarks"]) == (True, True, [])
    assert "Above the floor" in said(document, "What this is")
    assert "nothing but a loopback device" in said(document, "can reach")
    assert "worker socket of its daemon" in said(document, "can reach")
    assert "no file system in memory" in said(document, "change")
    assert "It can touch none" in said(document, "signal")
    assert "one task for ever" in said(document, "signal")
    assert "Any other call answers ENOSYS." in said(document, "system calls")
    assert said(document, "differs") == "It is that profile."
    assert said(document, "Breaches") == "None."
    assert "kernel is shared" in said(document, "does not protect")


def test_every_call_a_profile_names_is_on_its_page(stage: Stage) -> None:
    for profile in (WORKER, LIBRARY.draft("odd", ODD)):
        text = said(page(stage, profile), "system calls")
        words = set(text.replace("(", " ").replace(",", " ").replace(".", " ").replace(":", " ").split())
        assert [call for call in profile.chosen(seccomp.architecture()) if call not in words] == []
        for call in groups.rules(profile, seccomp.architecture()).when:
            assert f"If {call}(argument " in text


def test_the_page_goes_by_what_is_resolved_and_never_by_the_description(stage: Stage) -> None:
    profile = LIBRARY.draft("odd", ODD)
    document = page(stage, profile)
    text = "\n".join(line for section in document["sections"] for line in section["lines"])
    assert profile.description not in text
    assert (document["above_floor"], document["can_run"]) == (False, False)
    assert "BELOW THE FLOOR, 4 breaches" in said(document, "What this is")
    assert "Network: THE HOST'S" in said(document, "can reach")
    assert "/etc/passwd (odd.toml:9)" in said(document, "can reach")
    assert "Optional, and not there: /no/such/file." in said(document, "can reach")
    assert "/proc of its own" in said(document, "can reach")
    assert "write in @scratch, 4M in memory" in said(document, "change")
    assert "CAN MAKE: kill." in said(document, "signal")
    assert "IT HAS THE HOST'S OWN NAMES" in said(document, "signal")
    assert "can start others: clone, at most 1" in said(document, "signal")
    assert "+ namespaces.net" in said(document, "differs")
    assert "odd.toml:5" in said(document, "differs")
    assert "breach: syscalls.allow[0]" in said(document, "Breaches")
    assert "(odd.toml:14)" in said(document, "Breaches")
    assert "Nothing of the host's net namespace is held back" in said(document, "does not protect")


@pytest.mark.parametrize(
    ("text", "said_of_it"),
    [
        ("", "It cannot ask for them: uname is refused, and it has no /proc."),
        ('[syscalls]\nallow = ["uname"]', "It reads them by uname."),
        ('[namespaces]\npid = true\n[filesystem]\nproc = "own"', "It reads them by its /proc."),
    ],
)
def test_the_hosts_name_is_said_to_be_read_where_it_is_and_never_to_be_changed(
    stage: Stage, text: str, said_of_it: str
) -> None:
    others = said(page(stage, LIBRARY.draft("own", f'extends = "worker"\n{text}')), "signal")
    assert said_of_it in others
    assert "can change neither of the host's (uts namespace)" in others


def test_a_call_that_is_taken_away_is_told_with_the_line_that_takes_it(stage: Stage) -> None:
    own = LIBRARY.draft("own", 'extends = "worker"\n\n[syscalls]\nallow = ["!getgroups"]')
    differs = said(page(stage, own), "differs")
    assert differs == "- syscalls getgroups: refused: ENOSYS, where it has allowed (own.toml:4)"


def test_the_most_memory_is_the_sum_of_what_is_listed(stage: Stage) -> None:
    for profile in (WORKER, LIBRARY.draft("odd", ODD)):
        document = page(stage, profile)
        plan = resolve(profile, examine(), Places(stage.home, f"{stage.folder}/w"))
        terms = document["worst_case"]
        assert document["worst_case_bytes"] == plan.worst_case == sum(term["total"] for term in terms)
        assert all(term["total"] == term["number"] * term["each"] > 0 for term in terms)
        assert len(said(document, "most memory").splitlines()) == 1 + len(terms)


def test_every_layer_stands_there_claimed_or_not_with_the_rows_it_keeps(stage: Stage) -> None:
    text = said(page(stage, WORKER), "layers")
    lines = text.splitlines()
    for layer in layers.every_layer():
        assert any(line.startswith((f"{layer.name}: ", f"Not claimed: {layer.name} (")) for line in lines)
    kept = ", ".join(line.partition(": ")[2] for line in lines if "rows of the floor" in line).split(", ")
    assert sorted(kept) == sorted(row.name for row in floor.FLOOR)


def test_a_profile_that_comes_to_nothing_here_is_explained_as_far_as_it_can_be() -> None:
    document = explained(LIBRARY.load("base"), None, WORKER, "/no/home", "there is no such file")
    assert "On this host it comes to nothing: there is no such file" in said(document, "What this is")
    assert "NO RUN CAN START WITH IT" in said(document, "What this is")
    assert (document["worst_case_bytes"], document["shape"], document["worst_case"]) == (None, None, [])
    assert "read: nothing" in said(document, "can reach")
