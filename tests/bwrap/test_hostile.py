from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.bwrap.doomed import STUBBORN

if TYPE_CHECKING:
    from tests.bwrap.conftest import Daemon

PID_NAMESPACE = "[namespaces]\npid = true\n"
WAITS = "import select\ndef _wait():\n    while True: select.poll().poll()\n"
TELLS_EXITS = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)
"""Whether this kernel gives a process's own exit status to whoever holds its pidfd."""


def entrusted(*lines: str) -> str:
    """Give a change of the worker's program: what it does once it has its credential, and is confirmed for sure."""
    return "\n    ".join(("def _credential():", "os.read(0, 4096)", *lines))


SPINS = entrusted("while True: pass")


def play(daemon: Daemon, changes: str, **arguments: Any) -> dict[str, Any]:
    told: dict[str, Any] = daemon.play("run", module="hostile", changes=changes, **arguments)
    return told


def ending(told: dict[str, Any]) -> tuple[int | None, str | None, str | None]:
    return told["code"], told["signal"], told["killed"]


# --- how it ended ---


@pytest.mark.parametrize("extra", ["", PID_NAMESPACE], ids=["worker", "pid namespace"])
@pytest.mark.parametrize(
    ("does", "code", "name"),
    [
        ("os._exit(0)", 0, None),
        ("os._exit(7)", 7, None),
        pytest.param(
            "os._exit(137)", *((137, None) if TELLS_EXITS else (None, "SIGKILL")), id="exits with 137"
        ),
        ("import ctypes; ctypes.string_at(0)", None, "SIGSEGV"),
    ],
)
def test_an_exit_and_a_signal_are_told_apart(
    daemon: Daemon, does: str, code: int | None, name: str | None, extra: str
) -> None:
    assert ending(play(daemon, entrusted(does), extra=extra)) == (code, name, None)


def test_a_worker_that_someone_else_killed_bears_no_reason(daemon: Daemon) -> None:
    told = daemon.play("killed_before_its_credential", module="hostile")

    assert ending(told) == (None, "SIGKILL", None)


def test_the_first_reason_it_was_killed_for_stands(daemon: Daemon) -> None:
    assert daemon.play("stopped_twice", module="hostile") == ["the first", "the first"]


@pytest.mark.parametrize("extra", ["", PID_NAMESPACE], ids=["worker", "pid namespace"])
def test_a_worker_that_ends_within_its_grace_is_not_killed(daemon: Daemon, extra: str) -> None:
    assert ending(play(daemon, entrusted("return None"), extra=extra, grace=30)) == (10, None, None)


# --- what it does to be left alone ---


@pytest.mark.parametrize("extra", ["", PID_NAMESPACE], ids=["worker", "pid namespace"])
@pytest.mark.parametrize(
    "changes",
    [
        STUBBORN,
        WAITS + entrusted("for each in (0, 1, 2): os.close(each)", "_wait()"),
        f"{WAITS}def _drive(doors): _wait()",
        SPINS,
    ],
    ids=["ignores every signal", "closes its descriptors", "ignores its socket", "spins"],
)
def test_a_worker_that_does_not_end_within_its_grace_is_killed_with_the_reason(
    daemon: Daemon, changes: str, extra: str
) -> None:
    assert ending(play(daemon, changes, extra=extra, grace=0.05)) == (None, "SIGKILL", "its time")


@pytest.mark.claim("I5")
@pytest.mark.parametrize("extra", ["", PID_NAMESPACE], ids=["worker", "pid namespace"])
def test_a_worker_that_spins_ends_at_its_processor_time(daemon: Daemon, extra: str) -> None:
    # Soft and hard limit are one, so the signal is SIGKILL, which no init of a pid namespace is spared either.
    told = play(daemon, SPINS, extra=f'{extra}[limits]\ncpu_time = "1s"\n')

    assert ending(told) == (None, "SIGKILL", None)


