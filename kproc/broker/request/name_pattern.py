"""NamePattern: a client's regular expression over names, in RE2's syntax, matched in time linear in a name's length.

Kafka matches such patterns with RE2/J, which has the same syntax. Python's `re` has another syntax and backtracks: a
repeated group can take time exponential in a name's length and would block the Handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from time import thread_time
from typing import Final

import re2

from kproc.common.clock import NS_PER_MS
from kproc.common.errors import ErrorCode, KafkaError

_LENGTH_MAX: Final = 1_000
# Limit of a compiled pattern: about 10,000 instructions, each of which runs at most once per character of a name.
_PROGRAM_BYTES_MAX: Final = 1 << 20
# Limit of a pattern's instructions times a name's characters. A match takes up to 10 ns for each unit of the product,
# so up to 30 ms. The limit allows any pattern for names of 249 characters, and patterns of 90 instructions for the
# longest strings.
_WORK_MAX: Final = 3_000_000
# Converts characters to items of a list. A match of a hostile pattern takes up to 8 us per character, which is 2 ms for
# 249. An item of a list takes 10 us.
_CHARACTERS_PER_ITEM: Final = 32
# Limit of the CPU time of a selection, because other clients of the Handler wait meanwhile. Ordinary patterns match
# 10,000 names in 5 ms. The clock is read after every 8 names, which take at most 20 ms.
_SELECTION_SECONDS_MAX: Final = 0.05
_NAMES_PER_CHECK: Final = 8
# Limit of the CPU time that all selections in one window of 200 ms take. A selection that has started may exceed it.
_WINDOW_NS: Final = 200 * NS_PER_MS
_WINDOW_SECONDS_MAX: Final = 0.02


class NamePattern:
    """One pattern. An empty one matches any name. Raises KafkaError (INVALID_REGULAR_EXPRESSION) for invalid syntax."""

    __slots__ = ("_characters_max", "_compiled")

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _LENGTH_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"The pattern is longer than {_LENGTH_MAX} characters.",
            )
        self._compiled = _compiled(pattern) if pattern else None
        size = 1 if self._compiled is None else self._compiled.programsize
        self._characters_max = _WORK_MAX // max(1, size)

    def cost(self, name: str) -> int:
        """Return the cost of a match with this name: the number of list items that would be listed in the same time."""
        return 0 if self._compiled is None else len(name) // _CHARACTERS_PER_ITEM

    def select(self, names: Iterable[str]) -> list[str]:
        """Return the names that match. Raises INVALID_REGULAR_EXPRESSION if this takes longer than 50 ms of CPU."""
        end_s = thread_time() + _SELECTION_SECONDS_MAX
        selected: list[str] = []
        for number, name in enumerate(names):
            if self.matches(name):
                selected.append(name)
            if number % _NAMES_PER_CHECK == 0 and thread_time() > end_s:
                raise KafkaError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"The pattern is too complex: to match {number + 1} names took more than "
                    f"{_SELECTION_SECONDS_MAX * 1000:.0f} ms of CPU time. Use a simpler one",
                )
        return selected

    def matches(self, name: str) -> bool:
        """Return True if the pattern matches the whole name. A complex pattern matches no name of many kilobytes."""
        if self._compiled is None:
            return True
        return len(name) <= self._characters_max and self._compiled.fullmatch(name) is not None


class SelectionTime:
    """The CPU time that one Handler spends on selections, however many clients send patterns. `now_ns`: a clock."""

    __slots__ = ("_now_ns", "_spent_s", "_window_ns")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._window_ns = now_ns()
        self._spent_s = 0.0

    @property
    def is_used_up(self) -> bool:
        """True if no further selection may start in the present window of 200 ms."""
        now_ns = self._now_ns()
        if now_ns - self._window_ns >= _WINDOW_NS:
            self._window_ns, self._spent_s = now_ns, 0.0
        return self._spent_s >= _WINDOW_SECONDS_MAX

    def select(self, pattern: str, names: Iterable[str]) -> list[str]:
        """Return the names that match, and add the CPU time to the window. Raises INVALID_REGULAR_EXPRESSION."""
        start_s = thread_time()
        try:
            return NamePattern(pattern).select(names)
        finally:
            self._spent_s += thread_time() - start_s


# One entry, because a Handler first validates a request's pattern and then matches the same pattern.
@lru_cache(maxsize=1)
def _compiled(pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.log_errors = False  # RE2's errors go to the client, not to stderr.
    options.max_mem = _PROGRAM_BYTES_MAX
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason) from error
