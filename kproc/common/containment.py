"""Containment: limits the damage of an unexpected exception to the request, reply or timer that raised it.

Each role has one Containment and runs every piece of incoming work through it. An unexpected exception fails that piece
of work only. It is counted (the metric `contained_failures`), and logged with its traceback the first time that a line
of code raises it. A FatalError is raised again: the role's state is half changed then, and only a successor that reads
the logs anew can continue.

Work that continues later, such as a call to another role or a parked operation, keeps its `owner`, so that a later
exception fails the right request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from kproc.common.errors import FatalError

logger = logging.getLogger(__name__)

# Limit of the lines of code that are remembered because they raised an exception. Further ones are logged at DEBUG
# only, so that the log cannot be flooded.
_PLACES_MAX: Final = 1000


class Owner(Protocol):
    """The request, connection or operation that a piece of work belongs to."""

    def fail(self) -> None:
        """Answer UNKNOWN_SERVER_ERROR, or close the connection. Do nothing if the response was sent."""


class Containment:
    """Catches and counts the unexpected exceptions of one role.

    `owner` is the request or operation that it works on now.
    """

    __slots__ = ("_places", "count", "owner")

    def __init__(self) -> None:
        self.count = 0  # Failures since the role last stored its metrics, which sets this to 0.
        self.owner: Owner | None = None
        self._places: set[tuple[str, str, int]] = set()

    def run(self, what: str, owner: Owner | None, work: Callable[..., object], *arguments: Any) -> bool:
        """Run `work` for `owner`. Return False if an exception of `work` was contained. A FatalError propagates.

        `what` is the subject of the log line "... failed".
        """
        before, self.owner = self.owner, owner
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - the one place that contains them
            self.caught(what, error, owner)
            return False
        finally:
            self.owner = before
        return True

    def caught(self, what: str, error: Exception, owner: Owner | None = None) -> None:
        """Count and log an exception of the work `what`, and fail its owner. Raise a FatalError again instead.

        Hot paths call this in their own `except`, to save the call of `run`.
        """
        if isinstance(error, FatalError):
            raise error
        self.count += 1
        place = _raised_at(error)
        if place in self._places or len(self._places) >= _PLACES_MAX:
            logger.debug("%s failed because of a bug in kproc (contained and counted): %r", what, error)
        else:
            self._places.add(place)
            logger.error(
                "%s failed because of a bug in kproc. The failure was contained and counted (contained_failures); "
                "further ones from this place are only counted",
                what,
                exc_info=error,
            )
        if owner is not None:
            owner.fail()

    def bind_owner(self, what: str, callback: Callable[..., object]) -> Callable[..., None]:
        """Return a callback that runs `callback` by `run`, with `what` and the present owner, whoever calls it."""
        owner = self.owner

        def contained(*arguments: Any) -> None:
            self.run(what, owner, callback, *arguments)

        return contained


def _raised_at(error: Exception) -> tuple[str, str, int]:
    """Return the type of the exception, and the file and line that raised it."""
    trace = error.__traceback__
    if trace is None:
        return type(error).__name__, "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return type(error).__name__, trace.tb_frame.f_code.co_filename, trace.tb_lineno
