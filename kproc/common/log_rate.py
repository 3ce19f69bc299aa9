"""LogRate: limits log lines that clients can cause. Lines above the rate are counted instead of logged."""

from __future__ import annotations

import logging
from typing import Final

from kproc.common.clock import NS_PER_S

_LINES_PER_SECOND: Final = 10


class LogRate:
    """Limits one kind of log line of one role to a number of lines per second.

    The number of suppressed lines is logged in a later second: before its first line, or by the role's tick after the
    flood has ended.
    """

    __slots__ = ("_lines", "_lines_max", "_logger", "_more", "_since_ns")

    def __init__(
        self, logger: logging.Logger, more: str, *, lines_per_second: int = _LINES_PER_SECOND
    ) -> None:
        """`more` is the text of the line about suppressed lines; its %d is their number."""
        self._logger = logger
        self._lines_max = lines_per_second
        self._more = more
        self._lines = self._since_ns = 0

    def has_room(self, now_ns: int) -> bool:
        """Return True if one more line may be logged in this second. Otherwise count the line as suppressed."""
        self.report_suppressed(now_ns)
        if not self._lines:
            self._since_ns = now_ns
        self._lines += 1
        return self._lines <= self._lines_max

    def report_suppressed(self, now_ns: int) -> None:
        """Log the number of suppressed lines if the second in which they were counted is over.

        Called by the role's tick, too.
        """
        if now_ns - self._since_ns < NS_PER_S:
            return
        if self._lines > self._lines_max:
            self._logger.warning(self._more, self._lines - self._lines_max)
        self._lines = 0
