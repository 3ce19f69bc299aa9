"""Options of format("kproc-log"). Names are those of format("kproc") where the meaning is the same. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kproc.common.json_bytes import parse_json
from kproc.common.reading import EARLIEST, LATEST, READ_UNCOMMITTED
from kproc.spark.option_values import (
    OptionError,
    OptionTable,
    parse_table,
    read_byte_count,
    read_flag,
    read_isolation,
    read_long_or_zero,
    read_names,
    read_pattern,
    reject_unknown,
)

PARTITION_BYTES: Final = 128 << 20
_SIMPLE: Final[OptionTable] = {
    "topics": ("topics", read_names),
    "topicsPattern": ("pattern", read_pattern),
    "startingTimestamp": ("starting_timestamp", read_long_or_zero),
    "endingTimestamp": ("ending_timestamp", read_long_or_zero),
    "maxPartitionBytes": ("partition_bytes", read_byte_count),
    "isolation.level": ("isolation", read_isolation),
    "failOnDataLoss": ("fail_on_data_loss", read_flag),
    "check.crcs": ("check_crcs", read_flag),
}
_KNOWN: Final = (*_SIMPLE, "path", "startingOffsets", "endingOffsets", "includeHeaders")
# Options of format("kproc") that users may try with format("kproc-log"), and the text about the option that does the
# same.
_REFUSED: Final = {
    "subscribe": "it is topics here",
    "subscribepattern": "it is topicsPattern here",
    "kafka.isolation.level": "it is isolation.level here",
    "kafka.check.crcs": "it is check.crcs here",
    "minpartitions": "it is maxPartitionBytes here",
    "kafka.bootstrap.servers": "path names the data directory; no broker is asked",
}

# Offset, EARLIEST or LATEST, by topic and partition. A single number is for all partitions.
Offsets = int | dict[str, dict[int, int]]


@dataclass(frozen=True)
class LogOptions:
    """Parsed options of one read. Timestamps are in ms since 1970."""

    paths: tuple[str, ...]
    starting: Offsets
    ending: Offsets
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    partition_bytes: int = PARTITION_BYTES
    isolation: int = READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    check_crcs: bool = True

    @staticmethod
    def parse(given: Mapping[str, str]) -> LogOptions:
        """Parse Spark's options; case does not matter in their names. Raise OptionError for the first invalid one."""
        options = {name.lower(): str(value).strip() for name, value in given.items()}
        reject_unknown(options, _KNOWN, _REFUSED)
        if "path" not in options:
            raise OptionError(
                "option path is missing: name a data directory (log.dirs of kproc or of Apache Kafka)"
            )
        if ("topics" in options) == ("topicspattern" in options):
            raise OptionError("give exactly one of the options topics and topicsPattern")

        return LogOptions(
            paths=read_names("path", options["path"]),
            starting=_offsets("startingOffsets", options.get("startingoffsets", "earliest"), banned=LATEST),
            ending=_offsets("endingOffsets", options.get("endingoffsets", "latest"), banned=EARLIEST),
            **parse_table(options, _SIMPLE),
        )


def _offsets(name: str, text: str, *, banned: int) -> Offsets:
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words and words[text.lower()] != banned:
        return words[text.lower()]
    form = '{"topic": {"0": 23}}'
    word = "earliest" if banned == LATEST else "latest"
    try:
        parsed: Any = parse_json(text)
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
