"""Bodies of kproc's own operations, API key 30000: the one place that says which there are and of which types.

A client sends one JSON object. Its `op` names the operation. A body that is none of these is answered with
INVALID_REQUEST and one line; it reaches no other role.
"""

from __future__ import annotations

import msgspec


class _Operation(msgspec.Struct, tag_field="op"):
    """One JSON object. Members that the operation does not know are ignored."""


class Ping(_Operation, tag="ping"):
    """Answered by the Handler itself."""


class ShowStatus(_Operation, tag="status"):
    """The roles and what they do."""


class ShowClients(_Operation, tag="clients"):
    """Every connection."""


class Scale(_Operation, tag="scale"):
    """Change the counts of roles, or ask about a change by the ticket that was answered."""

    processors: int | None = None
    handlers: int | None = None
    ticket: str | None = None


class Rebalance(_Operation, tag="rebalance"):
    """Move connections from busy Processors to idle ones."""


class KillClient(_Operation, tag="kill-client"):
    """Close the connection that `clients` shows with this id."""

    id: str


OwnOperation = Ping | ShowStatus | ShowClients | Scale | Rebalance | KillClient


class _Named(msgspec.Struct):
    op: str


class InvalidOperation(Exception):
    """A body is no operation; the message is one line for the client."""


_decode = msgspec.json.Decoder(OwnOperation).decode
_decode_name = msgspec.json.Decoder(_Named).decode
_NAMES = frozenset(str(each.__struct_config__.tag) for each in _Operation.__subclasses__())
_SHOWN = 60  # Characters of an operation's name that a client made up.


def decode_operation(body: memoryview) -> OwnOperation:
    """The operation in a request's body. Raises InvalidOperation."""
    try:
        operation: OwnOperation = _decode(body)
    except RecursionError:
        raise InvalidOperation("the JSON is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidOperation(_unknown_name(body) or str(error)) from error
    return operation


def _unknown_name(body: memoryview) -> str | None:
    """Return the message for a body of which only the operation's name is unknown, else None."""
    try:
        name = _decode_name(body).op
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return None if name in _NAMES else f"unknown operation {name[:_SHOWN]!r}"
