from __future__ import annotations

import logging
import os
import resource
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spl.cli.detached import _FLAGS
from spl.logs import outlet as module
from spl.logs.outlet import QUEUE_MOST, Outlet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

LOST = "lines of the log were lost"


@contextmanager
def outlet(descriptor: int, monkeypatch: pytest.MonkeyPatch, *, priorities: bool = False) -> Iterator[Outlet]:
    """Give an outlet whose own word, of what was lost, goes by it too."""
    made = Outlet(descriptor, priorities=priorities)

    class Own:
        def warning(self, event: str, **fields: int) -> None:
            say(made, f"{event} {fields}", logging.WARNING)

    monkeypatch.setattr(module, "_log", Own())
    try:
        yield made
    finally:
        made.close()
        made._thread.join(10)
        assert not made._thread.is_alive()


def say(made: Outlet, text: str, level: int = logging.INFO) -> None:
    made.handle(logging.LogRecord("spl", level, "", 0, text, None, None))


def test_a_pipe_that_nobody_reads_holds_nobody_up_and_what_was_lost_is_told_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    line = "x" * 1000
    with outlet(writing, monkeypatch) as made, open(reading) as pipe:
        for number in range(3000):
            say(made, f"{number} {line}")
        # For these, room is left.
        say(made, "an error", logging.ERROR)
        say(made, "after it")
        found = [pipe.readline() for _ in range(2)]
        while LOST not in found[-1]:
            found.append(pipe.readline())
        say(made, "again")
        assert pipe.readline() == "again\n"
    os.close(writing)
    numbers = [int(each.split()[0]) for each in found[:-2]]
    assert numbers == [*range(len(numbers))]
    assert QUEUE_MOST - 2**11 <= sum(map(len, found)) <= QUEUE_MOST + 2**17
    assert found[-2] == "an error\n"
    assert found[-1] == f"{LOST} {{'lines': {3001 - len(numbers)}, 'errors': 0}}\n"


def test_more_errors_than_there_is_room_for_are_lost_but_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with outlet(writing, monkeypatch) as made, open(reading) as pipe:
        for _ in range(3000):
            say(made, "x" * 1000, logging.ERROR)
        kept = 0
        while LOST not in (last := pipe.readline()):
            kept += 1
    os.close(writing)
    assert last == f"{LOST} {{'lines': {3000 - kept}, 'errors': {3000 - kept}}}\n"


def test_an_end_waits_for_what_is_to_be_written_but_not_for_a_reader_who_never_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FLUSH_SECONDS", 0.1)
    reading, writing = os.pipe()
    began = time.monotonic()
    made = Outlet(writing)
    say(made, "x" * 2**17)
    made.flush()
    made.close()
    assert 0.1 <= time.monotonic() - began < 5
    # What it had begun with goes on until there is nobody who could read it.
    os.close(reading)
    made._thread.join(10)
    assert not made._thread.is_alive()
    os.close(writing)


def test_a_descriptor_that_another_has_made_not_to_block_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with outlet(writing, monkeypatch) as made:
        say(made, "x" * 2**18)
        with open(reading) as pipe:
            assert len(pipe.readline()) == 2**18 + 1
    os.close(writing)


def test_after_a_full_disk_what_was_lost_is_told_and_a_torn_line_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.open(tmp_path / "daemon.log", _FLAGS, 0o600)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with outlet(descriptor, monkeypatch) as made:
        # As where a disk is full, write(2) takes a part, and then nothing; Python ignores SIGXFSZ (setrlimit(2)).
        try:
            for room, texts in ((10, ("first", "the second", "third")), (19, ("one",))):
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
                for text in texts:
                    say(made, text)
                made.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        say(made, "room again")
        made.flush()
    os.close(descriptor)
    written = (tmp_path / "daemon.log").read_text()
    assert written == f"first\nthe \none\nline\nroom again\n{LOST} {{'lines': 2, 'errors': 0}}\n"


def test_a_reader_that_has_gone_ends_nothing_and_a_line_that_cannot_be_made_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    with outlet(writing, monkeypatch) as made:
        made.handle(logging.LogRecord("spl", logging.ERROR, "", 0, "%d", ("no number",), None))
        say(made, "whole")
        with open(reading) as pipe:
            assert [pipe.readline() for _ in range(2)] == ["whole\n", f"{LOST} {{'lines': 1, 'errors': 1}}\n"]
        say(made, "for nobody")
    os.close(writing)


def test_what_a_finalizer_logs_while_a_line_is_taken_or_written_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    written, formatting = threading.Event(), threading.Event()

    class Form(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            if record.msg == "the second":
                formatting.set()
                written.wait(0.2)
            return str(record.msg)

    with outlet(writing, monkeypatch) as made, open(reading) as pipe:
        regained = made._regained

        def collected() -> tuple[int, int] | None:
            # Wherever it allocates, the collector may finalize a task whose error nobody has asked for.
            monkeypatch.setattr(made, "_regained", regained)
            written.set()
            formatting.wait(0.2)
            say(made, "by a finalizer", logging.ERROR)
            return regained()

        monkeypatch.setattr(made, "_regained", collected)
        made.setFormatter(Form())
        say(made, "the first")
        second = threading.Thread(target=say, args=(made, "the second"), daemon=True)
        second.start()
        second.join(10)
        assert not second.is_alive()
        assert {pipe.readline() for _ in range(3)} == {"the first\n", "the second\n", "by a finalizer\n"}
    os.close(writing)


def test_each_line_for_the_journal_begins_with_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with outlet(writing, monkeypatch, priorities=True) as made:
        levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
        for level in levels:
            say(made, "a\nb", level)
    os.close(writing)
    with open(reading) as pipe:
        assert pipe.read().split() == [f"<{number}>{text}" for number in (7, 6, 4, 3, 2) for text in "ab"]


def test_a_log_that_is_copied_and_truncated_goes_on_at_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.open(path := tmp_path / "daemon.log", _FLAGS, 0o600)
    with outlet(descriptor, monkeypatch) as made:
        say(made, "before")
        made.flush()
        os.truncate(path, 0)
        say(made, "after")
    os.close(descriptor)
    assert path.read_bytes() == b"after\n"
