"""What this library says when it refuses: a profile that is not valid, or a layer that is not as claimed."""

from __future__ import annotations

from bwrap.text import printable


class ConfinementError(Exception):
    """Base of the library's errors."""


class ProfileError(ConfinementError):
    """A profile that cannot be used; the message names the file, the place in it and the reason.

    Lines and columns count from 1; `excerpt` is that line with carets under the fault, or empty.
    """

    def __init__(
        self,
        file: str,
        place: str,
        reason: str,
        *,
        line: int | None = None,
        column: int | None = None,
        excerpt: str = "",
    ) -> None:
        self.file = printable(file)
        self.place = printable(place)
        self.reason = printable(reason)
        self.line = line
        self.column = column
        self.excerpt = excerpt
        where = ":".join(str(each) for each in (self.file, line, column) if each is not None)
        super().__init__(
            f"profile {where}: {self.place}: {self.reason}" if place else f"profile {where}: {self.reason}"
        )

    def wire(self) -> dict[str, object]:
        """Give the facts by name, for answers; what is not known is null."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "place": self.place,
            "reason": self.reason,
            "excerpt": self.excerpt,
        }


class LayerError(ConfinementError):
    """A layer that could not be set up or confirmed; the process, if there was one, is dead."""

    def __init__(self, layer: str, *, expected: str, observed: str, remedy: str) -> None:
        self.layer = layer
        self.expected = printable(expected)
        self.observed = printable(observed)
        self.remedy = printable(remedy)
        super().__init__(f"layer {layer}: expected {self.expected}, observed {self.observed}; {self.remedy}")

    def wire(self) -> dict[str, str]:
        """Give the four facts by name, for records and answers."""
        return {
            "layer": self.layer,
            "expected": self.expected,
            "observed": self.observed,
            "remedy": self.remedy,
        }
