from __future__ import annotations

import hashlib
import mmap
import os

import pytest

from bwrap.sealed import Sealed


@pytest.mark.claim("M4")
def test_what_is_sealed_can_be_changed_by_nobody_not_even_its_maker() -> None:
    sealed = Sealed("test", b"bytes")
    try:
        # As root a sealed memfd can still be opened for writing: the seal, not the mode, refuses.
        for change in (
            lambda: os.pwrite(sealed._descriptor, b"other", 0),
            lambda: os.ftruncate(sealed._descriptor, 0),
            lambda: os.ftruncate(sealed._descriptor, 100),
            lambda: mmap.mmap(sealed._descriptor, 5),
        ):
            with pytest.raises(PermissionError):
                change()
    finally:
        sealed.close()


def test_each_reader_begins_at_the_beginning_and_outlives_its_maker() -> None:
    data = bytes(range(256)) * 1000
    sealed = Sealed("test", data)
    readers = [os.fdopen(sealed.open(), "rb") for _ in range(3)]
    sealed.close()

    for reader in readers:
        with reader:
            assert reader.read() == data
    assert sealed.digest == hashlib.sha256(data).hexdigest()


def test_a_reader_cannot_write_and_is_not_inherited() -> None:
    sealed = Sealed("test", b"bytes")
    reader = sealed.open()
    try:
        assert not os.get_inheritable(reader)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(reader, b"x")
    finally:
        os.close(reader)
        sealed.close()
