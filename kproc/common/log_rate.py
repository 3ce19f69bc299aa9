"""LogRate: lines that clients can bring about at will. So many a second are logged, the others are counted."""

from __future__ import annotations

import logging
from typing import Final

_LINES_PER_SECOND: Final = 10
_SECOND_NS: Final = 1_000_000_000


class LogRate:
    """One per kind of lines and role. How many there were too many is told in a later second: before its first line,
    or by the role's tick, for a flood that has ended."""

    __slots__ = ("_lines", "_lines_max", "_logger", "_more", "_since_ns")

    def __init__(
        self, logger: logging.Logger, more: str, *, lines_per_second: int = _LINES_PER_SECOND
    ) -> None:
        """`more` says how many were not logged, by a %d."""
        self._logger = logger
        self._lines_max = lines_per_second
        self._more = more
        self._lines = self._since_ns = 0

    def has_room(self, now_ns: int) -> bool:
        """Whether one more line may be logged now; if not, it is counted."""
        self.tell(now_ns)
        if not self._lines:
            self._since_ns = now_ns
        self._lines += 1
        return self._lines <= self._lines_max

    def tell(self, now_ns: int) -> None:
        """Once the second is over: how many lines were too many in it. For the role's tick, too."""
        if now_ns - self._since_ns < _SECOND_NS:
            return
        if self._lines > self._lines_max:
            self._logger.warning(self._more, self._lines - self._lines_max)
        self._lines = 0
