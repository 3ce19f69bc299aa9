"""Containment: what a surprise ends. One object per role, which every entrance of work into that role uses.

A surprise is any exception that nobody planned for. It ends the one request, reply, timer or waiting operation whose
work it came up in, is counted (the metric `contained_failures`), and is logged with its traceback the first time that
it comes up at a place. Only a FatalError passes: what is half done then, nobody but a successor can put right.

Work that is begun now and goes on later (a call to another role, a parked operation) is done for the same `owner`;
whoever keeps it keeps the owner, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from kproc.common.errors import FatalError

logger = logging.getLogger(__name__)

_PLACES_MAX: Final = 1000


class Owner(Protocol):
    """For whom work is done: a request, as a rule."""

    def fail(self) -> None:
        """A surprise came up: end with UNKNOWN_SERVER_ERROR, or with the connection. Nothing if it was answered."""


class Containment:
    """The surprises of one role, and the owner of what it does at this moment."""

    __slots__ = ("_places", "count", "owner")

    def __init__(self) -> None:
        self.count = 0  # Since whoever stores the metrics set it to 0.
        self.owner: Owner | None = None
        self._places: set[tuple[str, str, int]] = set()

    def run(self, what: str, owner: Owner | None, work: Callable[..., object], *arguments: Any) -> bool:
        """Do `work` for `owner`; False if a surprise ended it. `what` completes "... failed"."""
        before, self.owner = self.owner, owner
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - here they end
            self.caught(what, error, owner)
            return False
        finally:
            self.owner = before
        return True

    def caught(self, what: str, error: Exception, owner: Owner | None = None) -> None:
        """Count, log and end: for entrances that are too hot for `run`. A FatalError is raised again."""
        if isinstance(error, FatalError):
            raise error
        self.count += 1
        place = _place_of(error)
        if place in self._places or len(self._places) >= _PLACES_MAX:
            logger.debug("%s failed again: %r", what, error)
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

    def kept(self, what: str, callback: Callable[..., object]) -> Callable[..., None]:
        """`callback` for who calls it later: it then runs for the owner of now, and contained."""
        owner = self.owner

        def later(*arguments: Any) -> None:
            self.run(what, owner, callback, *arguments)

        return later


def _place_of(error: Exception) -> tuple[str, str, int]:
    """Kind of error, file and line where it was raised."""
    trace = error.__traceback__
    if trace is None:
        return type(error).__name__, "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return type(error).__name__, trace.tb_frame.f_code.co_filename, trace.tb_lineno
