"""Options of format("kproc-log"): those of format("kproc") where they mean the same, and `path`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kproc.spark.brokers import READ_COMMITTED, READ_UNCOMMITTED

EARLIEST: Final = -2
LATEST: Final = -1

PARTITION_BYTES: Final = 128 << 20
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_KNOWN: Final = {
    name.lower(): name
    for name in (
        "path",
        "topics",
        "topicsPattern",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "maxPartitionBytes",
        "isolation.level",
        "includeHeaders",
        "failOnDataLoss",
        "check.crcs",
    )
}
# What users of format("kproc") will try, and what it is here.
_MEANT: Final = {
    "subscribe": "topics",
    "subscribepattern": "topicsPattern",
    "kafka.isolation.level": "isolation.level",
    "kafka.check.crcs": "check.crcs",
    "minpartitions": "maxPartitionBytes",
    "kafka.bootstrap.servers": "path (there is no broker in it)",
}

# Topic -> partition -> offset, EARLIEST or LATEST; one number for all.
Offsets = int | dict[str, dict[int, int]]


@dataclass(frozen=True)
class LogOptions:
    """What is to be read."""

    paths: tuple[str, ...]
    topics: tuple[str, ...]
    pattern: str | None
    starting: Offsets
    ending: Offsets
    starting_timestamp: int | None
    ending_timestamp: int | None
    partition_bytes: int
    isolation: int
    fail_on_data_loss: bool
    check_crcs: bool

    @staticmethod
    def parse(given: Mapping[str, str]) -> LogOptions:
        """From Spark's options, whose names have no case; ValueError in one line."""
        options = {name.lower(): str(value).strip() for name, value in given.items()}
        for name in options:
            if name not in _KNOWN:
                hint = f": did you mean {_MEANT[name]}" if name in _MEANT else ""
                raise ValueError(
                    f"format kproc-log has no option {name}{hint or ', it has ' + ', '.join(_KNOWN.values())}"
                )
        paths = _words(options.get("path", ""))
        if not paths:
            raise ValueError("option path names no data directory (log.dirs of kproc or of Apache Kafka)")
        topics, pattern = _words(options.get("topics", "")), options.get("topicspattern")
        if bool(topics) == (pattern is not None):
            raise ValueError("give one of the options topics and topicsPattern")
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"topicsPattern {pattern!r} is no regular expression: {error}") from None
        return LogOptions(
            paths=paths,
            topics=topics,
            pattern=pattern,
            starting=_offsets("startingOffsets", options.get("startingoffsets", "earliest"), banned=LATEST),
            ending=_offsets("endingOffsets", options.get("endingoffsets", "latest"), banned=EARLIEST),
            starting_timestamp=_time("startingTimestamp", options.get("startingtimestamp")),
            ending_timestamp=_time("endingTimestamp", options.get("endingtimestamp")),
            partition_bytes=_bytes("maxPartitionBytes", options.get("maxpartitionbytes")),
            isolation=_isolation(options.get("isolation.level", "read_uncommitted")),
            fail_on_data_loss=_flag("failOnDataLoss", options.get("failondataloss", "true")),
            check_crcs=_flag("check.crcs", options.get("check.crcs", "true")),
        )


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in (piece.strip() for piece in text.split(",")) if word))


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name}={text!r} is neither true nor false")
    return text.lower() == "true"


def _isolation(text: str) -> int:
    if text not in ("read_uncommitted", "read_committed"):
        raise ValueError(f"isolation.level={text!r} is neither read_uncommitted nor read_committed")
    return READ_COMMITTED if text == "read_committed" else READ_UNCOMMITTED


def _time(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,18}", text):
        raise ValueError(f"{name}={text!r} is not a time in milliseconds since 1970")
    return int(text)


def _bytes(name: str, text: str | None) -> int:
    if text is None:
        return PARTITION_BYTES
    match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)b?", text.lower())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{name}={text!r} is not a size such as 64m")
    return int(match[1]) * _UNITS[match[2]]


def _offsets(name: str, text: str, *, banned: int) -> Offsets:
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words and words[text.lower()] != banned:
        return words[text.lower()]
    form = '{"topic": {"0": 23}}'
    word = "earliest" if banned == LATEST else "latest"
    try:
        parsed: Any = json.loads(text)
        found = {
            topic: {int(partition): _offset(offset, banned) for partition, offset in each.items()}
            for topic, each in parsed.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{name}={text!r} is neither {word} nor offsets such as {form}") from None
    return found


def _offset(value: Any, banned: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST or value == banned:
        raise ValueError(value)
    return value
