"""How a command ends that cannot do what it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

DEFAULT_PORT: Final = 9092


class Failure(Exception):
    """Ends the command: a message on stderr and an exit code, 1 for what went wrong, 2 for wrong usage.

    The message is one line, also where a name in it holds a newline. `details` are further lines.
    """

    def __init__(self, message: str, exit_code: int = 1, *, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.details = tuple(details)


class UsageText(Failure):
    """Ends a command that was given too little: its help is the message, as it is."""


def usage_error(message: str) -> NoReturn:
    """Refuse an argument."""
    raise Failure(message, exit_code=2)


def one_line(text: str) -> str:
    """Return the text without line breaks and repeated blanks."""
    return " ".join(text.split())
