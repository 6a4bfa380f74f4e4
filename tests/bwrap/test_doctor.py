from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bwrap import doctor
from bwrap.doctor import Finding, Machine, Severity
from bwrap.errors import LayerError
from bwrap.host import Shape, shape
from bwrap.library import SHIPPED, Library
from tests.claims import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SYSCTL = "proc/sys"
CAUSES = [cause.name for cause in doctor.every_cause()]

# A host without a fault, as far as files say so.
SOUND = {
    f"{SYSCTL}/kernel/osrelease": "6.1.0-21-amd64\n",
    f"{SYSCTL}/kernel/unprivileged_userns_clone": "1\n",
    f"{SYSCTL}/kernel/apparmor_restrict_unprivileged_userns": "0\n",
    f"{SYSCTL}/kernel/seccomp/actions_avail": "kill_process kill_thread trap errno trace log allow\n",
    **{
        f"{SYSCTL}/user/max_{name}_namespaces": "10000\n"
        for name in ("user", "mnt", "net", "ipc", "uts", "cgroup", "pid")
    },
    "proc/self/status": "Name:\tspl\nSeccomp:\t0\nSeccomp_filters:\t0\n",
    "proc/meminfo": "MemTotal:  8000000 kB\nMemAvailable:  4000000 kB\n",
    "sys/kernel/security/lsm": "lockdown,capability,landlock,yama,apparmor\n",
}


def planted(root: Path, files: Mapping[str, str | None] = SOUND, *, profile: str = "worker") -> Machine:
    """Give a machine whose files are those of a sound host but for some; None takes one away."""
    for path, text in {**SOUND, **files}.items():
        if text is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, errors="surrogateescape")
    return Machine(shape(), Library().load(profile), str(root))


def finding(machine: Machine, name: str) -> Finding:
    """Give what is found under a cause's name."""
    (found,) = [each for each in doctor.examine(machine) if each.name == name]
    return found


def refusal(layer: str = "user_namespace", said: str = "Operation not permitted") -> LayerError:
    """Give what a launch makes of a bubblewrap that failed."""
    return LayerError(layer, expected="a sandbox", observed=f"bwrap: {said}", remedy="look into it")


def test_this_host_has_no_cause_that_keeps_workers_from_being_confined() -> None:
    findings = doctor.examine(Machine(shape(), Library().load("worker")))
    assert [each.name for each in findings] == CAUSES
    assert [each for each in findings if each.severity is Severity.FAILURE] == []
    assert all(each.observed for each in findings)


def test_a_sound_host_has_nothing_to_be_told(tmp_path: Path) -> None:
    findings = doctor.examine(planted(tmp_path))
    assert {each.severity for each in findings} == {Severity.OK}
    assert {(each.expected, each.remedy) for each in findings} == {("", "")}


@pytest.mark.parametrize(
    ("name", "path", "text", "severity", "observed"),
    [
        ("kernel", "kernel/osrelease", "5.13.19-generic", "warning", r"^Linux 5\.13\.19-generic$"),
        ("kernel", "kernel/osrelease", "4.18.0", "warning", r"^Linux 4\.18\.0$"),
        ("user namespaces", "kernel/unprivileged_userns_clone", "0", "failure", "clone is 0$"),
        ("namespace limits", "user/max_user_namespaces", "1", "failure", "max_user_namespaces is 1$"),
        ("namespace limits", "user/max_mnt_namespaces", "0", "failure", "max_mnt_namespaces is 0$"),
        ("namespace limits", "user/max_cgroup_namespaces", "0", "failure", "max_cgroup_namespaces is 0$"),
        ("AppArmor", "kernel/apparmor_restrict_unprivileged_userns", "1", "ok", "unprivileged_userns is 1$"),
        ("seccomp", "kernel/seccomp/actions_avail", "kill_thread allow", "failure", "are allow kill_thread$"),
        ("seccomp", "kernel/seccomp/actions_avail", None, "failure", "are none$"),
    ],
)
def test_a_setting_of_the_kernel_is_found_with_its_remedy(
    tmp_path: Path, name: str, path: str, text: str | None, severity: str, observed: str
) -> None:
    found = finding(planted(tmp_path, {f"{SYSCTL}/{path}": text}), name)
    assert found.severity == severity
    assert re.search(observed, found.observed)
    assert bool(found.remedy) == bool(found.expected) == (severity != "ok")


@pytest.mark.parametrize(
    "path",
    [
        f"{SYSCTL}/kernel/unprivileged_userns_clone",
        f"{SYSCTL}/kernel/apparmor_restrict_unprivileged_userns",
        f"{SYSCTL}/user/max_net_namespaces",
        "sys/kernel/security/lsm",
    ],
)
def test_a_setting_that_the_kernel_does_not_have_is_no_fault(tmp_path: Path, path: str) -> None:
    findings = doctor.examine(planted(tmp_path, {path: None}))
    assert {each.severity for each in findings} == {Severity.OK}


