"""The process of the `spl` command: what is done before click is loaded, and how it ends."""

from __future__ import annotations

import gc
import sys
from typing import Final, NoReturn

INTERRUPTED: Final = 130

_NARROWEST, _WIDEST = 50, 78


def main() -> NoReturn:
    """Run the command of this process's arguments and exit with its status."""
    status = INTERRUPTED
    try:
        if sys.argv[1:] in (["--help"], ["-h"]) and _helped():
            status = 0
        else:
            # Until the command is loaded: all that is made meanwhile stays, and there is nothing to collect.
            gc.disable()
            from spl.cli.calling import call  # noqa: PLC0415 - and with it click

            status = call()
    except KeyboardInterrupt:
        pass
    sys.exit(status)


def _helped() -> bool:
    """Print the help of `spl` itself, as wide as click does; where that fails, click is to meet it again."""
    import shutil  # noqa: PLC0415 - for help alone

    from spl.cli.commands import overview  # noqa: PLC0415

    if sys.stdout is None:
        return False
    width = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size().columns - 2))
    try:
        sys.stdout.write(overview(width))
        sys.stdout.flush()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
