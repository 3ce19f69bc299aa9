"""Patterns: for names of topics, and those of `kproc consume` for the text of keys and values."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Final

from kproc.cli.failure import Failure, usage_error
from kproc.cli.record_json import Consumed

_PATTERN_CHARACTERS_MAX: Final = 1_000
TEXT_BYTES_MAX: Final = 1 << 20
"""Number of bytes of a key or value that a pattern sees. It bounds the time that one record can take."""
# Characters of a shell pattern, which no topic name can contain.
_GLOB: Final = re.compile(r"[*?\[]")


def compile_pattern(option: str, text: str) -> re.Pattern[str]:
    """Compile a regular expression. An invalid one is a usage error."""
    if len(text) > _PATTERN_CHARACTERS_MAX:
        usage_error(
            f"{option}: the pattern has {len(text)} characters; at most {_PATTERN_CHARACTERS_MAX} are allowed"
        )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        usage_error(f"{option} {text!r}: not a regular expression: {error}")


def is_topic_pattern(name: str) -> bool:
    """Return True for a regular expression that begins with ^, as in librdkafka, and for a glob (with *, ? or [)."""
    return name.startswith("^") or _GLOB.search(name) is not None


def matching_topics(patterns: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the names in the order of `patterns`, without duplicates. A pattern gives its matches in `known`, sorted.

    Raise a Failure for a pattern without a match.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        if not is_topic_pattern(pattern):
            found[pattern] = None
            continue
        text = pattern if pattern.startswith("^") else fnmatch.translate(pattern)
        match = compile_pattern("TOPIC", text).match
        names = [name for name in sorted(known) if match(name)]
        if not names:
            raise Failure(f"no topic matches {pattern!r}")
        found |= dict.fromkeys(names)
    return list(found)


class RecordFilter:
    """Selects records by regular expressions that must be found in the text of the key and of the value.

    Bytes that are not UTF-8 count as U+FFFD. A key or value that is null matches no pattern.
    """

    def __init__(self, key: str | None, value: str | None) -> None:
        self._key = compile_pattern("--key", key) if key is not None else None
        self._value = compile_pattern("--grep", value) if value is not None else None

    def select(self, records: list[Consumed], count: int) -> tuple[list[Consumed], list[Consumed]]:
        """Return (records up to and including the `count`-th match, the matching records among them)."""
        matches = []
        for number, record in enumerate(records, 1):
            if self._matches(record):
                matches.append(record)
                if len(matches) == count:
                    return records[:number], matches
        return records, matches

    def _matches(self, record: Consumed) -> bool:
        return _is_found(self._key, record.key) and _is_found(self._value, record.value)


def _is_found(pattern: re.Pattern[str] | None, text: bytes | None) -> bool:
    if pattern is None:
        return True
    return text is not None and pattern.search(text[:TEXT_BYTES_MAX].decode("utf-8", "replace")) is not None
