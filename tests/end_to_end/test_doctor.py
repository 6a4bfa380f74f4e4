"""`spl doctor` on this host, and on hosts with one thing wrong: the daemon's refusal names the same cause."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from bwrap import layers
from spl.errors import HostDoubtful, HostUnfit, IsolationUnavailable
from tests.end_to_end.daemon import SECONDS
from tests.end_to_end.faults import EITHER, HOSTED, become, in_mounts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.end_to_end.daemon import Shape
    from tests.end_to_end.faults import Fault


def examine(
    shape: Shape, home: Path, *, prefix: Sequence[str] = (), status: int = 0, **environment: str
) -> dict[str, Any]:
    """Have the doctor look at a host as the shape's user, and give its document."""
    done = subprocess.run(
        [*prefix, *become(shape), *shape.spl("doctor", "-o", "json", "--home", str(home))],
        env={**shape.environment, **environment},
        cwd="/",
        text=True,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert (document["object"], document["shape"]) == ("doctor", shape.name)
    return document


def found(document: dict[str, Any], severity: str) -> list[dict[str, str]]:
    return [each for each in document["findings"] if each["severity"] == severity]


def test_a_host_where_all_is_well_is_told_so_with_every_layer_of_a_trial_worker(
    shape: Shape, home: Path
) -> None:
    scratch = home.with_name("scratch")
    scratch.mkdir()
    scratch.chmod(0o777)
    document = examine(shape, home, TMPDIR=str(scratch))
    assert document["status"] == "ok"
    assert {each["severity"] for each in document["findings"]} == {"ok"}
    listed = [
        each["name"].removeprefix("layer ") for each in document["findings"] if "layer " in each["name"]
    ]
    claimed = [row.name for row in layers.every_layer() if shape.name in row.shapes]
    assert set(listed) <= set(claimed)
    # The default profile has no process-id namespace, and not every kernel has Landlock.
    assert set(claimed) - set(listed) <= {"pid_namespace", "landlock"}
    (bubblewrap,) = [each for each in document["findings"] if each["name"] == "bubblewrap"]
    assert re.search(r"^/\S+, version [0-9.]+, SHA-256 [0-9a-f]{64}$", bubblewrap["observed"])
    assert not home.exists()
    assert list(scratch.iterdir()) == []


@pytest.mark.one_shape
def test_it_needs_no_daemon_and_minds_none(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        assert examine(shape, home)["status"] == "ok"
        assert daemon.request("GET", "/v1/engine/health")["isolation"]["layers"]


def check(shape: Shape, home: Path, fault: Fault) -> None:
    """See the doctor find a fault, and a sandboxed start be refused in the very same words."""
    folder = home.parent
    prefix, environment = fault.prefix(folder), dict(fault.environment(folder))
    document = examine(shape, home, prefix=prefix, status=HostUnfit.exit_status, **environment)
    assert document["status"] == "failure"
    (failure,) = found(document, "failure")
    assert failure["name"] == fault.finding
    assert re.search(fault.observed, failure["observed"]), failure
    assert re.search(fault.remedy, failure["remedy"]), failure
    assert failure["expected"]

    prefix += become(shape)
    with shape.as_root_first().daemon(home, prefix=prefix, **environment) as daemon:
        daemon.set_transport("sandboxed")
        with pytest.raises(IsolationUnavailable) as refused:
            daemon.start()
        assert refused.value.fields["layer"] == fault.layer
        for name in ("expected", "observed", "remedy"):
            # A uid or a pid in what bubblewrap says may differ, the cause that is named may not.
            assert str(refused.value.fields[name]).split(";")[0] == failure[name].split(";")[0]
        (refusal,) = daemon.bodies("th_engine_isolation")
        assert (refusal["kind"], refusal["layer"]) == ("core.work.refusal.v1", fault.layer)
        assert refusal["remedy"] == refused.value.fields["remedy"]
        assert daemon.request("GET", "/v1/runs")["data"] == []
        # In process it works all the same.
        daemon.set_transport("in_process")
        row = daemon.finish(daemon.start()["thread"])
        assert (row["transport"], row["state"]) == ("in_process", "done")


@pytest.mark.claim("I12")
@pytest.mark.parametrize("name", EITHER)
@pytest.mark.one_shape
def test_the_doctor_and_a_refused_start_name_the_same_cause(shape: Shape, home: Path, name: str) -> None:
    check(shape, home, EITHER[name])


@pytest.mark.claim("I12")
@pytest.mark.parametrize("name", HOSTED)
def test_the_doctor_and_a_refused_start_of_root_name_the_same_cause(
    hosted: Shape, home: Path, name: str
) -> None:
    check(hosted, home, HOSTED[name])


@pytest.mark.one_shape
def test_too_little_memory_is_a_warning_and_the_trial_is_made_all_the_same(shape: Shape, home: Path) -> None:
    meminfo = home.with_name("meminfo")
    meminfo.write_text("MemTotal: 1000000 kB\nMemAvailable: 1024 kB\n")
    prefix = in_mounts(f"mount --bind {meminfo} /proc/meminfo")
    document = examine(shape, home, prefix=prefix, status=HostDoubtful.exit_status)
    assert document["status"] == "warning"
    assert {each["name"]: each["observed"] for each in found(document, "warning")} == {
        "memory": "1 MiB are available",
        "admission": "sandboxed runs at once: none",
    }
    # What the daemon goes by is what it would be told.
    document = examine(
        shape, home, prefix=prefix, status=HostDoubtful.exit_status, SPL_ADMISSION_CAPACITY="3"
    )
    assert [each["name"] for each in found(document, "warning")] == ["memory"]
    assert "layer network" in [each["name"] for each in document["findings"]]
