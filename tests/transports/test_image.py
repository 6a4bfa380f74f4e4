from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bwrap import host
from bwrap.errors import LayerError
from bwrap.host import Python, Shape
from spl.transports import image

if TYPE_CHECKING:
    from bwrap.sealed import Sealed

SOURCES = Path(image.__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def python() -> Python:
    return host.find_python(Shape.SAME_USER)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Give a copy of the worker's sources that a test may change."""
    root = tmp_path / "sources"
    shutil.copytree(SOURCES, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def content(sealed: Sealed) -> bytes:
    with os.fdopen(sealed.open(), "rb") as file:
        return file.read()


def digest(python: Python, root: Path = SOURCES) -> str:
    sealed = image.seal(python, root=root)
    sealed.close()
    return sealed.digest


def run(python: Python, sealed: Sealed, folder: Path) -> dict[str, object]:
    """Run the image from a file of its own, with nothing else in sight; give its first line."""
    file = folder / "worker.pyc"
    file.write_bytes(content(sealed))
    specification = json.dumps({"socket": "none", "attempts": [["who", "ids"]]})
    done = subprocess.run(
        [python.path, "-I", "-S", "-B", str(file), "nonce", specification],
        input=b"\n",
        capture_output=True,
        env={},
        cwd=folder,
    )
    assert (done.returncode, done.stderr) == (10, b"")
    said = json.loads(done.stdout)
    assert isinstance(said, dict)
    return said


def test_the_image_runs_from_one_file_and_the_standard_library(python: Python, tmp_path: Path) -> None:
    sealed = image.seal(python)

    said = run(python, sealed, tmp_path)

    assert (said["ready"], said["image"]) == ("nonce", sealed.digest)
    assert isinstance(said["results"], dict)
    assert list(said["results"]) == ["who"]
    sealed.close()


@pytest.mark.claim("I1")
def test_the_image_runs_where_nothing_but_it_and_the_interpreter_can_be_seen(
    python: Python, tmp_path: Path
) -> None:
    sealed = image.seal(python)
    seen = [python.path, python.library, *python.objects]
    links = {"/" + path.split("/", 2)[1] for path in seen}
    options = [
        word
        for link in sorted(links)
        if os.path.islink(link)
        for word in ("--symlink", os.readlink(link), link)
    ]
    for path in seen:
        folder, name = os.path.split(path)
        options += ["--ro-bind", path, os.path.join(os.path.realpath(folder), name)]
    descriptor = sealed.open()
    done = subprocess.run(
        [
            *(host.find_bubblewrap(Shape.SAME_USER).path, "--unshare-all", "--clearenv", *options),
            *("--ro-bind-data", str(descriptor), "/image.pyc", "--"),
            *(python.path, "-I", "-S", "-B", "/image.pyc", "nonce", '{"socket": "none", "attempts": []}'),
        ],
        input=b"\n",
        capture_output=True,
        pass_fds=[descriptor],
    )
    os.close(descriptor)
    sealed.close()

    assert (done.returncode, done.stderr) == (10, b"")
    assert json.loads(done.stdout)["image"] == sealed.digest


@pytest.mark.claim("M4")
def test_the_same_sources_give_the_same_digest_wherever_they_lie(python: Python, sources: Path) -> None:
    assert digest(python) == digest(python) == digest(python, sources)


@pytest.mark.claim("M4")
@pytest.mark.parametrize("name", sorted(image.MODULES.values()))
def test_a_change_of_any_source_changes_the_digest(python: Python, sources: Path, name: str) -> None:
    before = digest(python, sources)
    with open(sources / name, "a") as file:
        file.write("\nCHANGED = 1\n")

    assert digest(python, sources) != before


@pytest.mark.claim("M4")
def test_what_is_installed_after_the_sealing_changes_nothing(
    python: Python, sources: Path, tmp_path: Path
) -> None:
    sealed = image.seal(python, root=sources)
    before = content(sealed)
    for name in image.MODULES.values():
        (sources / name).write_text("raise SystemExit(99)\n")

    assert content(sealed) == before
    assert run(python, sealed, tmp_path)["image"] == sealed.digest
    sealed.close()


def test_the_image_holds_every_module_of_the_worker_and_of_its_loop() -> None:
    rooms = {f"{room}/{path.name}" for room in ("loop", "worker") for path in (SOURCES / room).glob("*.py")}

    assert set(image.MODULES.values()) == rooms | {"__init__.py"}


def test_sources_that_do_not_compile_are_a_refusal_that_names_the_error(
    python: Python, sources: Path
) -> None:
    (sources / "worker" / "probe.py").write_text("def (:\n")

    with pytest.raises(LayerError, match="SyntaxError") as caught:
        image.seal(python, root=sources)

    assert caught.value.layer == "image"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sys.modules['_json'] = None", "import of _json halted"),
        ("import _json; del _json.make_encoder", "cannot import name 'make_encoder'"),
        ("import _json; _json.make_encoder = lambda markers, default: None", "takes 2 positional arguments"),
        ("import _ctypes; del _ctypes.dlsym", "cannot import name 'dlsym'"),
    ],
    ids=["missing", "without", "otherwise", "ctypes"],
)
def test_an_interpreter_without_what_the_worker_imports_is_refused_when_it_is_sealed(
    python: Python, tmp_path: Path, change: str, said: str
) -> None:
    poor = tmp_path / "python"
    poor.write_text(
        f"#!{python.path} -IS\nimport sys\n{change}\nsys.argv = ['-c']\nexec(sys.orig_argv[-1])\n"
    )
    poor.chmod(0o755)

    with pytest.raises(LayerError, match=said) as caught:
        image.seal(replace(python, path=str(poor)))

    assert (caught.value.layer, caught.value.remedy) == ("image", "mend the installation of this interpreter")


def test_the_image_opens_no_socket_before_its_credential(python: Python, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "none"))
        listener.listen()
        listener.setblocking(False)
        sealed = image.seal(python)
        run(python, sealed, tmp_path)
        sealed.close()

        with pytest.raises(BlockingIOError):
            listener.accept()