def test_a_namespace_that_the_profile_does_not_use_may_be_off(tmp_path: Path) -> None:
    off = {f"{SYSCTL}/user/max_pid_namespaces": "0"}
    assert finding(planted(tmp_path, off), "namespace limits").severity is Severity.OK
    strict = finding(planted(tmp_path, off, profile="strict"), "namespace limits")
    assert (strict.severity, strict.observed) == (Severity.FAILURE, "user.max_pid_namespaces is 0")


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv", "run/systemd/container"])
def test_a_container_is_seen_and_is_no_fault_by_itself(tmp_path: Path, mark: str) -> None:
    assert finding(planted(tmp_path), "container").observed == "no sign of one"
    found = finding(planted(tmp_path, {mark: ""}), "container")
    assert (found.severity, "the inside of a container" in found.observed) == (Severity.OK, True)


def test_too_little_memory_for_one_worker_is_a_warning_with_both_numbers(tmp_path: Path) -> None:
    found = finding(planted(tmp_path, {"proc/meminfo": "MemAvailable:   524287 kB\n"}), "memory")
    assert (found.severity, found.observed) == (Severity.WARNING, "511 MiB are available")
    assert "512 MiB" in found.expected
    enough = planted(tmp_path, {"proc/meminfo": "MemAvailable:   524288 kB\n"})
    assert finding(enough, "memory").severity is Severity.OK


@pytest.mark.parametrize("garbage", ["", "x", "\x1b[2J\udcff\n", "9" * 5000, "a folder"])
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("kernel", f"{SYSCTL}/kernel/osrelease"),
        ("user namespaces", f"{SYSCTL}/kernel/unprivileged_userns_clone"),
        ("namespace limits", f"{SYSCTL}/user/max_uts_namespaces"),
        ("AppArmor", f"{SYSCTL}/kernel/apparmor_restrict_unprivileged_userns"),
        ("seccomp", f"{SYSCTL}/kernel/seccomp/actions_avail"),
        ("memory", "proc/meminfo"),
    ],
)
def test_what_cannot_be_read_is_never_ok_and_reaches_no_terminal(
    tmp_path: Path, name: str, path: str, garbage: str
) -> None:
    machine = planted(tmp_path, {path: None if garbage == "a folder" else garbage})
    if garbage == "a folder":
        (tmp_path / path).mkdir(parents=True)
    found = finding(machine, name)
    assert found.severity is not Severity.OK
    assert found.observed.isprintable()
    assert found.remedy


def test_without_a_profile_what_depends_on_it_is_left_out() -> None:
    names = [each.name for each in doctor.examine(Machine(shape(), None))]
    assert [name for name in CAUSES if name not in names] == ["namespace limits", "limits", "memory"]


