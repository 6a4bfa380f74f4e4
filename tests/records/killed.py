"""Work in a child that is killed at any one moment."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from spl.records import schema

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

EVENTS = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "sqlite3.connect"}
CHANGES = ("BEGIN", "CREATE", "PRAGMA user_version =", "COMMIT")


def killed_at(moment: int, work: Callable[[], object], *, statements: bool = False) -> bool:
    """Do something in a child that is killed as it asks the system for something on a file the nth time.

    With `statements` each statement that changes a log is such a moment too. Gives whether it came to its end before.
    """
    child = os.fork()
    if child == 0:
        left = moment

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def hook(event: str, args: object) -> None:
            if event in EVENTS:
                count()

        execute = schema._Connection.execute

        def counted(connection: schema._Connection, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
            if sql.startswith(CHANGES):
                count()
            return execute(connection, sql, parameters)

        try:
            sys.addaudithook(hook)
            if statements:
                schema._Connection.execute = counted  # type: ignore[assignment, method-assign]
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL)
    return code == 0
