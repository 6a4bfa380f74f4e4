"""Make of what `cyclonedx-py` read, on standard input, the document that is kept: on standard output.

Each component gets the hashes that its pin admits, whichever of its wheels is installed; one of an extra is optional.
Addresses are left out, for a mirror serves the same bytes, and so is what differs from one release of the tool to the
next.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_PIN = re.compile(r"^([a-z0-9-]+)==(\S+)((?:\\\n|[^#\n])*)", re.MULTILINE)


def pins(name: str) -> dict[str, list[str]]:
    """Give a file's pins, as package URLs (`pkg:pypi/NAME@VERSION`), each with its SHA-256 hashes."""
    text = (_HERE / f"{name}.txt").read_text(encoding="utf-8")
    return {
        f"pkg:pypi/{found[1]}@{found[2]}": re.findall(r"--hash=sha256:([0-9a-f]{64})", found[3])
        for found in _PIN.finditer(text)
    }


def main() -> None:
    """Read, add, leave out, write; raises `KeyError` for a component that no pin names."""
    said = json.load(sys.stdin)
    runtime, optional = pins("runtime"), pins("bwrap")
    for component in said["components"]:
        purl = component["purl"]
        component.pop("externalReferences", None)
        component["scope"] = "required" if purl in runtime else "optional"
        component["hashes"] = [
            {"alg": "SHA-256", "content": digest} for digest in {**optional, **runtime}[purl]
        ]
    del said["metadata"]["tools"]
    sys.stdout.write(json.dumps(said, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
