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


def explain(resource: object, code: int, message: str | None = None, *, words: str | None = None) -> str:
    """Format the error code of a topic or another resource in one line, which begins with the resource's name.

    message: the broker's error message, which replaces the general text of the code. words: a text such as `unknown
    group` that replaces both.
    """
    from kproc.client.error_texts import error_text, name_code
    from kproc.common.errors import ErrorCode

    known: dict[int, str] = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "unknown topic",
        ErrorCode.TOPIC_ALREADY_EXISTS: "exists already",
    }
    text = words or known.get(code) or (name_code(message, code) if message else error_text(code))
    advice = "; a broker started with --clamp-replication counts it as 1"
    return f"{resource}: {text}{advice if code == ErrorCode.INVALID_REPLICATION_FACTOR else ''}"


def one_line(text: str) -> str:
    """Return the text without line breaks and repeated blanks."""
    return " ".join(text.split())
