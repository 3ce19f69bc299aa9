"""Exceptions that end a command with a message and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

DEFAULT_PORT: Final = 9092
DEFAULT_BOOTSTRAP: Final = f"127.0.0.1:{DEFAULT_PORT}"


class Failure(Exception):
    """Ends the command with a message on stderr and an exit code: 1 for a failure, 2 for wrong usage.

    The message is printed as one line, even if a name in it has a newline. `details` are further lines.
    """

    def __init__(self, message: str, exit_code: int = 1, *, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.details = tuple(details)


class UsageText(Failure):
    """Ends a command without enough arguments. The message is its help text, which is printed unchanged."""


def usage_error(message: str) -> NoReturn:
    """Raise a Failure for a wrong argument, with exit code 2."""
    raise Failure(message, exit_code=2)


def one_line(text: str) -> str:
    """Return the text without line breaks and repeated blanks."""
    return " ".join(text.split())
