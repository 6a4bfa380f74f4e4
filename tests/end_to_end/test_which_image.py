"""Which program a worker is: the installed one, whatever a daemon is started with."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from bwrap import host
from bwrap.host import Shape as HostShape
from spl import daemon as daemons
from spl.errors import InvalidBody, SettingsInvalid
from spl.kernel import names
from spl.settings import load
from spl.transports import image

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape


@pytest.mark.parametrize(
    "name", ["image", "worker", "worker_image", "worker_program", "loop", "python", "root"]
)
def test_no_setting_names_another_worker(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsInvalid):
        load({"home": str(tmp_path / "none"), name: "/tmp/worker.pyc"}, {})
    with pytest.raises(SettingsInvalid):
        load({"home": str(tmp_path / "none")}, {f"SPL_{name.upper()}": "/tmp/worker.pyc"})
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(f'{name} = "/tmp/worker.pyc"\n')
    with pytest.raises(SettingsInvalid):
        load({"home": str(home)}, {})


def test_who_serves_or_tries_a_daemon_cannot_name_a_worker() -> None:
    assert list(inspect.signature(daemons.serve).parameters) == ["settings", "announce", "notifier"]
    assert list(inspect.signature(daemons.trial).parameters) == ["settings"]


@pytest.mark.claim("M4")
def test_whatever_a_daemon_is_started_with_its_workers_are_the_installed_ones(
    hosted: Shape, home: Path
) -> None:
    sealed = image.seal(host.find_python(HostShape.HOSTED))
    sealed.close()
    for flag in ("--image", "--worker", "--worker-image"):
        assert hosted.run("serve", "--home", str(home), flag, "/tmp/worker.pyc").returncode == 2
    for folder in (home, home / "profiles", home / "data"):
        folder.mkdir(mode=0o700)
        (folder / "spl" / "worker").mkdir(parents=True)
        (folder / "spl" / "worker" / "program.py").write_text("raise SystemExit(99)\n")
    planted = dict.fromkeys(("IMAGE", "WORKER", "WORKER_IMAGE", "PYTHONSTARTUP", "PYTHONHASHSEED"), "7")
    with hosted.daemon(home, PYTHONUSERBASE=str(home), **planted) as daemon:
        daemon.set_transport("sandboxed")
        for topic in ("worker_image", "work_loop_image"):
            with pytest.raises(InvalidBody):
                daemon.configure(topic=topic, image="/tmp/worker.pyc")
        with pytest.raises(InvalidBody):
            daemon.start(image="/tmp/worker.pyc")
        row = daemon.finish(daemon.start()["thread"])
        (receipt,) = daemon.bodies(row["thread"], names.ISOLATION)

    assert (row["outcome"], receipt["image_digest"]) == ("completed", sealed.digest)
