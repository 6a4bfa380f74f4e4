"""The numbers of system calls by name, which the image has written into it (see `image`)."""

from __future__ import annotations

NUMBERS: dict[str, int] = {}
