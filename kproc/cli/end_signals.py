"""The signals that end a command which has something to finish: a commit, records in a queue, a transaction.

SIGTERM and SIGHUP end such a command as Ctrl-C does. Otherwise `timeout` or the stop of a container would leave a
transaction open, and readers of committed records would wait until it times out.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_INTERRUPT: Final = (signal.SIGINT,)
_TERMINATE: Final = (signal.SIGTERM, signal.SIGHUP)


class EndingSignal:
    """The handler of signals that end the command.

    After the first signal the command prints and commits the records that it has read, and then ends. A second signal
    ends it at once. The first one only sets `number`, because an exception inside a call of librdkafka can be lost.
    """

    number = 0

    def __call__(self, number: int, _frame: object) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number

    def raise_exit(self) -> None:
        """Raise the exception that ends the command with the exit code of the signal, if one came."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.number:
            _exit_by(self.number)


@contextmanager
def catch_signals() -> Iterator[EndingSignal]:
    """Let the first SIGINT, SIGTERM or SIGHUP inside the context only set the number of the EndingSignal."""
    ending = EndingSignal()
    with _handled(ending, (*_INTERRUPT, *_TERMINATE)):
        yield ending


@contextmanager
def interrupt_at_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt in the context at SIGTERM and SIGHUP, too, as Python does at SIGINT.

    A KeyboardInterrupt that leaves the context then becomes a SystemExit with the exit code of the signal.
    """
    came: list[int] = []

    def interrupt(number: int, _frame: object) -> NoReturn:
        came.append(number)
        raise KeyboardInterrupt

    with _handled(interrupt, _TERMINATE):
        try:
            yield
        except KeyboardInterrupt:
            if came:
                _exit_by(came[0])
            raise


def _exit_by(number: int) -> NoReturn:
    # By convention of shells, the exit code after a signal is 128 plus the signal's number.
    raise SystemExit(128 + number) from None


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], numbers: Sequence[int]) -> Iterator[None]:
    """Call `handler` for these signals inside the context, except for signals that this process ignores."""
    before = {number: signal.getsignal(number) for number in numbers}
    # Keep signals ignored that the parent has set to be ignored: nohup does so with SIGHUP, and a shell with SIGINT for
    # a background job.
    changed = [number for number in numbers if before[number] != signal.SIG_IGN]
    for number in changed:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, before[number])
