"""The table of calls that any Handler answers for another one: each module enters its own with `@serves`.

The role's owner_calls.py reads it, and adds what needs parts of the role: the records of Produce requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kproc.broker.calls.calls import B, Call, OnResult, R
from kproc.broker.request.context import Services

# (services, body, where the reply goes)
Serve = Callable[[Services, B, OnResult[R]], None]


class Served(NamedTuple):
    """A call and who answers it."""

    call: Call[Any, Any]
    serve: Serve[Any, Any]


SERVED: Final[dict[str, Served]] = {}


def serves(call: Call[B, R]) -> Callable[[Serve[B, R]], Serve[B, R]]:
    """Register how a Handler answers a call, now or later."""

    def register(serve: Serve[B, R]) -> Serve[B, R]:
        SERVED[call.name] = Served(call, serve)
        return serve

    return register
