"""The garbage of a process that goes on for long: it is looked for seldom, and only among what came while it served."""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 5000
"""How many more objects must have been made than were let go before the young ones are looked through, which takes a
millisecond; Python's own 700 would have them looked through with every tenth verdict."""


def settle() -> None:
    """Take all that there is for what stays: no collection of garbage looks at it any more (`gc.freeze`).

    To look through all modules and classes takes a tenth of a second, in which nothing is answered, and Python would do
    it after every thousand verdicts. What is let go of is given back as ever, but for what refers to itself.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
