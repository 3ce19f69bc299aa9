"""NamePattern: a client's regular expression over names, as far as it cannot hold a Handler for long.

Python's matcher backtracks: a repeated group may take time that is exponential in a name's length, three repetitions
the third power of it. So groups are not repeated, there are few repetitions and alternatives, and only names of usual
length match. What RE2 does not have either (references back, looking around) is refused, too.
"""

from __future__ import annotations

import re
from typing import Final

from kproc.errors import ErrorCode, KafkaError

_LENGTH_MAX: Final = 256
_REPETITIONS_MAX: Final = 3
_ALTERNATIVES_MAX: Final = 8
_NAME_MAX: Final = 249  # As long as a topic's name may be.
# An escape (`\d`, also `\)`), a set, the start of a special group, a repetition with the group before it, or `|`.
_PARTS: Final = re.compile(
    r"(?P<escape>\\.)|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<special>\(\?(?!:))"
    r"|(?P<group>\)[*+?{])|(?P<repetition>(?:[*+?]|\{[\d,]*\})[?+]?)|(?P<plain>\(\?:)|(?P<alternative>\|)",
    re.DOTALL,
)


class NamePattern:
    """One pattern; KafkaError (INVALID_REGULAR_EXPRESSION) if it is none that is served. Empty: any name."""

    __slots__ = ("_compiled",)

    def __init__(self, pattern: str) -> None:
        reason = _refusal(pattern)
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason)
        try:
            self._compiled = re.compile(pattern) if pattern else None
        except (re.error, OverflowError) as error:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error

    def matches(self, name: str) -> bool:
        """Whether the whole name fits."""
        if self._compiled is None:
            return True
        return len(name) <= _NAME_MAX and self._compiled.fullmatch(name) is not None


def _refusal(pattern: str) -> str | None:
    """Why such a pattern might take too long."""
    if len(pattern) > _LENGTH_MAX:
        return f"The pattern is longer than {_LENGTH_MAX} characters."
    counts = {"repetition": 0, "alternative": 0}
    for found in _PARTS.finditer(pattern):
        kind = found.lastgroup
        if kind == "special" or (kind == "escape" and found[0][1] in "123456789"):
            return f"{found[0]} is not served."
        if kind == "group":
            return "A group is not repeated."
        if kind in counts:
            counts[kind] += 1
    if counts["repetition"] > _REPETITIONS_MAX or counts["alternative"] > _ALTERNATIVES_MAX:
        return f"More than {_REPETITIONS_MAX} repetitions or {_ALTERNATIVES_MAX} alternatives."
    return None
