"""The daemon, which says at its end what it has imported since it announced itself: run as `spl.cli.main` is."""

from __future__ import annotations

import atexit
import json
import sys

from spl.cli import serve
from spl.cli.main import main

_announce = serve._announce


def _announced(text: str, output: str | None) -> None:
    before = frozenset(sys.modules)
    atexit.register(lambda: _tell(sys.modules.keys() - before))
    _announce(text, output)


def _tell(imported: set[str]) -> None:
    sys.stderr.write(json.dumps({"event": "imported", "modules": sorted(imported)}) + "\n")


if __name__ == "__main__":
    serve._announce = _announced
    main()
