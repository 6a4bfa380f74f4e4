"""Build a release into dist/: wheel, sdist, the list of the pins, and the SHA-256 of each. `make release`.

It refuses unless what is committed is what would be released, the change log has this version with a date, the escape
suite's report was made of these very programs and profiles without a red row, and the pages of long use and of other
Pythons were made of this version. docs/releasing.md has the whole procedure.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from bwrap import host
from bwrap.library import Library
from escape import image, report
from escape.attempts import ATTEMPTS
from spl import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parent.parent
_DIST = _ROOT / "dist"
_SHAPES = ("same-user", "hosted")
_PAGES = {"docs/soak.md": f"| spl | {__version__} |", "docs/matrix.md": f"with spl {__version__}:"}


def refusals() -> Iterator[str]:
    """Say, in a sentence each, what stands in the way of a release of this checkout, and what to do."""
    if changed := _git("status", "--porcelain", "--untracked-files=all").splitlines():
        yield f"{len(changed)} files are not as committed, the first is {changed[0][3:]}: commit them or take them away"
    newest = re.search(r"^## (?!Unreleased$)(.*)$", _read("CHANGELOG.md"), re.MULTILINE)
    if newest is None or not re.fullmatch(re.escape(__version__) + r" \(\d{4}-\d\d-\d\d\)", newest[1]):
        yield f"CHANGELOG.md has no heading '## {__version__} (YYYY-MM-DD)' above its other releases: write it"
    if pending := re.search(r"^## Unreleased\n+(?!##? )(.+)", _read("CHANGELOG.md"), re.MULTILINE):
        yield f"CHANGELOG.md says {pending[1]!r} under 'Unreleased': put it under this version"
    section = re.search(
        rf"^## {re.escape(__version__)} .*?(?=^## |\Z)", _read("CHANGELOG.md"), re.MULTILINE | re.DOTALL
    )
    if section and "Nothing has been released yet." in section[0]:
        yield f"CHANGELOG.md says under {__version__} that nothing has been released yet: take the line out"
    yield from _escape_refusals()
    for name, line in _PAGES.items():
        if line not in _read(name):
            yield f"{name} is of another version: run 'make {Path(name).stem}' (as root)"


def _escape_refusals() -> Iterator[str]:
    """Say in what the kept report is not one of this tree on this host, or is not green."""
    remedy = "run 'make escape' (as root)"
    said = report.load()
    if said["version"] != __version__:
        yield f"the escape suite's report is of version {said['version']}, not {__version__}: {remedy}"
    library = Library()
    shipped = {name: library.load(name).digest for name in library.shipped()}
    if said["profiles"] != shipped:
        yield f"the escape suite's report is of other profiles: {remedy}"
    # Sealed as the suite does it: what it runs depends on the interpreter and on libseccomp as well.
    with closing(image.seal(host.find_python(host.Shape.HOSTED))) as sealed:
        digest = sealed.digest
    for shape in _SHAPES:
        if said["hosts"].get(shape, {}).get("image") != digest:
            yield f"the escape suite's report in the shape {shape} is of another program, or of another host: {remedy}"
    # Each attempt in each shape under each profile, or why there is nothing to attempt; `*` is all of them.
    told = {(each["id"], each["shape"], each["profile"]) for each in (*said["rows"], *said["lacks"])}
    lacking = [
        f"{name} ({shape}, {profile})"
        for shape, profile in product(_SHAPES, shipped)
        for name in ATTEMPTS
        if not {(name, shape, profile), ("*", shape, profile)} & told
    ]
    lacking += [
        f"a layer's absence ({shape})"
        for shape in set(_SHAPES) - {each["shape"] for each in said["mutations"]}
    ]
    if lacking:
        yield f"the escape suite's report lacks {len(lacking)} parts of the suite, the first is {lacking[0]}: {remedy}"
    for row in said["rows"]:
        if not row["ok"]:
            yield f"{row['id']} is red ({row['shape']}, {row['profile']}): mend what it found, then {remedy}"
    for each in said["mutations"]:
        if not each["ok"]:
            yield f"without {each['layer']} nothing turns red ({each['shape']}): mend its attempts, then {remedy}"


def build() -> None:
    """Build into an empty dist/. Hatchling gives every file a time of its own, so that all get the same bytes."""
    shutil.rmtree(_DIST, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build"], cwd=_ROOT, env={"PATH": os.defpath}, check=True
    )
    shutil.copyfile(_ROOT / "requirements" / "sbom.cdx.json", _DIST / f"spl-{__version__}.cdx.json")
    shutil.copyfile(_ROOT / "requirements" / "runtime.txt", _DIST / f"spl-{__version__}.requirements.txt")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(_DIST.iterdir())
    ]
    (_DIST / "SHA256SUMS").write_text("".join(lines), encoding="ascii")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout


def _read(name: str) -> str:
    return (_ROOT / name).read_text(encoding="utf-8")


def main() -> None:
    """Refuse, with every reason, or build; exits 1 when it refuses."""
    if reasons := list(refusals()):
        sys.exit("".join(f"release: {reason}\n" for reason in reasons) + "release: nothing was built")
    build()
    commit = _git("rev-parse", "HEAD").strip()
    sys.stdout.write(f"release: dist/ has {__version__} of {commit}; tag that commit v{__version__}\n")


if __name__ == "__main__":
    main()
