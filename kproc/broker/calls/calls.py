"""What roles ask each other: one `Call` for each question, with the types of what is asked and what is answered.

How a Handler answers each stands in the table of served_calls.py. Bodies and replies are encoded as arrays, field by
field: both ends are of one build.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec


class FromImage(msgspec.Struct, array_like=True):
    """A body whose sender went by the metadata: who is asked waits until it knows that version."""

    image: int


class ForOwner(FromImage):
    """A body for the owner of what it names, who tells what of it is another's by now: that is asked there."""


class Reply(msgspec.Struct, array_like=True, kw_only=True):
    """What is answered. With `is_open` another reply follows."""

    is_open: bool = False


class Lost(msgspec.Struct, frozen=True):
    """Instead of a reply: who was asked died before it answered, or could not answer for a mistake of its own."""

    is_away: bool = False  # It has been away for some time, and was asked nothing.


B = TypeVar("B", bound=msgspec.Struct)
R = TypeVar("R", bound=Reply)
# Where the owner's reply goes; None: as if it had died.
OnResult = Callable[[R | None], None]


class Call(Generic[B, R]):
    """One question."""

    __slots__ = ("decode_body", "decode_reply", "name")

    def __init__(self, name: str, body: type[B], reply: type[R]) -> None:
        self.name = name
        self.decode_body = msgspec.msgpack.Decoder(body).decode
        self.decode_reply = msgspec.msgpack.Decoder(reply).decode


class Answers(Reply):
    """An owner's answers to what it was asked for, in that order (owners.py)."""

    answers: list[Any]  # None for what is another's by now.
    known: int  # The version of the metadata that it goes by.
