"""How a command ends that cannot do what it was asked."""

from __future__ import annotations

from typing import Final, NoReturn

DEFAULT_PORT: Final = 9092


class Failure(Exception):
    """Ends the command: one line on stderr and an exit code, 1 for what went wrong, 2 for wrong usage."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def usage_error(message: str) -> NoReturn:
    """Refuse an argument."""
    raise Failure(message, exit_code=2)


def one_line(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())