# --- what it takes ---


@pytest.mark.claim("I5")
def test_a_worker_that_allocates_without_end_runs_out_of_memory_by_itself(daemon: Daemon) -> None:
    told = play(daemon, entrusted("kept = []", "while True: kept.append(bytearray(1 << 20))"))

    assert ending(told) == (12, None, None)
    assert told["said"] == "MemoryError"
    assert told["grown_kib"] < 1024


def flood(descriptor: int) -> str:
    """Give the change that has it write 1 GiB."""
    return entrusted(f"for _ in range(1 << 10): os.write({descriptor}, b'x' * (1 << 20))", "os._exit(3)")


def test_what_it_writes_to_standard_error_is_dropped_but_for_the_end(daemon: Daemon) -> None:
    told = play(daemon, flood(2))

    assert ending(told) == (3, None, None)
    assert told["said"] == "x" * 4096
    assert told["grown_kib"] < 1024


def test_nobody_takes_what_it_writes_to_standard_output_after_its_answer(daemon: Daemon) -> None:
    told = play(daemon, flood(1))

    assert ending(told) == (12, None, None)
    assert told["said"] == "BrokenPipeError"
    assert told["grown_kib"] < 1024


@pytest.mark.claim("I5", "I3")
@pytest.mark.parametrize(
    ("path", "size", "refused"),
    [
        ("/flood", "1M", errno.EROFS),
        ("/usr/lib/flood", "1M", errno.EROFS),
        ("/tmp/flood", "8M", errno.ENOSPC),
        ("/tmp/flood", "32M", errno.EFBIG),
    ],
)
def test_no_file_holds_more_than_the_sandbox_allows(
    daemon: Daemon, path: str, size: str, refused: int
) -> None:
    writes = entrusted(
        "size = 0",
        "try:",
        f"    opened = os.open({path!r}, os.O_CREAT | os.O_WRONLY)",
        "    while True: size += os.write(opened, b'x' * (1 << 20))",
        "except OSError as error: os.write(2, b'%d %d' % (error.errno, size))",
        "os._exit(3)",
    )
    told = play(daemon, writes, extra=f'[filesystem]\ntmpfs = [{{ path = "/tmp", size = "{size}" }}]\n')

    number, written = map(int, told["said"].split())
    assert number == refused
    assert written <= 16 << 20
    assert not os.path.exists(path)


# --- when it dies ---


@pytest.mark.claim("I12")
def test_a_worker_that_ends_once_it_is_ready_is_refused_or_seen_to_have_ended(daemon: Daemon) -> None:
    assert daemon.play("gone_once_it_is_ready", module="hostile") in ("refused", "code 7")


@pytest.mark.claim("I12")
@pytest.mark.parametrize(
    "does",
    [
        "import select; poll = select.poll(); poll.register(0, 1); poll.poll()",
        "os.read(0, 1)",
        "os.read(0, 4096)",
    ],
    ids=["as the credential comes", "with the first byte of it", "with all of it"],
)
def test_a_worker_that_dies_as_it_is_entrusted_is_seen_to_have_ended(daemon: Daemon, does: str) -> None:
    assert ending(play(daemon, f"def _credential(): {does}; os._exit(8)")) == (8, None, None)


# --- what it might leave ---


@pytest.mark.claim("I4")
@pytest.mark.parametrize("extra", ["", PID_NAMESPACE], ids=["worker", "pid namespace"])
def test_a_worker_can_make_no_process(daemon: Daemon, extra: str) -> None:
    told = play(daemon, entrusted("os.fork()"), extra=extra)

    assert ending(told) == (12, None, None)
    assert told["said"] == "PermissionError"


@pytest.mark.claim("I12", "I13")
def test_a_process_that_a_worker_made_all_the_same_is_gone_with_it(daemon: Daemon) -> None:
    assert daemon.play("with_a_child", module="hostile")
