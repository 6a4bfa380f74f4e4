"""The confined program from start to exit: probe, `ready`, credential, run.

It writes to the bare descriptors: a stream that fails to flush would change the exit status behind its back.
"""

from __future__ import annotations

import posix
import sys

from spl.loop.machine import DoorError, work
from spl.worker.doors import Doors
from spl.worker.jsontext import dumps, loads
from spl.worker.probe import attempt_all, is_closed

# hashlib costs 3 MiB for OpenSSL; Python 3.12 renamed the module beneath it.
if sys.version_info >= (3, 12):
    from _sha2 import sha256  # type: ignore[import-not-found]
else:
    from _sha256 import sha256  # type: ignore[import-not-found]

EXIT_DONE = 0
EXIT_NO_CREDENTIAL = 10
EXIT_DOOR = 11
EXIT_FAULT = 12

CREDENTIAL_LIMIT = 4096
"""Bytes on standard input, the JSON around the credential included."""


def main(argv: list[str]) -> int:
    """Do one run; `argv` is the image's path, the launch's nonce and the specification as JSON.

    The specification is `{"socket": path of the worker socket, "attempts": [[name, operation, …], …]}`.
    Before standard input is read, one line goes to standard output: `{"ready": nonce, "image": SHA-256 of the
    image, "results": {name: result}}`. Then standard input, up to its end, holds `{"credential": …}`.

    Gives the exit status: 0 done, 10 no credential came, 11 a door failed, 12 a fault. The last two say one
    line on standard error; nothing that is said holds the credential.
    """
    try:
        image, nonce, specification = argv
        if is_closed():
            # The daemon is gone: before its death could reach this process, or nothing would have been let go.
            return EXIT_NO_CREDENTIAL
        spec = loads(specification)
        results = attempt_all(spec["attempts"])
        _write(1, dumps({"ready": nonce, "image": _digest(image), "results": results}))
        credential = _credential()
        if credential is None:
            return EXIT_NO_CREDENTIAL
        _drive(Doors(spec["socket"], credential))
    except DoorError as error:
        _complain(str(error))
        return EXIT_DOOR
    except Exception as error:  # noqa: BLE001 - its text may hold what was being read, so only its name goes out
        _complain(type(error).__name__)
        return EXIT_FAULT
    return EXIT_DONE


def _drive(doors: Doors) -> None:
    loop = work()
    step = next(loop)
    try:
        while True:
            try:
                answer = doors.perform(*step)
            except DoorError as error:
                step = loop.throw(error)
            else:
                step = loop.send(answer)
    except StopIteration:
        return
    finally:
        doors.close()


def _digest(path: str) -> str:
    with open(path, "rb", buffering=0) as image:
        return str(sha256(image.readall()).hexdigest())


def _credential() -> str | None:
    received = b""
    while data := posix.read(0, CREDENTIAL_LIMIT + 1 - len(received)):
        received += data
        if len(received) > CREDENTIAL_LIMIT:
            raise ValueError("too much on standard input")
    if not received.strip():
        return None
    credential = loads(received)["credential"]
    # It becomes a header's value: one word of visible ASCII, or it could write headers of its own.
    if not (isinstance(credential, str) and credential.isascii() and credential.isprintable()):
        raise ValueError("not a credential")
    if not credential or " " in credential:
        raise ValueError("not a credential")
    return credential


def _write(descriptor: int, line: str) -> None:
    rest = f"{line}\n".encode()
    while rest:
        rest = rest[posix.write(descriptor, rest) :]


def _complain(line: str) -> None:
    try:
        _write(2, " ".join(line.split())[:1000])
    except OSError:
        # Nobody listens any more; the exit status still says what happened.
        return
