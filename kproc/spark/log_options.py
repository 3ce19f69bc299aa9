"""Options of format("kproc-log"). Names are those of format("kproc") where the meaning is the same. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kproc.client.requests import EARLIEST, LATEST, READ_UNCOMMITTED
from kproc.spark.option_values import (
    OptionError,
    read_byte_count,
    read_count_or_zero,
    read_flag,
    read_isolation,
    read_names,
    read_pattern,
)

PARTITION_BYTES: Final = 128 << 20
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
# Options of format("kproc") that users will try, and their names here.
_MEANT: Final = {
    "subscribe": "topics",
    "subscribepattern": "topicsPattern",
    "kafka.isolation.level": "isolation.level",
    "kafka.check.crcs": "check.crcs",
    "minpartitions": "maxPartitionBytes",
    "kafka.bootstrap.servers": "path (there is no broker in it)",
}

# Topic -> partition -> offset, EARLIEST or LATEST. A single number is for all partitions.
Offsets = int | dict[str, dict[int, int]]


@dataclass(frozen=True)
class LogOptions:
    """Parsed options of one read. Timestamps are in ms since 1970."""

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
        """Parse Spark's options; case does not matter in their names. Raise OptionError for the first invalid one."""
        options = {name.lower(): str(value).strip() for name, value in given.items()}
        for name in options:
            if name not in _KNOWN:
                hint = f": did you mean {_MEANT[name]}" if name in _MEANT else ""
                raise OptionError(
                    f"format kproc-log has no option {name}{hint or ', it has ' + ', '.join(_KNOWN.values())}"
                )
        if "path" not in options:
            raise OptionError("option path names no data directory (log.dirs of kproc or of Apache Kafka)")
        if ("topics" in options) == ("topicspattern" in options):
            raise OptionError("give one of the options topics and topicsPattern")

        def value(name: str, read: Callable[[str, str], Any], default: Any) -> Any:
            return read(name, options[name.lower()]) if name.lower() in options else default

        return LogOptions(
            paths=read_names("path", options["path"]),
            topics=value("topics", read_names, ()),
            pattern=value("topicsPattern", read_pattern, None),
            starting=_offsets("startingOffsets", options.get("startingoffsets", "earliest"), banned=LATEST),
            ending=_offsets("endingOffsets", options.get("endingoffsets", "latest"), banned=EARLIEST),
            starting_timestamp=value("startingTimestamp", read_count_or_zero, None),
            ending_timestamp=value("endingTimestamp", read_count_or_zero, None),
            partition_bytes=value("maxPartitionBytes", read_byte_count, PARTITION_BYTES),
            isolation=value("isolation.level", read_isolation, READ_UNCOMMITTED),
            fail_on_data_loss=value("failOnDataLoss", read_flag, True),
            check_crcs=value("check.crcs", read_flag, True),
        )


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
        raise OptionError(f"{name}={text!r} is neither {word} nor offsets such as {form}") from None
    return found


def _offset(value: Any, banned: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST or value == banned:
        raise ValueError(value)
    return value
