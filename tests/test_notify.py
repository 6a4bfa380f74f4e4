from __future__ import annotations

import asyncio
import os
import socket
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from spl.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 30


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """Give the socket of a service manager, at a path or abstract."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify") if request.param == "path" else f"\0{tmp_path}/notify")
        bound.settimeout(SECONDS)
        yield bound


def path_of(manager: socket.socket) -> str:
    """Give a socket's path as a manager writes it into the environment."""
    name = manager.getsockname()
    return name if isinstance(name, str) else "@" + name[1:].decode()


def heard(manager: socket.socket) -> list[str]:
    """Give the lines of the next thing that is told."""
    return manager.recv(4096).decode().split("\n")


def test_what_goes_on_is_told_with_what_it_means_and_how_long_it_may_take(manager: socket.socket) -> None:
    with closing(Notifier(path_of(manager))) as notifier:
        notifier.tell("serving, 0 runs", "READY=1")
        notifier.tell("stopping", "STOPPING=1", seconds=1.5)
    notifier.tell("nobody hears")

    assert heard(manager) == ["READY=1", "STATUS=serving, 0 runs"]
    assert heard(manager) == ["STOPPING=1", "STATUS=stopping", "EXTEND_TIMEOUT_USEC=1500000"]


def test_the_variables_are_taken_out_of_the_environment(manager: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": path_of(manager), "WATCHDOG_USEC": "9", "WATCHDOG_PID": "1", "PATH": "/bin"}

    with closing(Notifier.take(environ)) as notifier:
        notifier.tell("here")

    assert environ == {"PATH": "/bin"}
    assert heard(manager) == ["STATUS=here"]


@pytest.mark.parametrize(
    "address", [None, "", "vsock:2:1234", "relative", "/no/such/socket", "/" + "x" * 200]
)
def test_what_nobody_hears_is_told_without_a_word(address: str | None) -> None:
    environ = {} if address is None else {"NOTIFY_SOCKET": address}
    with closing(Notifier.take(environ)) as notifier:
        notifier.tell("serving", "READY=1")


def test_a_manager_that_reads_nothing_is_not_waited_for(manager: socket.socket) -> None:
    with closing(Notifier(path_of(manager))) as notifier:
        for _ in range(5000):
            notifier.tell("serving" * 100)


def test_what_a_manager_had_no_room_for_is_told_with_the_next_word(manager: socket.socket) -> None:
    with closing(Notifier(path_of(manager))) as notifier:
        while not notifier._untold:
            notifier.tell("starting", "OTHER=1")
        notifier.tell("serving, 0 runs", "READY=1")
        manager.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                assert heard(manager) == ["OTHER=1", "STATUS=starting"]
        manager.settimeout(SECONDS)
        notifier.tell("serving, 1 run", "WATCHDOG=1")
        notifier.tell("serving, 2 runs", "WATCHDOG=1")

    assert heard(manager) == ["OTHER=1", "READY=1", "WATCHDOG=1", "STATUS=serving, 1 run"]
    assert heard(manager) == ["WATCHDOG=1", "STATUS=serving, 2 runs"]


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [
        ("4000000", "ours", 2.0),
        ("4000000", "", 2.0),
        ("60000000", "ours", 10.0),
        ("4000000", "1", 10.0),
        ("0", "ours", 10.0),
        ("soon", "ours", 10.0),
        ("9" * 400, "ours", 10.0),
        ("", "", 10.0),
    ],
)
def test_a_watchdog_of_this_process_is_told_twice_within_its_time(
    microseconds: str, pid: str, seconds: float
) -> None:
    pid = pid.replace("ours", str(os.getpid()))
    environ = {"NOTIFY_SOCKET": "/no/such/socket", "WATCHDOG_USEC": microseconds, "WATCHDOG_PID": pid}
    with closing(Notifier.take(environ)) as notifier:
        assert notifier._seconds == seconds


def test_life_is_told_only_once_it_was_seen(manager: socket.socket) -> None:
    async def main() -> None:
        asked, lives = asyncio.Event(), asyncio.Event()

        async def seen() -> None:
            asked.set()
            await lives.wait()

        with closing(Notifier(path_of(manager), watchdog=0.02)) as notifier:
            async with notifier.kept_up(lambda: "serving", seen):
                await asyncio.wait_for(asked.wait(), SECONDS)
                manager.setblocking(False)
                with pytest.raises(BlockingIOError):
                    manager.recv(1)
                lives.set()
                manager.settimeout(SECONDS)
                for _ in range(2):
                    assert await asyncio.to_thread(heard, manager) == ["WATCHDOG=1", "STATUS=serving"]

    asyncio.run(main())


def test_a_writer_of_the_log_that_has_failed_ends_the_telling_and_nothing_else(
    manager: socket.socket,
) -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def fails() -> None:
            asked.set()
            raise OSError

        with closing(Notifier(path_of(manager), watchdog=0.02)) as notifier:
            async with notifier.kept_up(lambda: "serving", fails):
                await asyncio.wait_for(asked.wait(), SECONDS)
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(1)

    asyncio.run(main())
