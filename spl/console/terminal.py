"""The terminal while the console has it, and what gives it back as it was, however the console ends.

Line editing and echo are off (termios(3)), signals of keys are on: Ctrl-C, Ctrl-Z and the like reach the console as
signals, of which the file descriptor of `Signals` tells (signal.set_wakeup_fd).
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import ConsoleDimensions
from rich.live import Live

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from rich.console import Console, RenderableType

# Of what is drawn nothing wraps, though a terminal finds it wider than it is; pasted text comes between brackets.
_ENTER: Final = "\x1b[?7l\x1b[?2004h"
_AGAIN: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?2004l\x1b[?7h\x1b[0m"

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_TAKEN: Final = (*ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


class Terminal:
    """The terminal of a descriptor for keys and one for the screen, taken on entering and given back on leaving."""

    def __init__(self, keys: int, screen: int, console: Console) -> None:
        self.keys = keys
        self._screen = screen
        self._console = console
        self._before: list[Any] | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def size(self) -> tuple[int, int]:
        """Give columns and lines; 80 and 24 where the terminal does not say."""
        try:
            columns, rows = os.get_terminal_size(self._screen)
        except OSError:
            columns, rows = 0, 0
        return columns or 80, rows or 24

    def read(self) -> bytes:
        """Give what keys were pressed; nothing once the terminal is gone."""
        try:
            return os.read(self.keys, 4096)
        except OSError:
            return b""

    def draw(self, frame: RenderableType, width: int, height: int) -> None:
        """Draw a frame over the one before; raises `OSError`."""
        self._console.size = ConsoleDimensions(width, height)
        if self._live is not None:
            self._live.update(frame, refresh=True)

    def suspend(self) -> None:
        """Stop this process as Ctrl-Z does, with the terminal as it was; take it again when it is continued."""
        self._leave()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.kill(os.getpid(), signal.SIGTSTP)
        finally:
            signal.signal(signal.SIGTSTP, handler)
        self._enter()

    def take_again(self) -> None:
        """Take the terminal again after a stop that nobody was told of (SIGSTOP): the shell has changed it."""
        if self._before is None:
            return
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self.keys, termios.TCSADRAIN, _mode(self.keys))
            self._write(_AGAIN + _ENTER)

    def _enter(self) -> None:
        try:
            self._before = termios.tcgetattr(self.keys)
        except termios.error as error:
            # It may have gone while this process was stopped.
            raise OSError(*error.args) from None
        try:
            termios.tcsetattr(self.keys, termios.TCSADRAIN, _mode(self.keys))
            self._live = Live(
                console=self._console,
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
            self._write(_ENTER)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        """Give the terminal back; where it is gone there is nothing to give back to."""
        before, self._before = self._before, None
        live, self._live = self._live, None
        if before is None:
            return
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self.keys, termios.TCSADRAIN, before)

    def _write(self, said: str) -> None:
        self._console.file.write(said)
        self._console.file.flush()


def _mode(descriptor: int) -> list[Any]:
    """Give a terminal's mode with keys coming one by one, and none of them shown (termios(3))."""
    mode = termios.tcgetattr(descriptor)
    mode[0] &= ~(termios.IXON | termios.ICRNL)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    return mode


class Signals:
    """The signals that the console answers, from entering to leaving; `descriptor` can be read when some have come.

    Must be the main thread's (signal(7), and Python's own rule).
    """

    def __init__(self) -> None:
        self.descriptor, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in _TAKEN:
            # One that was ignored stays so: nohup(1) is asked for on purpose.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _noticed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.descriptor)
        os.close(self._writing)

    def come(self) -> list[int]:
        """Give the numbers of those that have come since the last time."""
        try:
            return list(os.read(self.descriptor, 256))
        except BlockingIOError:
            return []


def end_by(number: int) -> None:
    """End this process by a signal, as it would have ended without a handler."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _noticed(number: int, frame: FrameType | None) -> None:
    del number, frame
