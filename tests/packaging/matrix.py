"""docs/matrix.md, made afresh: what of the suite passed on each Python that is here. `make matrix`, as root.

A Python on which anything fails leaves the page as it was. One that lies where only root may look is opened to others
for what is run on it alone, in a mount namespace of its own: the host stays as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spl import __version__
from tests.claims import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE: Final = ROOT / "docs" / "matrix.md"
MINORS: Final = ("3.11", "3.12", "3.13", "3.14")
MACHINES: Final = ("x86_64", "aarch64")
PINS: Final = ("runtime", "dev", "build")

INSTALLED: Final = ("tests/packaging",)
DAEMONS: Final = tuple(
    f"tests/end_to_end/test_{name}.py" for name in ("ends", "stop", "transport", "watching")
)
UNITS: Final = (
    *(
        f"tests/{room}"
        for room in (
            "api", "bench", "bwrap", "cli", "console", "inference", "kernel", "loop", "records", "tools", "transports",
            "worker",
        )
    ),
    *(f"tests/test_{name}.py" for name in ("client", "hardening", "home", "settings", "threads")),
)  # fmt: skip
PARTS: Final = {
    "what the wheel installs": (*INSTALLED,),
    "the other ways to install it": ("--soak", *INSTALLED),
    "daemons": DAEMONS,
    "units": ("-n", "auto", "--dist", "loadfile", *UNITS),
}
"""Each part's arguments for pytest; warnings are errors in all of them."""

INTRODUCTION: Final = """\
# Pythons and machines

What was run on which Python, with every warning an error. `make matrix` makes this page, as root, once all of it has
passed on each Python that it found; one of each minor release is taken.

- **what the wheel installs** is built, installed with its pins into an environment outside the checkout, and used there
  in both shapes: doctor, profiles, a daemon, a sandboxed run with its receipt, verification, an upgrade under a running
  daemon and the way back.
- **the other ways to install it** are pip without the pins, pipx, and an interpreter that only root may reach, under
  which hosted workers run on the system's; and the upgrade in the other shape.
- **daemons** are started, watched and stopped in both shapes, with event streams open.
- **units** are the tests of every room that need no daemon of their own or a short-lived one. Left to `make test`,
  which runs on one Python: the other tests with real daemons, the escape suite, the pages and the fuzzing.

Some tests hold a time, which a busy host fails: one that failed has a second try by itself, and counts if it passes.
"""

# Puts an empty folder, open to all, in the place of the one that is closed, with the interpreter where it was.
_OPEN: Final = """
hold=$(mktemp -d)
mount --bind "$0" "$hold"
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir -p "$0"
mount --move "$hold" "$0"
rmdir "$hold"
shift
exec "$@"
"""


class Failed(Exception):
    """A step did not pass; its text is all that was said."""


@dataclass
class Tried:
    """A Python, and of each part how many tests passed and how long it took, in seconds."""

    version: str
    parts: dict[str, tuple[int, float]] = field(default_factory=dict)


def find(minor: str) -> str | None:
    """Give an interpreter of a minor release, the system's before the PATH's and pyenv's; None if none is here."""
    name = f"python{minor}"
    kept = sorted(Path.home().glob(f".pyenv/versions/{minor}*/bin/{name}"), reverse=True)
    for path in map(shutil.which, (f"/usr/bin/{name}", name, *map(str, kept))):
        # A shim of pyenv's is there for releases that are not.
        if (
            path
            and subprocess.run([path, "-c", "import ensurepip, venv"], capture_output=True).returncode == 0
        ):
            return path
    return None


