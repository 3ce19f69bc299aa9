"""Declarations of the calls between roles: one `Call` per operation, with the types of its body and its reply.

peers/registered_calls.py has the functions that handle them in a Handler. Bodies and replies are encoded as arrays
without field names, because both ends are of the same build.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec


class FromImage(msgspec.Struct, array_like=True):
    """A body that depends on the metadata. `image` is the version of the sender's metadata.

    The receiver handles it when its own metadata have at least this version.
    """

    image: int


class ForOwner(FromImage):
    """A body for the owner of the partitions or coordinators that it names.

    The owner rejects those that it has transferred. The caller then sends the rejected parts to their new owner.
    """


class Reply(msgspec.Struct, array_like=True, kw_only=True):
    """The base of all replies. With `is_open` another reply follows."""

    is_open: bool = False


class Lost(msgspec.Struct, frozen=True):
    """Stands for a reply if the receiver died before it replied, or if its handling raised an exception."""

    is_away: bool = False  # The receiver has been away for some time, and the call was not sent.


B = TypeVar("B", bound=msgspec.Struct)
R = TypeVar("R", bound=Reply)
# Sends the receiver's reply. None: the caller gets Lost, as if the receiver had died.
OnResult = Callable[[R | None], None]


class Call(Generic[B, R]):
    """One kind of call: its name and the decoders of its body and reply."""

    __slots__ = ("decode_body", "decode_reply", "name")

    def __init__(self, name: str, body: type[B], reply: type[R]) -> None:
        self.name = name
        self.decode_body = msgspec.msgpack.Decoder(body).decode
        self.decode_reply = msgspec.msgpack.Decoder(reply).decode


class Answers(Reply):
    """An owner's answers to the parts of a call, in their order (owners.py)."""

    answers: list[Any]  # None for a part that has another owner by now.
    known: int  # The version of the owner's metadata.