@pytest.mark.parametrize("limit", ["as", "nofile", "fsize", "nproc", "cpu", "core"])
def test_a_hard_limit_below_the_profiles_is_found(limit: str) -> None:
    script = (
        "from bwrap import doctor; from bwrap.host import shape; from bwrap.library import Library\n"
        "import resource; hard = resource.RLIMIT_{0}, ({1}, {1})\n"
        "machine = doctor.Machine(shape(), Library().load('worker')); resource.setrlimit(*hard)\n"
        "print(next(each for each in doctor._CAUSES if each.name == 'limits').look(machine))"
    ).format(
        limit.upper(), {"as": 400 << 20, "nofile": 32, "fsize": 4096, "nproc": 0, "cpu": 30, "core": 0}[limit]
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert f"RLIMIT_{limit.upper()} is limited to" in ended.stderr
    assert "LayerError: layer limits" in ended.stderr


@pytest.mark.parametrize(
    ("files", "layer", "remedy"),
    [
        ({f"{SYSCTL}/kernel/unprivileged_userns_clone": "0"}, "user_namespace", "'sysctl kernel.unprivileged"),
        ({f"{SYSCTL}/user/max_user_namespaces": "0"}, "user_namespace", "'sysctl user.max_user_namespaces="),
        ({f"{SYSCTL}/user/max_net_namespaces": "0"}, "network", "'sysctl user.max_net_namespaces="),
        ({f"{SYSCTL}/kernel/apparmor_restrict_unprivileged_userns": "1"}, "user_namespace", "apparmor_parser -r"),
        ({".dockerenv": ""}, "user_namespace", "--security-opt seccomp=unconfined"),
        ({"proc/self/status": "Seccomp:\t2\nSeccomp_filters:\t1\n"}, "user_namespace", "security.nesting=true"),
    ],
)  # fmt: skip
def test_a_failure_of_bubblewraps_is_told_with_its_cause(
    tmp_path: Path, files: dict[str, str], layer: str, remedy: str
) -> None:
    told = doctor.explain(refusal(), planted(tmp_path, files))
    assert told.layer == layer
    assert told.observed.endswith("; bwrap: Operation not permitted")
    assert remedy in told.remedy


def test_apparmor_is_blamed_for_a_loopback_that_cannot_be_set_up_too(tmp_path: Path) -> None:
    machine = planted(tmp_path, {f"{SYSCTL}/kernel/apparmor_restrict_unprivileged_userns": "1"})
    assert "AppArmor profile" in doctor.explain(refusal("network"), machine).expected


@pytest.mark.parametrize("said", ["No space left on device", "Can't mkdir /x: Read-only file system", ""])
@pytest.mark.parametrize("layer", ["user_namespace", "network", "mounts"])
def test_what_is_only_suspected_is_not_blamed_for_what_was_not_a_matter_of_permission(
    tmp_path: Path, layer: str, said: str
) -> None:
    machine = planted(
        tmp_path, {".dockerenv": "", f"{SYSCTL}/kernel/apparmor_restrict_unprivileged_userns": "1"}
    )
    error = refusal(layer, said)
    assert doctor.explain(error, machine) is error


def test_a_path_that_is_closed_is_no_fault_of_a_container(tmp_path: Path) -> None:
    machine = planted(
        tmp_path, {".dockerenv": "", f"{SYSCTL}/kernel/apparmor_restrict_unprivileged_userns": "1"}
    )
    error = refusal("mounts", "Can't find source path /x: Permission denied")
    assert doctor.explain(error, machine) is error


def test_a_process_too_many_is_told_as_that_whatever_else_is_wrong(tmp_path: Path) -> None:
    machine = planted(tmp_path, {".dockerenv": "", f"{SYSCTL}/user/max_user_namespaces": "0"})
    said = "Creating new namespace failed: Resource temporarily unavailable"
    told = doctor.explain(refusal(said=said), machine)
    assert (told.layer, told.observed) == ("limits", f"bwrap: {said}")
    assert "RLIMIT_NPROC" in told.remedy


def test_the_first_cause_of_the_table_is_the_one_that_is_blamed(tmp_path: Path) -> None:
    files = {".dockerenv": "", f"{SYSCTL}/user/max_user_namespaces": "0"}
    assert "max_user_namespaces" in doctor.explain(refusal(), planted(tmp_path, files)).observed


@pytest.mark.parametrize("layer", ["sandbox", "syscalls", "home", "uts", "image"])
def test_a_failure_that_no_cause_explains_is_told_as_it_is(tmp_path: Path, layer: str) -> None:
    machine = planted(tmp_path, {".dockerenv": "", f"{SYSCTL}/user/max_user_namespaces": "0"})
    error = refusal(layer)
    assert doctor.explain(error, machine) is error


def test_a_host_that_cannot_be_looked_at_leaves_a_failure_as_it_is(tmp_path: Path) -> None:
    machine = planted(tmp_path, dict.fromkeys(SOUND, "\x1b garbage"))
    error = refusal()
    assert doctor.explain(error, machine) is error


@pytest.mark.parametrize(
    ("severities", "worst"),
    [([], "ok"), (["ok", "warning"], "warning"), (["failure", "ok", "warning"], "failure")],
)
def test_the_worst_finding_counts(severities: list[str], worst: str) -> None:
    findings = [Finding("x", Severity(each), "seen") for each in severities]
    assert doctor.worst(findings) == worst


def test_a_finding_leaves_out_what_there_is_nothing_to_say_of() -> None:
    assert Finding("x", Severity.OK, "seen").wire() == {"name": "x", "severity": "ok", "observed": "seen"}
    refused = Finding.of("x", refusal())
    assert refused.wire() == {
        "name": "x",
        "severity": "failure",
        "observed": "bwrap: Operation not permitted",
        "expected": "a sandbox",
        "remedy": "look into it",
    }


def test_the_apparmor_profile_of_the_remedy_gives_the_systems_bubblewrap_user_namespaces_and_nothing_else(
    tmp_path: Path,
) -> None:
    machine = planted(tmp_path, {f"{SYSCTL}/kernel/apparmor_restrict_unprivileged_userns": "1"})
    path = shlex.split(doctor.explain(refusal(), machine).remedy)[1]
    assert path == str(SHIPPED / "apparmor" / "spl-bwrap")
    assert os.path.isfile(path)
    # By its text: the parser of the hosts that CI runs on is older than the rule.
    text = (SHIPPED / "apparmor" / "spl-bwrap").read_text()
    rules = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert rules == [
        "abi <abi/4.0>,",
        "include <tunables/global>",
        "profile spl-bwrap /{usr/,usr/local/,}bin/bwrap flags=(unconfined) {",
        "userns,",
        "include if exists <local/spl-bwrap>",
        "}",
    ]


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_is_described_on_the_doctors_page(name: str) -> None:
    assert f"| {name} |" in (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")


def test_no_two_causes_have_one_name() -> None:
    assert len(set(CAUSES)) == len(CAUSES)


def test_the_shape_that_is_examined_is_the_machines_and_not_this_process(tmp_path: Path) -> None:
    machine = Machine(Shape.SAME_USER, Library().load("worker"), str(tmp_path))
    assert "an ordinary user" in finding(machine, "rights").observed