def ask(python: str, expression: str) -> str:
    """Give what an expression over `sys` and `platform` comes to in another interpreter."""
    command = [python, "-I", "-c", f"import platform, sys; print({expression})"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def opened(python: str) -> list[str]:
    """Give what goes before a command that other users must be able to run this interpreter from."""
    prefix = Path(ask(python, "sys.base_prefix"))
    closed = [folder for folder in prefix.parents if not folder.stat().st_mode & 0o001]
    return ["unshare", "--mount", "sh", "-euc", _OPEN, str(prefix), str(closed[-1])] if closed else []


def run(command: Sequence[str], **environment: str) -> str:
    """Run a command in the checkout; gives what it printed. Raises `Failed`."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=ROOT, env={**inherited, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


def attempt(python: str, folder: Path) -> Tried:
    """Run every part on an interpreter, from an environment with the pins of development. Raises `Failed`."""
    tried = Tried(ask(python, "platform.python_version()"))
    own = str(folder / "bin" / "python")
    pip = [own, "-m", "pip", "install", "--quiet"]
    say(f"Python {tried.version}: installing the pins")
    run([python, "-m", "venv", str(folder)])
    run([*pip, "--require-hashes", *(word for name in PINS for word in ("-r", f"requirements/{name}.txt"))])
    run([*pip, "--no-deps", "--no-build-isolation", "--editable", "."])
    for part, arguments in PARTS.items():
        began = time.monotonic()
        # Its caches are where the folder that is opened had them.
        environment = {"CI": "1", "PIP_CACHE_DIR": str(folder.with_name("pip"))}
        tests = [*opened(python), own, "-m", "pytest", "-q", "-o", f"cache_dir={folder.with_name('tests')}"]
        tests += ["--timeout", "600", *arguments]
        try:
            passed = count(run(tests, **environment))
        except Failed as failed:
            # Some tests hold a time, which a busy host fails: each has a second try, with nothing beside it.
            say(f"Python {tried.version}: {part}: {str(failed).splitlines()[-1]}")
            again = count(
                run([*tests, "-n", "0", "--last-failed", "--last-failed-no-failures", "none"], **environment)
            )
            passed = count(str(failed)) + again
        tried.parts[part] = (passed, time.monotonic() - began)
        say(f"Python {tried.version}: {part}: {passed} passed in {tried.parts[part][1]:.0f} s")
    return tried


def count(said: str) -> int:
    """Give how many tests passed, by pytest's last line."""
    passed = re.search(r"(\d+) passed", said.splitlines()[-1])
    return int(passed[1]) if passed else 0


def lacking(minor: str, machine: str) -> str | None:
    """Give the first pin that has no wheel for a Python on a machine, as pip says it; None when each has one."""
    kinds = (f"manylinux{kind}_{machine}" for kind in ("2014", "_2_17", "_2_28"))
    pins = (word for name in ("runtime", "bwrap") for word in ("-r", f"requirements/{name}.txt"))
    try:
        run(
            [
                *(
                    sys.executable,
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--dry-run",
                    "--no-deps",
                    "--require-hashes",
                ),
                *(
                    "--only-binary",
                    ":all:",
                    "--target",
                    "none",
                    "--implementation",
                    "cp",
                    "--python-version",
                    minor,
                ),
                *(word for kind in kinds for word in ("--platform", kind)),
                *pins,
            ]
        )
    except Failed as failed:
        found = re.search(r"No matching distribution found for (\S+)", str(failed))
        if found is None:
            raise
        return found[1]
    return None


def page(tried: Sequence[Tried], absent: Sequence[str], wheels: dict[tuple[str, str], str | None]) -> str:
    """Give the text of docs/matrix.md."""
    head = "".join(f" {each.version} |" for each in tried)
    rows = "".join(
        f"| {part} |"
        + "".join(f" {each.parts[part][0]} in {each.parts[part][1]:.0f} s |" for each in tried)
        + "\n"
        for part in PARTS
    )
    columns = "".join(f" {minor} |" for minor in MINORS)
    there = "".join(
        f"| {machine} |" + "".join(f" {wheels[minor, machine] or 'all'} |" for minor in MINORS) + "\n"
        for machine in MACHINES
    )
    lack = (
        f"\nNot found where this was made, and so not tried: Python {' and '.join(absent)}.\n"
        if absent
        else ""
    )
    return f"""\
{INTRODUCTION}
## What passed

On {os.uname().machine}, with spl {__version__}:

| tests passed |{head}
|---|{"---|" * len(tried)}
{rows}{lack}
## Wheels

Of which pins of the daemon (`requirements/runtime.txt`, `bwrap.txt`) there are wheels, for glibc 2.28 and later; where
not all, the first that has none:

| machine |{columns}
|---|{"---|" * len(MINORS)}
{there}
{MACHINES_TEXT}"""


MACHINES_TEXT: Final = """\
## Machines

x86_64 is where everything is run. **aarch64 is compiled for and simulated, and was not run on**:

- Each shipped profile's filter is compiled for aarch64 by the libseccomp of this host, and its program is run by a
  simulator of the kernel's filter machine on every call number up to 600, of every architecture that the kernel could
  name, and on every argument that a condition looks at. It must answer what the profile means, as that of x86_64 must
  (`tests/bwrap/test_filter_meaning.py`).
- With the kernel's word for the machine changed to aarch64, each shipped profile keeps the floor and has every call
  that a run needs there, by the forms that aarch64 has; a program of that machine is read for what it needs, and its
  dynamic linker is the one that is asked (`tests/bwrap/test_aarch64.py`).
- There are wheels of every pin, by the table above.

What that does not show: that a kernel of that machine answers as its tables say, that glibc and Python there make no
call beside those that a worker is allowed, that bubblewrap starts, and what anything costs. A worker whose calls are
refused there would not begin, and the refusal names the layer; it would not begin less confined.
"""


def say(line: str) -> None:
    """Tell how far it is."""
    sys.stderr.write(f"matrix: {line}\n")


def main() -> None:
    """Try each Python, and write the page if all passed; exits 1 otherwise."""
    tried, absent = [], []
    for minor in MINORS:
        python = find(minor)
        if python is None:
            absent.append(minor)
            continue
        with tempfile.TemporaryDirectory(prefix="spl-matrix-", dir="/tmp") as folder:
            os.chmod(folder, 0o755)
            try:
                tried.append(attempt(python, Path(folder, "environment")))
            except Failed as failed:
                sys.exit(
                    f"{failed}\nmatrix: {PAGE.name} is left as it was: not everything passed on Python {minor}"
                )
    say("looking for wheels")
    wheels = {(minor, machine): lacking(minor, machine) for minor in MINORS for machine in MACHINES}
    PAGE.write_text(page(tried, absent, wheels), encoding="utf-8")


if __name__ == "__main__":
    main()
