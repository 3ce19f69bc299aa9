"""The table of calls that any Handler handles for another one. Each module adds its own with `@handles`.

handler/owner_calls.py reads the table and adds the calls that need objects of the role, such as the RecordRouter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kproc.broker.calls.calls import B, Call, OnResult, R
from kproc.broker.request.context import Services

# (services, body, callback for the reply)
HandleCall = Callable[[Services, B, OnResult[R]], None]


class RegisteredCall(NamedTuple):
    """A kind of call between Handlers, and the function that handles it at the receiver."""

    call: Call[Any, Any]
    handle: HandleCall[Any, Any]


REGISTERED_CALLS: Final[dict[str, RegisteredCall]] = {}


def handles(call: Call[B, R]) -> Callable[[HandleCall[B, R]], HandleCall[B, R]]:
    """Register the decorated function as the one that handles a call. The function may reply after it has returned."""

    def register(handle: HandleCall[B, R]) -> HandleCall[B, R]:
        REGISTERED_CALLS[call.name] = RegisteredCall(call, handle)
        return handle

    return register
