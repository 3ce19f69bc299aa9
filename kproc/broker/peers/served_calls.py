"""The table of calls that any Handler handles for another one. Each module adds its own with `@serves`.

handler/owner_calls.py reads the table and adds the calls that need objects of the role, such as the RecordRouter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kproc.broker.calls.calls import B, Call, OnResult, R
from kproc.broker.request.context import Services

# (services, body, callback for the reply)
Serve = Callable[[Services, B, OnResult[R]], None]


class Served(NamedTuple):
    """A call and the function that handles it."""

    call: Call[Any, Any]
    serve: Serve[Any, Any]


SERVED: Final[dict[str, Served]] = {}


def serves(call: Call[B, R]) -> Callable[[Serve[B, R]], Serve[B, R]]:
    """Register the decorated function as the one that handles a call. It may reply later."""

    def register(serve: Serve[B, R]) -> Serve[B, R]:
        SERVED[call.name] = Served(call, serve)
        return serve

    return register
