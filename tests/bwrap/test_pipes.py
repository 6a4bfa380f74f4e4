from __future__ import annotations

import asyncio
import os
import select
from typing import TYPE_CHECKING

import pytest

from bwrap.pipes import Tail, read_line, readable

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            continue  # closed by the test


def test_a_line_may_come_in_pieces(pipe: tuple[int, int]) -> None:
    async def scene() -> bytes:
        line = asyncio.create_task(read_line(pipe[0], 100))
        for piece in (b"{", b'"child-pid"', b": 7}\nmore"):
            os.write(pipe[1], piece)
            while select.select([pipe[0]], [], [], 0)[0]:  # noqa: ASYNC110 - an empty pipe tells nobody
                await asyncio.sleep(0)
        return await line

    assert asyncio.run(scene()) == b'{"child-pid": 7}'


def test_an_end_before_the_newline_is_no_line(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"half a line")
    os.close(pipe[1])

    assert asyncio.run(read_line(pipe[0], 100)) == b""


@pytest.mark.parametrize("data", [b"x" * 101, b"x" * 101 + b"\n"])
def test_a_line_over_the_limit_is_an_error(pipe: tuple[int, int], data: bytes) -> None:
    os.write(pipe[1], data)

    with pytest.raises(ValueError, match="a line of more than 100 bytes"):
        asyncio.run(read_line(pipe[0], 100))


def test_waiting_that_is_cancelled_leaves_the_loop_clean(pipe: tuple[int, int]) -> None:
    async def scene() -> bool:
        waiting = asyncio.create_task(readable(pipe[0]))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return asyncio.get_running_loop().remove_reader(pipe[0])

    assert asyncio.run(scene()) is False


def test_a_tail_keeps_the_last_4_kib_and_never_lets_the_writer_block(pipe: tuple[int, int]) -> None:
    async def scene() -> str:
        tail = Tail(pipe[0])
        for at in range(100):
            os.write(pipe[1], b"%d" % (at % 10) * 40_000)
            tail.take()
        os.write(pipe[1], b"\xff the end\n")
        os.close(pipe[1])
        tail.close()
        tail.close()
        return tail.text

    text = asyncio.run(scene())
    assert text.endswith("9\ufffd the end")
    assert 4000 < len(text) <= 4096


def test_a_tail_closes_its_pipe_at_the_end(pipe: tuple[int, int]) -> None:
    async def scene() -> None:
        tail = Tail(pipe[0])
        os.close(pipe[1])
        tail.take()
        tail.close()

    asyncio.run(scene())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pipe[0])


@pytest.mark.parametrize("which", [0, 1])
def test_waiting_for_several_ends_with_the_first_and_watches_none_of_them_any_more(which: int) -> None:
    pipes = [os.pipe(), os.pipe()]

    async def scene() -> list[bool]:
        os.write(pipes[which][1], b"x")
        await readable(*(reading for reading, _ in pipes))
        return [asyncio.get_running_loop().remove_reader(reading) for reading, _ in pipes]

    assert asyncio.run(scene()) == [False, False]
    for descriptor in (each for pipe in pipes for each in pipe):
        os.close(descriptor)
