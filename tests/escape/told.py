"""A row and a mutation, as a report holds them."""

from __future__ import annotations

ROW = {
    "id": "keyrings.add", "shape": "hosted", "profile": "worker", "layer": "syscalls", "class": "keyrings",
    "expected": "EPERM at add_key", "got": "EPERM at add_key", "ok": True,
}  # fmt: skip
MUTATION = {
    "layer": "network", "name": "the daemon's network", "shape": "hosted", "profile": "worker", "lifted": [],
    "own": ["network.tcp"], "red": {"network.tcp": "ESCAPED"}, "red_before": {}, "unmade": [], "ok": True,
}  # fmt: skip
