"""What the machine decides is right for aarch64 as well, on which no test runs: the kernel's word for it is changed.

Its filters are simulated in `test_filter_meaning`.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from bwrap import elf, floor, groups, host, needs, seccomp
from bwrap.errors import LayerError
from bwrap.library import Library
from tests.bwrap.authored import written

LIBRARY = Library()
PROFILES = [name for name in LIBRARY.shipped() if name != "base"]
CALLS = sorted({call for _, calls in needs.CALLS.values() for call in calls})

# aarch64 was never given the older forms, and sets no register for threads by a call.
LATER_FORMS = {
    "access": "faccessat", "arch_prctl": None, "lstat": "newfstatat", "poll": "ppoll", "readlink": "readlinkat",
    "stat": "newfstatat",
}  # fmt: skip


@pytest.fixture(autouse=True)
def aarch64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernel say that this machine is one."""
    said = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*said[:4], "aarch64")))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")  # it keeps what it was told once


def there(call: str) -> str | None:
    """Give the call that does there what this one does here; None where there is nothing to do."""
    return LATER_FORMS.get(call, call)


@pytest.mark.parametrize("name", PROFILES)
def test_a_shipped_profile_has_all_that_a_run_needs_there_and_keeps_the_floor(name: str) -> None:
    profile = LIBRARY.load(name)

    assert seccomp.architecture() == "aarch64"
    assert needs.missing(profile) == []
    assert floor.breaches(profile) == []


@pytest.mark.parametrize("call", [call for call in CALLS if there(call)])
def test_a_profile_without_a_call_that_a_run_needs_there_is_refused(tmp_path: Path, call: str) -> None:
    profile = written(tmp_path, f'[syscalls]\nallow = ["!{there(call)}"]')

    assert f"it does not allow {there(call)}" in [lack.said for lack in needs.missing(profile)]


@pytest.mark.parametrize("name", PROFILES)
def test_a_shipped_profile_lets_through_the_same_there_by_the_later_forms(name: str) -> None:
    here, other = (
        {*rules.allow, *rules.when}
        for rules in (groups.rules(LIBRARY.load(name), arch) for arch in ("x86_64", "aarch64"))
    )

    assert here - other == LATER_FORMS.keys()
    assert other <= here
    assert {form for form in LATER_FORMS.values() if form} <= other


def test_a_program_of_that_machine_is_read_and_is_given_no_object_of_another(tmp_path: Path) -> None:
    data = bytearray(Path("/usr/bin/env").read_bytes())
    (tmp_path / "here").write_bytes(data)
    data[18:20] = (183).to_bytes(2, "little")  # e_machine: EM_AARCH64, elf.h
    (tmp_path / "there").write_bytes(data)

    # The linker, which it names itself; the objects of this host are another machine's.
    assert [os.path.basename(path)[:8] for path in elf.needs(str(tmp_path / "there"))] == ["ld-linux"]
    assert elf.needs(str(tmp_path / "here")) == []


def test_the_linker_that_is_asked_is_that_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def exists(path: str) -> bool:
        asked.append(path)
        return False

    monkeypatch.setattr(os.path, "exists", exists)

    with pytest.raises(LayerError, match="on aarch64"):
        next(host.shared_objects("/usr/bin/env"))

    assert asked == ["/lib/ld-linux-aarch64.so.1"]
