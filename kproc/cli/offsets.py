"""Looks up offsets by ListOffsets: the start and end of logs, and records by time. One request for all partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kproc.cli.unserved import Partition
from kproc.common.reading import READ_UNCOMMITTED

if TYPE_CHECKING:
    from kproc.client import Client

_TIMEOUT_MS: Final = 30_000
PATIENCE_MS: Final = 60_000
"""Time for an answer about many logs. A broker has to open each that was not used since its start."""


class FoundOffset(NamedTuple):
    """An offset and the time of its record in ms. The offset is -1 if no record matches.

    The time is -1 if no record matches, and for EARLIEST and LATEST.
    """

    offset: int
    timestamp_ms: int


def find_offsets(
    client: Client,
    timestamps: Mapping[Partition, int],
    errors: dict[Partition, str],
    *,
    isolation: int = READ_UNCOMMITTED,
) -> dict[Partition, FoundOffset]:
    """Return by partition the first record at or after a time in ms.

    EARLIEST, LATEST and MAX_TIMESTAMP stand for the ends of the log and for its record with the largest timestamp.
    Partitions with an error, for example because their log is offline, are added to `errors` instead.
    """
    from kproc.client import error_text
    from kproc.client.requests import list_offsets_fields
    from kproc.wire.header import ApiKey

    if not timestamps:
        return {}
    fields = list_offsets_fields(timestamps, isolation=isolation, timeout_ms=_TIMEOUT_MS)
    answer = client.call_latest(ApiKey.LIST_OFFSETS, fields, newest=9)
    found: dict[Partition, FoundOffset] = {}
    for topic in answer["topics"]:
        for row in topic["partitions"]:
            partition = topic["name"], row["partition_index"]
            if row["error_code"]:
                errors[partition] = error_text(row["error_code"])
            else:
                found[partition] = FoundOffset(row["offset"], row["timestamp"])
    return found


def served_offsets(
    client: Client,
    topic: str,
    timestamps: dict[int, int],
    errors: dict[Partition, str],
    *,
    isolation: int = READ_UNCOMMITTED,
) -> dict[int, int]:
    """Return by partition of one topic the offset at a time, as `find_offsets` does; -1 if all records are older."""
    wanted = {(topic, number): timestamp for number, timestamp in timestamps.items()}
    found = find_offsets(client, wanted, errors, isolation=isolation)
    return {number: each.offset for (_, number), each in found.items()}
