"""What a program needs of the host to start, read from its file (elf(5)) without running anything.

The dynamic linker could be asked instead, and is of the interpreter this host trusts. A command that is tried need not
be trusted: its file's own segments, mapped by a linker that runs outside the sandbox, could overwrite that linker.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# 64-bit, little-endian: the file's header from its machine on, a program header, an entry of the dynamic section.
_MAGIC = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16x2xH4x8xQ14xHH")
_SEGMENT = struct.Struct("<I4xQQ8xQ16x")
_ENTRY = struct.Struct("<qQ")
_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_NEEDED, _STRINGS, _STRINGS_SIZE, _RPATH, _RUNPATH = 1, 5, 10, 15, 29
_MACHINES = {"x86_64": 62, "aarch64": 183}
_MOST = 1 << 20
_MOST_ENTRIES, _LONGEST_NAME = 1024, 4096
"""Of a dynamic section, and bytes of a name: the file is anybody's, and each entry may name the whole string table."""


class _Said(NamedTuple):
    """What one file says: its linker, the names it needs, and where to look for them."""

    machine: int
    linker: str | None
    needed: list[str]
    folders: list[str]


def needs(program: str) -> list[str]:
    """Give the linker and the shared objects of a program, and theirs; nothing for what is no program of this machine.

    Looks where the linker looks in a sandbox that has no cache of it: in the folders the file names, and in the
    system's own (ld.so(8)). What is not found is not given: the linker will say so. Raises `OSError`.
    """
    # By name, as the linker knows them: what is loaded already is not looked for again.
    found: dict[str, str] = {}
    pending = [program]
    while pending:
        said = _read(pending.pop())
        if said is None or said.machine != _MACHINES.get(os.uname().machine):
            continue
        if said.linker is not None and os.path.isfile(said.linker):
            found.setdefault(os.path.basename(said.linker), said.linker)
        for name in said.needed:
            path = next(_places(name, said), None)
            if path is not None and os.path.basename(name) not in found:
                found[os.path.basename(name)] = path
                pending.append(path)
    return list(found.values())


def _places(name: str, said: _Said) -> Iterator[str]:
    machine = os.uname().machine
    system = [
        f"{top}/{folder}" for folder in (f"lib/{machine}-linux-gnu", "lib64", "lib") for top in ("", "/usr")
    ]
    for path in [name] if "/" in name else [f"{folder}/{name}" for folder in (*said.folders, *system)]:
        if os.path.isfile(path) and (other := _read(path)) is not None and other.machine == said.machine:
            yield path


def _read(path: str) -> _Said | None:
    """Read a file's dynamic section; None for what is no such file, or one that contradicts itself."""
    with open(path, "rb") as file:
        try:
            return _parse(file, os.path.dirname(os.path.realpath(path)))
        except (struct.error, ValueError, OverflowError):
            return None


def _parse(file: BinaryIO, origin: str) -> _Said | None:
    header = file.read(_HEADER.size)
    if not header.startswith(_MAGIC):
        return None
    machine, at, size, count = _HEADER.unpack(header)
    segments = [_SEGMENT.unpack(_part(file, at + size * index, _SEGMENT.size)) for index in range(count)]
    linker = None
    entries: list[tuple[int, int]] = []
    for kind, offset, _, length in segments:
        if kind == _INTERPRETER:
            linker = os.fsdecode(_part(file, offset, length).rstrip(b"\0"))
        elif kind == _DYNAMIC:
            whole = _part(file, offset, min(length // _ENTRY.size, _MOST_ENTRIES) * _ENTRY.size)
            entries = list(_ENTRY.iter_unpack(whole))
    values = dict(entries)
    strings = b""
    for kind, offset, address, length in segments:
        if kind == _LOAD and address <= values.get(_STRINGS, -1) < address + length:
            strings = _part(file, offset + values[_STRINGS] - address, values.get(_STRINGS_SIZE, 0))
            break

    def text(start: int) -> str:
        return os.fsdecode(strings[start : strings.index(b"\0", start, start + _LONGEST_NAME)])

    paths = text(values.get(_RUNPATH, values.get(_RPATH, 0))) if {_RUNPATH, _RPATH} & set(values) else ""
    folders = [each.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for each in paths.split(":")]
    return _Said(
        machine,
        linker,
        [text(value) for tag, value in entries if tag == _NEEDED],
        [each for each in folders if each.startswith("/")],
    )


def _part(file: BinaryIO, start: int, length: int) -> bytes:
    if length > _MOST:
        raise ValueError("a part of a megabyte and more")
    file.seek(start)
    return file.read(length)
