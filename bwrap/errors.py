"""What this library says when it refuses: a profile that is not valid, or a layer that is not as claimed."""

from __future__ import annotations

from bwrap.text import printable


class ConfinementError(Exception):
    """Base of the library's errors."""


class ProfileError(ConfinementError):
    """A profile that cannot be used; the message names the file, the place in it and the reason."""

    def __init__(self, file: str, place: str, reason: str) -> None:
        super().__init__(f"profile {file}: {place}: {reason}" if place else f"profile {file}: {reason}")
        self.file = file
        self.place = place
        self.reason = reason


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
