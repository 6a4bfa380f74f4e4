"""What to do about a refusal: the line of a profile that lifts it, or the promise of the floor that no line can lift.

A line is judged by laying it over the profile and asking the floor and this host, so that what is advised is what a
person could write, and what is not advised would be refused to them as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bwrap import floor, lines, sources, trying
from bwrap.errors import LayerError, ProfileError
from bwrap.mounts import mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bwrap.host import Host
    from bwrap.lines import Line
    from bwrap.plan import Places
    from bwrap.profile import Profile
    from bwrap.refusals import Refused

DRAFT = "(a line to add)"
"""What stands for the file of a text that is laid over a profile to be judged."""

CONSTRUCTION = "by construction"
"""Stands for the name of a promise of the floor that no row holds, since no profile has a word against it."""

_WRITABLE = "of the host nothing is writable: a profile has no word for it"
_WORDLESS = {
    "mounts": (CONSTRUCTION, _WRITABLE),
    "separate_user": (None, "it is the file's own mode that closes it to that uid: open it on the host"),
}


class Advice(NamedTuple):
    """The line that lifts a refusal; where there is none, why, and the row of the floor that forbids it."""

    line: Line | None
    floor: str | None
    reason: str

    def wire(self) -> dict[str, str | None]:
        """Give it by name: the line as TOML, and by itself the header that it stands under and what stands there."""
        return {
            "line": str(self.line) if self.line else None,
            "header": self.line.header if self.line else None,
            "entry": "\n".join(self.line.entries) if self.line else None,
            "floor": self.floor,
            "reason": self.reason,
        }


class Adviser:
    """Judges lines laid over one profile, on this host; each is judged once."""

    def __init__(
        self, profile: Profile, draft: Callable[[str, str, str], Profile], host: Host, places: Places
    ) -> None:
        """Take a profile, and `Library.draft` of the library it came from."""
        self._profile, self._draft = profile, draft
        self._host, self._places = host, places
        self._known: dict[tuple[Line, ...], Advice] = {}

    def on(self, refused: Refused, upon: Sequence[Line] = ()) -> Advice:
        """Say what to do about a refusal that was met under some lines laid over the profile."""
        if refused.line is not None:
            return self.judge(refused.line, upon)
        if refused.answer == "SIGSYS":
            return Advice(None, CONSTRUCTION, "calls of another architecture of the same machine are killed")
        row, reason = _WORDLESS.get(refused.layer, (None, "no line of a profile is known to lift it"))
        return Advice(None, row, reason)

    def judge(self, line: Line, upon: Sequence[Line] = ()) -> Advice:
        """Say whether a profile could have a line beside others that it has, and what forbids it."""
        key = (line, *upon)
        if key not in self._known:
            self._known[key] = self._judged(line, upon)
        return self._known[key]

    def _judged(self, line: Line, upon: Sequence[Line]) -> Advice:
        text = f"extends = {lines.quoted(self._profile.name)}\n\n{lines.document([*upon, line])}"
        try:
            laid = self._draft("draft", text, DRAFT)
            # Only what this line breaks: the profile may lie below the floor already.
            for breach in floor.breaches(laid):
                if breach.fault.file == DRAFT:
                    return Advice(None, breach.row.name, breach.row.sentence)
            for mount in mounts(trying.without_worker_socket(laid), self._host.python, self._places).found:
                if mount.examined is not None:
                    sources.require_reachable(mount.examined, self._host.shape)
        except LayerError as error:
            row = "home" if error.layer == "home" else None
            said = f"this host cannot show it: expected {error.expected}, observed {error.observed}"
            return Advice(None, row, said)
        except ProfileError as error:
            if line.key == "tmpfs":
                return Advice(None, CONSTRUCTION, f"{_WRITABLE} ({error.reason})")
            return Advice(None, None, error.reason)
        return Advice(line, None, "")
