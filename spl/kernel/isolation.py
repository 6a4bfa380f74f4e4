"""The receipt of a run's isolation, as it comes on record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spl.kernel.names import instant
from spl.records.canonical import Formed

if TYPE_CHECKING:
    from datetime import datetime

Json = dict[str, Any]


def confirmed(receipt: Json, at: datetime) -> Json:
    """Give the receipt of a worker that was confirmed at this time.

    Nearly all of it is what was seen of each layer, which is brought into canonical form here, ahead of the run: a
    worker that stands by has the time, and a start has not.
    """
    return {**receipt, "layers": Formed.of(receipt["layers"]), "confirmed_at": instant(at)}


def looked_at(receipt: Json, at: datetime) -> Json:
    """Give a receipt that was `confirmed`, with the time of the second look."""
    return {**receipt, "looked_at": instant(at)}
