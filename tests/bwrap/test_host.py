from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from bwrap import host
from bwrap.errors import LayerError
from bwrap.host import Shape
from tests.end_to_end.daemon import wait_until_gone

if TYPE_CHECKING:
    from pathlib import Path


def only_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every search for a program end in this folder: no host is without /usr/bin."""
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path: found(name, path=str(folder)))


def script(folder: Path, text: str, name: str = "bwrap") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_this_host_has_all_that_is_needed() -> None:
    found = host.examine()

    assert found.shape is (Shape.HOSTED if os.geteuid() == 0 else Shape.SAME_USER)
    assert found.bubblewrap.digest == host.file_digest(found.bubblewrap.path)
    assert found.bubblewrap.version[0].isdigit()
    assert os.path.realpath(found.bubblewrap.path) == found.bubblewrap.path
    assert os.path.isfile(f"{found.python.library}/os.py")


def test_a_host_without_bubblewrap_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_in(tmp_path, monkeypatch)

    with pytest.raises(LayerError, match="install the package 'bubblewrap'") as caught:
        host.find_bubblewrap(Shape.SAME_USER)

    assert caught.value.layer == "sandbox"


@pytest.mark.parametrize("bit", [0o4000, 0o2000])
def test_a_setuid_bubblewrap_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bit: int) -> None:
    script(tmp_path, "exit 0").chmod(0o755 | bit)
    only_in(tmp_path, monkeypatch)

    with pytest.raises(LayerError, match="is setuid or setgid"):
        host.find_bubblewrap(Shape.SAME_USER)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit 0", " answers nothing to --help"),
        ("kill $$", " answers nothing to --help"),
        ("echo --args --seccomp --disable-usernsX", " does not know --block-fd"),
        (
            "case $1 in --version) echo bubblewrap 0.3.0;; *) echo --bind;; esac",
            r" \(0\.3\.0\) does not know --args",
        ),
    ],
)
def test_a_bubblewrap_without_an_option_that_is_needed_is_refused_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    path = script(tmp_path, text)
    only_in(tmp_path, monkeypatch)

    with pytest.raises(LayerError, match=rf"{path}{said}; install bubblewrap 0\.8\.0 or later"):
        host.find_bubblewrap(Shape.SAME_USER)


def test_a_bubblewrap_that_cannot_be_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "").write_bytes(b"\0\0\0")
    only_in(tmp_path, monkeypatch)

    with pytest.raises(LayerError, match="to answer, observed Exec format error"):
        host.find_bubblewrap(Shape.SAME_USER)


def test_a_bubblewrap_that_never_answers_is_given_up_and_nothing_of_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its child has the pipe too, and would hold it open.
    script(tmp_path, f"echo $$ > {tmp_path}/pid; cat /dev/zero > /dev/null & echo $! >> {tmp_path}/pid; wait")
    only_in(tmp_path, monkeypatch)
    monkeypatch.setattr(host, "_ASK_SECONDS", 1)

    with pytest.raises(LayerError, match="to answer, observed no end of it within 1 s"):
        host.find_bubblewrap(Shape.SAME_USER)

    for pid in (tmp_path / "pid").read_text().split():
        wait_until_gone(int(pid))


def test_a_bubblewrap_that_prints_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, "exec cat /dev/zero")
    only_in(tmp_path, monkeypatch)

    with pytest.raises(LayerError, match="to answer, observed more than 1 MiB"):
        host.find_bubblewrap(Shape.SAME_USER)


@pytest.mark.parametrize("said", [r"\377\033[2J", "bubblewrap", "bubblewrap 0.8.0 or so"])
def test_a_bubblewrap_whose_version_makes_no_sense_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    script(tmp_path, f"printf '{said}\\n'; echo {' '.join(host._NEEDED_OPTIONS)}")
    only_in(tmp_path, monkeypatch)

    with pytest.raises(LayerError, match="to say its version") as caught:
        host.find_bubblewrap(Shape.SAME_USER)

    assert str(caught.value).isprintable()


@pytest.mark.claim("I9")
def test_what_a_hosted_worker_cannot_reach_is_refused_by_the_layer_of_its_own_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    script(closed, "exit 0")
    only_in(closed, monkeypatch)

    with pytest.raises(LayerError, match="which is closed to others") as caught:
        host.find_bubblewrap(Shape.HOSTED)

    assert caught.value.layer == "separate_user"


def test_a_program_that_others_may_not_execute_is_out_of_reach() -> None:
    # Reachable folders all the way, and a file that is not: what a careless umask leaves.
    with subprocess.Popen(["/bin/mktemp", "-p", "/tmp"], stdout=subprocess.PIPE, text=True) as made:
        path = made.communicate()[0].strip()
    try:
        with pytest.raises(LayerError, match=f"{path} is closed to others"):
            host.require_reachable("the interpreter", path, Shape.HOSTED)
        host.require_reachable("the interpreter", path, Shape.SAME_USER)
    finally:
        os.unlink(path)


def test_an_interpreter_out_of_reach_gives_way_to_the_systems_when_hosted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    own = shutil.copy(os.path.realpath(sys.executable), closed / "python3")
    monkeypatch.setattr(sys, "_base_executable", str(own), raising=False)

    assert host.find_python(Shape.HOSTED).path == os.path.realpath("/usr/bin/python3")


def test_an_interpreter_within_reach_is_the_daemons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))

    found = host.find_python(Shape.SAME_USER)

    assert found.path == own
    assert found.version == ".".join(str(part) for part in sys.version_info[:3])


def test_a_host_without_an_interpreter_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "_base_executable", str(script(tmp_path, "exit 1", "python3")), raising=False)
    only_in(tmp_path, monkeypatch)

    with pytest.raises(LayerError, match="is no working interpreter; install the package 'python3'"):
        host.find_python(Shape.SAME_USER)


def test_an_older_python_is_refused(tmp_path: Path) -> None:
    old = script(tmp_path, "echo 3.10.9; echo /usr/lib/python3.10; echo; echo 50989552", "python3")

    with pytest.raises(LayerError, match=r"observed \S+ is 3\.10\.9; install a newer Python"):
        host.examine_python(str(old))


@pytest.mark.parametrize("program", ['shift 2\n"$@"\nexit', "exit 0"])
def test_an_env_that_does_not_become_the_program_it_starts_is_refused(tmp_path: Path, program: str) -> None:
    forking = tmp_path / "env"
    forking.write_text(f"#!/bin/sh\n{program}\n")
    forking.chmod(0o755)
    host.require_exec("/usr/bin/env", sys.executable)

    with pytest.raises(LayerError, match="becomes the program it starts"):
        host.require_exec(str(forking), sys.executable)


@pytest.mark.parametrize(("here", "mode"), [(Shape.HOSTED, 0o700), (Shape.SAME_USER, 0o600)])
def test_an_env_that_cannot_be_had_is_what_is_to_be_mended_and_not_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, here: Shape, mode: int
) -> None:
    found = shutil.which
    with tempfile.NamedTemporaryFile(dir="/tmp") as env:
        os.chmod(env.name, mode)
        monkeypatch.setattr(
            shutil, "which", lambda name, path=None: env.name if name == "env" else found(name, path=path)
        )

        with pytest.raises(LayerError, match=f"chmod a\\+rx {env.name}', or install .*coreutils") as caught:
            host.find_python(here)

    assert (caught.value.layer, env.name in caught.value.observed) == ("environment", True)


@pytest.mark.parametrize("answer", [r"\377\n\n\nx", r"3.12.0\n/usr\n\n\033[2J", "1\\n2\\n3\\n4\\n5"])
def test_an_interpreter_that_answers_nonsense_is_refused(tmp_path: Path, answer: str) -> None:
    odd = script(tmp_path, f"printf '{answer}\\n'", "python3")

    with pytest.raises(LayerError, match="install a newer Python") as caught:
        host.examine_python(str(odd))

    assert str(caught.value).isprintable()


def test_a_path_that_cannot_be_looked_at_is_refused() -> None:
    with pytest.raises(LayerError, match="to look at /usr/no-such, observed No such file or directory"):
        host.require_reachable("the interpreter", "/usr/no-such", Shape.HOSTED)


def test_libseccomp_is_found_with_its_version() -> None:
    assert host.find_libseccomp().count(".") == 2


def test_a_libseccomp_that_is_too_old_is_refused_by_the_layer_of_the_filter() -> None:
    assert host.require_libseccomp((2, 5, 0)) == "2.5.0"

    with pytest.raises(LayerError, match=r"2\.5 or later, observed libseccomp 2\.4\.4") as caught:
        host.require_libseccomp((2, 4, 4))

    assert caught.value.layer == "syscalls"


RIGHTS = "from bwrap import host; host.require_rights(host.Shape(__import__('sys').argv[1]))"


def rights(*prefix: str, shape: str = "hosted") -> str:
    """Give what is said of the rights of a process that is started so; empty when they suffice."""
    command = [*prefix, sys.executable, "-c", RIGHTS, shape]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return ended.stderr.strip().rpartition("\n")[2]


def test_root_has_the_rights_it_needs_and_an_ordinary_user_needs_none() -> None:
    assert rights() == ""
    assert rights("setpriv", "--bounding-set=-all", "--inh-caps=-all", shape="same-user") == ""


@pytest.mark.parametrize("name", ["setuid", "setgid", "kill", "sys_ptrace"])
def test_a_root_without_a_capability_it_needs_is_told_which(name: str) -> None:
    said = rights("setpriv", f"--bounding-set=-{name}", f"--inh-caps=-{name}")
    assert f"this root lacks CAP_{name.upper()};" in said
    assert "layer separate_user" in said


def test_one_of_the_two_capabilities_to_pass_any_folder_is_enough() -> None:
    either = ["dac_override", "dac_read_search"]
    for one in either:
        assert rights("setpriv", f"--bounding-set=-{one}", f"--inh-caps=-{one}") == ""
    both = ",".join(f"-{one}" for one in either)
    assert "lacks CAP_DAC_OVERRIDE or CAP_DAC_READ_SEARCH" in rights(
        "setpriv", f"--bounding-set={both}", f"--inh-caps={both}"
    )


def test_a_root_that_is_alone_in_its_user_namespace_is_told_so() -> None:
    assert "root is the only user in this one" in rights("unshare", "--user", "--map-root-user")


def test_shared_objects_are_the_linker_and_what_it_loads_each_of_them_there() -> None:
    objects = list(host.shared_objects(host.find_python(Shape.SAME_USER).path))

    assert all(os.path.isfile(path) for path in objects)
    assert any("ld-linux" in path for path in objects)
    assert any("libc.so" in path for path in objects)
    assert not any("vdso" in path for path in objects)
