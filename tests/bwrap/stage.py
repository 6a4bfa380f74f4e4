"""What a daemon has around a launch, without the daemon: a home with a secret, a worker socket, plan and image."""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import shutil
import socket
import tempfile
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

from bwrap import arguments as made
from bwrap import findings, layers
from bwrap import host as hosts
from bwrap.launch import Launch, launch
from bwrap.ledger import Ledger
from bwrap.library import Library
from bwrap.plan import Places, Plan, resolve
from bwrap.receipt import confirm
from bwrap.sealed import Sealed
from escape.weakened import without_words
from spl.transports import image as images

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from bwrap.confined import Confined
    from bwrap.findings import Finding
    from bwrap.process import Process
    from bwrap.receipt import Confirmed

ROOT = Path(images.__file__).resolve().parent.parent
SECRET = "a line of the real home"

examine = cache(hosts.examine)


class Stage:
    """One instance's places, removed at the end; `home` names its folder, to try odd names."""

    def __init__(self, home: str = "home") -> None:
        self._stack = ExitStack()
        self.folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="spl-", dir="/tmp"))
        os.chmod(self.folder, 0o711)
        self.home = f"{self.folder}/{home}"
        os.mkdir(self.home, 0o700)
        os.mkdir(f"{self.home}/run")
        Path(f"{self.home}/token").write_text(SECRET)
        self.listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self.listener.bind(f"{self.folder}/w")
        os.chmod(f"{self.folder}/w", 0o666)
        self.listener.listen(16)
        self.listener.setblocking(False)
        self.ledger = Ledger(f"{self.home}/run/workers")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def plan(self, name: str = "worker", extra: str = "") -> Plan:
        """Resolve a shipped profile, or one that extends it by some lines of TOML."""
        if extra:
            Path(self.folder, "other.toml").write_text(f'extends = "{name}"\n{extra}')
            name = "other"
        return resolve(
            Library(Path(self.folder)).load(name), examine(), Places(self.home, f"{self.folder}/w")
        )

    def image(self, changes: str = "") -> Sealed:
        """Seal the real worker's program, with lines added that change what it does and may use `json` and `os`."""
        if not changes:
            return self._own(images.seal(examine().python))
        root = f"{self.folder}/sources"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
        with open(f"{root}/worker/program.py", "a") as file:
            file.write(f"\nimport json, os\n{changes}\n")
        return self._own(images.seal(examine().python, root=Path(root)))

    def program(self, source: str) -> Sealed:
        """Seal any program at all."""
        code = marshal.dumps(compile(source, "<program>", "exec"))
        return self._own(Sealed("program", importlib.util.MAGIC_NUMBER + bytes(12) + code))

    async def launch(
        self, plan: Plan | None = None, image: Sealed | None = None, seconds: float = 30
    ) -> Confined:
        """Launch as a daemon does."""
        return await launch(plan or self.plan(), image or self.image(), self.ledger, seconds=seconds)

    def workers(self) -> list[str]:
        """Give the names of the entries that the ledger holds on disk."""
        return os.listdir(f"{self.home}/run/workers")

    def _own(self, image: Sealed) -> Sealed:
        self._stack.callback(image.close)
        return image


@contextmanager
def judged() -> Iterator[dict[str, list[Finding]]]:
    """Have each launch in this context judge *every* layer by the production table, then refuse as it always does.

    Gives the findings by layer: a launch stops at the first that is red, and a test may be after another.
    """
    found: dict[str, list[Finding]] = {}

    def look(process: Process, answer: bytes, nonce: str, digest: str) -> tuple[Confirmed, ...]:
        results = json.loads(answer)["results"]
        for layer in layers.table(process.plan, process.shape):
            found[layer.name] = findings.judge(process, layer, results)
        return confirm(process, answer, nonce, digest)

    with patch("bwrap.launch.confirm", look):
        yield found


@contextmanager
def options(change: Callable[[list[str]], list[str]]) -> Iterator[None]:
    """Change what the launches in this context tell bubblewrap; what they claim and look for stays."""
    given = made.arguments

    def arguments(plan: Plan) -> tuple[str, ...]:
        return tuple(change(list(given(plan))))

    with patch.object(made, "arguments", arguments):
        yield


def without(*words: str) -> Callable[[list[str]], list[str]]:
    """Take one option and its values out of a list; it must be there."""
    return lambda said: without_words(said, words)


def attempting(*rows: list[Any]) -> Any:
    """Have the launches in this context try more than the layers ask for; the answers count for nothing."""
    given = Launch._specification

    def specification(self: Launch) -> str:
        said = json.loads(given(self))
        said["attempts"] += rows
        return json.dumps(said)

    return patch.object(Launch, "_specification", specification)
