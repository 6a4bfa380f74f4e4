"""Exports and logs that are not what was written: made from one real export, and what may come of verifying them."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spl.errors import InvalidBody, SplError
from spl.records.canonical import canonical
from spl.records.record import Draft, record_id
from spl.records.sqlite import SqliteStore
from spl.records.verification import records_of, verify_log, verify_thread
from tests.fuzz.files_json import bent
from tests.fuzz.files_judged import require, sentence
from tests.fuzz.files_made import mutated, text

if TYPE_CHECKING:
    from random import Random

    from spl.records.verification import Verification

ORIGINAL = Path(__file__).parent / "seeds" / "exports" / "original.json"
"""The export of a run that the real kernel wrote; the last record of its chain is the last of all."""

_HASHED = ("parents", "thread", "actor", "act", "body", "clock", "data_type")


def export(random: Random) -> bytes:
    """Give the export with something in it changed: its bytes, its JSON, or its records, hashed anew or not."""
    match random.randrange(6):
        case 0 | 1:
            return mutated(random, ORIGINAL.read_bytes())
        case 2:
            return json.dumps(bent(random, _original())).encode()
        case _:
            listing = deepcopy(_original())
            for _ in range(random.choice((1, 1, 2, 5))):
                _change(random, listing["data"])
            return json.dumps(listing).encode()


def log(random: Random) -> bytes:
    """Give a log that holds the export's records, with some of its bytes flipped, cut off or moved."""
    found = bytearray(_log())
    for _ in range(random.choice((1, 1, 2, 8, 64))):
        at = random.randrange(max(len(found), 1))
        match random.randrange(12):
            case 0:
                del found[at:]
            case 1:
                found[at:at] = random.randbytes(random.choice((1, 512, 4096)))
            case 2:
                page, other = (random.randrange(0, len(found) + 1, 4096) for _ in range(2))
                found[page : page + 4096] = found[other : other + 4096]
            case 3 | 4 if len(found) > 100:
                found[random.randrange(100)] = random.randrange(256)
            case 5:
                found[at : at + 64] = random.randbytes(64)
            case _ if found:
                found[at] ^= 1 << random.randrange(8)
    return bytes(found)


def export_judged(data: bytes) -> str:
    """A verification or `InvalidBody`; `whole` only where every record that counts is what was exported."""
    try:
        records = records_of(data)
        found = verify_thread(records, head=_original()["data"][-1]["id"])
    except InvalidBody as error:
        sentence(error.message)
        return "refused"
    _told(found)
    if found.verdict == "whole":
        require(not found.findings.count, "it is whole, with findings")
        chained = {record["id"]: _hashed(record) for record in records}
        outside = {each.id for each in found.outside}
        for record in _original()["data"]:
            # Of a record outside the chain the head says nothing, as the chain does not.
            if record["judged_by"] is None and record["actor"] != "did:sync:user:mia":
                require(chained.get(record["id"]) == _hashed(record), f"it is whole without {record['id']}")
        known = {record["id"] for record in _original()["data"]}
        require(
            set(chained) - known <= outside, "it is whole, with a record in its chain that was not exported"
        )
    return found.verdict


def log_judged(data: bytes) -> str:
    """A verification, or an error of the log's."""
    with tempfile.TemporaryDirectory(prefix="spl-fuzz-") as folder:
        path = Path(folder) / "hub.db"
        path.write_bytes(data)
        try:
            found = verify_log(path)
        except SplError as error:
            sentence(error.message)
            return error.code
        require(path.read_bytes() == data, "the log was written to")
    _told(found)
    return found.verdict


def _told(found: Verification) -> None:
    json.dumps(found.wire(), ensure_ascii=False, allow_nan=False).encode()
    require(
        (found.verdict == "not verified") == bool(found.findings.count),
        f"{found.verdict}, with {found.findings}",
    )
    for each in found.findings:
        sentence(each.text)


def _hashed(record: dict[str, Any]) -> bytes:
    return canonical({name: record.get(name) for name in _HASHED})


def _change(random: Random, records: list[Any]) -> None:
    """Change, drop, double or move one record; half of those that are changed bear the id of what they are now."""
    if not records:
        return
    at = random.randrange(len(records))
    record = records[at]
    match random.randrange(8):
        case 0:
            del records[at]
        case 1:
            records.insert(random.randrange(len(records) + 1), deepcopy(record))
        case 2:
            records.insert(random.randrange(len(records)), records.pop(at))
        case _ if isinstance(record, dict):
            name = random.choice((*record, "body", "body", text(random)))
            before = record.get(name)
            record[name] = before
            while record[name] == before:
                record[name] = random.choice(
                    (bent(random, before), 0, -1, 2**63, 1e300, "", None, True, [], {}, text(random))
                )
            if random.random() < 0.5:
                _rehash(record)


def _rehash(record: dict[str, Any]) -> None:
    try:
        record["id"] = record_id(*(record[name] for name in _HASHED))
    except (InvalidBody, KeyError):
        record["id"] = "0" * 64


@cache
def _original() -> dict[str, Any]:
    listing: dict[str, Any] = json.loads(ORIGINAL.read_bytes())
    return listing


@cache
def _log() -> bytes:
    with tempfile.TemporaryDirectory(prefix="spl-fuzz-") as folder:
        path = os.path.join(folder, "hub.db")
        asyncio.run(_write(path))
        return Path(path).read_bytes()


async def _write(path: str) -> None:
    store = await SqliteStore.open(path)
    for record in _original()["data"]:
        fields = {
            name: record[name]
            for name in ("thread", "actor", "act", "body", "clock", "data_type", "judged_by")
        }
        await store.append([Draft(**fields, parents=tuple(record["parents"]))])
    await store.close()
