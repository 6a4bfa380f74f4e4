"""A traced command tried confined, again and again: what it is tried under, and whether it runs as it ran free."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import stat
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Final

from bwrap import drafting, lines, seccomp, trying
from bwrap.errors import LayerError, ProfileError
from bwrap.mounts import Kind
from bwrap.refusals import writable as writable_line
from bwrap.trying import Streams
from bwrap.usage import Usage, limit_lines, measured
from spl.cli.profiles.free import PIECE, Ended
from spl.cli.profiles.refused import known
from spl.cli.profiles.trial import reachable
from spl.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bwrap.host import Host
    from bwrap.library import Library
    from bwrap.lines import Line
    from bwrap.plan import Places
    from bwrap.profile import Profile
    from bwrap.refusals import Refused
    from bwrap.seccomp import Filter, Rules
    from bwrap.uids import Pool
    from spl.home import Home

_CALLED_OFF: Final = frozenset(
    128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
)


class Trial:
    """A command and what its draft is made upon."""

    def __init__(
        self,
        library: Library,
        over: Profile,
        name: str,
        words: Sequence[str],
        host: Host,
        places: Places,
        home: Home,
    ) -> None:
        self._library, self._over, self._name, self._words = library, over, name, words
        self._host, self._places, self._home = host, places, home
        self._filters: dict[str, Filter] = {}

    def text(self, drafted: Sequence[Line], remarks: Sequence[str] = ()) -> str:
        """Give the draft as a profile."""
        description = f"What {shown(os.path.basename(self._words[0]))!r} needs beyond {self._over.name!r}."
        return drafting.text(self._over.name, description, drafted, remarks)

    def prepared(self, drafted: Sequence[Line]) -> trying.Prepared:
        """Give the command as it is tried under a draft; raises what `trying.prepare` does."""
        profile = reachable(self._library.draft(self._name, self.text(drafted)), self._home, self._places)
        return trying.prepare(profile, self._host, self._places, self._words, compiled=self._compiled)

    def _compiled(self, rules: Rules) -> Filter:
        """Compile some rules once: each time takes longer than the run it is for."""
        key = repr((sorted(rules.allow), sorted(rules.when.items()), sorted(rules.refuse.items())))
        if key not in self._filters:
            self._filters[key] = seccomp.compile_filter(rules)
        return self._filters[key]

    def candidates(self, usage: Usage, seconds: float) -> list[Line]:
        """Give a line for all that was used and is not there: calls, files, a folder to write in, limits."""
        plan = self.prepared([]).plan
        shown_now = [mount.target for mount in plan.find(Kind.READ_ONLY)]
        never = [str(self._home.path), os.path.expanduser("~"), self._host.python.library]
        scratch = [path for path in usage.changed if path.startswith("/tmp/")]  # noqa: S108 - inside the sandbox
        written = [path for path in usage.changed if path not in scratch]
        paths = drafting.sources_of(usage.opened, shown_now, never)
        # Calls last: what is left out first is files, under a filter that is compiled already.
        return [
            *([lines.folder_in_memory("@scratch")] if scratch else []),
            *filter(None, (writable_line(os.fsencode(path)) for path in written)),
            *map(_shown, paths),
            *limit_lines(measured(usage, seconds), self._over.limits),
            *usage.refused,
        ]


class Attempt:
    """Runs the command confined under a draft, and holds it against the free run."""

    def __init__(self, trial: Trial, free: Ended, tracer: str, pool: Pool) -> None:
        self._trial, self._free, self._tracer, self._pool = trial, free, tracer, pool
        self.ended = free

    def __call__(self, drafted: Sequence[Line], *, watched: bool) -> tuple[bool, list[Refused]]:
        """Run it once; gives whether it ended as it did free, and what is known to have been refused.

        Raises `LayerError` and `ProfileError` for a draft that it cannot be tried under, if it is `watched`.
        """
        try:
            prepared = self._trial.prepared(drafted)
            # Closed whatever happens, for an interrupt may come before it has begun.
            with closing(self._run(prepared, watched=watched)) as running:
                tried, self.ended = asyncio.run(running)
        except (LayerError, ProfileError):
            if watched:
                raise
            # Without some line what another shows cannot be mounted, or nothing can start: then it is needed.
            return False, []
        if self.ended.status in _CALLED_OFF and self._free.status not in _CALLED_OFF:
            # A signal goes on to the command that runs now; whoever sent it means all of them.
            raise KeyboardInterrupt
        return self.ended == self._free, known(tried)

    async def _run(self, prepared: trying.Prepared, *, watched: bool) -> tuple[trying.Tried, Ended]:
        """Run it with its output into a pipe that is read as it comes, and its complaints unseen."""
        seen = hashlib.sha256()
        loop = asyncio.get_running_loop()
        with ExitStack() as held:
            given = _reopened(0)
            held.callback(os.close, given)
            quiet = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            held.callback(os.close, quiet)
            reading, writing = os.pipe2(os.O_CLOEXEC)
            held.callback(os.close, reading)
            os.set_blocking(reading, False)
            drained = loop.create_future()

            def take() -> None:
                with suppress(BlockingIOError):
                    if piece := os.read(reading, PIECE):
                        seen.update(piece)
                        return
                    loop.remove_reader(reading)
                    drained.set_result(None)

            loop.add_reader(reading, take)
            try:
                tried = await trying.run(
                    prepared,
                    strace=self._tracer if watched else None,
                    pool=self._pool,
                    streams=Streams(given, writing, quiet),
                )
            finally:
                os.close(writing)
            await drained
        return tried, Ended(tried.status, seen.hexdigest())


def is_file(descriptor: int) -> bool:
    """Tell whether a descriptor is open on a regular file."""
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _reopened(descriptor: int) -> int:
    """Give a file anew from its beginning, and nothing in the place of what can be read but once."""
    path = f"/proc/self/fd/{descriptor}" if is_file(descriptor) else os.devnull
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _shown(path: str) -> Line:
    try:
        return lines.show(path)
    except ValueError:
        # A name for nothing, so that it is told of as what no profile can have.
        return lines.show(f"/{shown(path)}?")
