"""Parses positions in a topic, an argument of several commands: `beginning`, `end`, an offset, -N or a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from kproc.cli.common import Failure, usage_error
from kproc.cli.offsets import served_offsets
from kproc.cli.unserved import Partition
from kproc.common.reading import EARLIEST, LATEST, READ_UNCOMMITTED

if TYPE_CHECKING:
    from kproc.client import Client

Where = str | int | datetime
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated."),
]
# Offsets have at most 19 digits. Limit the digits, because int() raises ValueError for more than 4,300.
_OFFSET: Final = re.compile(r"[+-]?[0-9]{1,19}")
_MILLISECONDS: Final = re.compile(r"@[+-]?[0-9]{1,19}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_where(option: str, text: str) -> Where:
    """Parse a position that a user gave with `option`. Raise a usage error, which names the option, for other texts.

    Return "beginning" for beginning or earliest, and "end" for end or latest. Return an int for an offset; -N is N
    before the end. Return a datetime for @N, which is N ms since 1970, and for an ISO 8601 time. A time without a time
    zone is local. Times before 1970 are usage errors, too.
    """
    words = {"beginning": "beginning", "earliest": "beginning", "end": "end", "latest": "end"}
    if text in words:
        return words[text]
    if _OFFSET.fullmatch(text):
        return int(text)
    try:
        if _MILLISECONDS.fullmatch(text):
            time = _EPOCH + timedelta(milliseconds=int(text[1:]))
        else:
            time = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        shown = text if len(text) <= 80 else text[:77] + "..."
        usage_error(
            f"{option} {shown!r}: expected beginning, end, an offset, -N, @milliseconds "
            "or a time such as 2026-01-31T12:00:00"
        )
    # Reject times before 1970: ListOffsets interprets the timestamp -1 as the end of the log, so `topic trim` would
    # delete every record.
    if time < _EPOCH:
        usage_error(
            f"{option} {text!r}: is before 1970; use beginning, end or a time since 1970-01-01T00:00:00Z"
        )
    return time


def _timestamp_ms(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(milliseconds=1)


class Positions(NamedTuple):
    """Offsets by partition: the log's start, its end, and the requested position, limited to this range.

    `beyond` has the partitions whose end, or whose last record's time, is before the requested position. Offline
    partitions are not in `found` and `beyond`.
    """

    starts: dict[int, int]
    ends: dict[int, int]
    found: dict[int, int]
    beyond: list[int]

    def at(self, number: int, offset: int) -> int:
        """Return the offset, or the nearest one in the range from the partition's start to its end."""
        return min(max(offset, self.starts[number]), self.ends[number])


def find_positions(
    client: Client,
    topic: str,
    numbers: list[int],
    where: Where,
    errors: dict[Partition, str],
    *,
    isolation: int = READ_UNCOMMITTED,
) -> Positions:
    """Request the offset of the position `where` in each partition. A time after the last record means the end.

    With read_committed the end is the last stable offset. Offline partitions are added to `errors`.
    """
    starts = served_offsets(client, topic, dict.fromkeys(numbers, EARLIEST), errors)
    ends = served_offsets(client, topic, dict.fromkeys(starts, LATEST), errors, isolation=isolation)
    numbers = list(ends)
    beyond: list[int] = []
    if isinstance(where, datetime):
        times = dict.fromkeys(numbers, _timestamp_ms(where))
        stamped = served_offsets(client, topic, times, errors, isolation=isolation)
        numbers = list(stamped)
        beyond = [number for number in numbers if stamped[number] < 0 and starts[number] < ends[number]]
        wanted = {number: stamped[number] if stamped[number] >= 0 else ends[number] for number in numbers}
    elif isinstance(where, int):
        beyond = [number for number in numbers if where > ends[number]]
        wanted = {number: where if where >= 0 else ends[number] + where for number in numbers}
    else:
        wanted = ends if where == "end" else starts
    positions = Positions(starts, ends, {}, beyond)
    positions.found.update((number, positions.at(number, wanted[number])) for number in numbers)
    return positions


def chosen_partitions(metadata: Mapping[str, Any], wanted: list[int] | None) -> list[int]:
    """Return the wanted partitions of a topic, or all for None. Raise a Failure for a partition that does not exist."""
    known = [row["partition_index"] for row in metadata["partitions"]]
    for number in wanted or ():
        if number not in known:
            raise Failure(f"{metadata['name']}: no partition {number}; there are {len(known)}")
    return sorted(set(wanted)) if wanted else known
