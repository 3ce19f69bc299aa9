"""`kproc topic list`: topics with their size, traffic, use of their retention and last write."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Format,
    OutputFormat,
    interval_option,
    print_json,
    topic_metadata,
)
from kproc.cli.completion import complete_topics
from kproc.cli.connection import connect
from kproc.cli.human import format_bytes, format_duration
from kproc.cli.lines import print_note
from kproc.cli.offsets import PATIENCE_MS
from kproc.cli.rights import print_empty_list_note
from kproc.cli.tables import print_count, print_table
from kproc.cli.topic_usage import (
    Gaps,
    LogFigures,
    Rates,
    Retention,
    TrafficMeter,
    connect_locally,
    requested_logs,
    retentions,
    surveyed_logs,
)
from kproc.cli.topics import find_topics
from kproc.cli.unserved import Partition
from kproc.common.clock import SystemClock

if TYPE_CHECKING:
    from kproc.client import Client

_NAMED_MAX: Final = 3  # Offline partitions that the line below the table names.
# Columns that a narrow terminal does not show, in the order in which they are dropped.
_DROPPED: Final = ("PARTS", "OUT/S", "RETENTION", "WRITTEN")


class TopicOrder(StrEnum):
    """The column by which topics are sorted. Numbers are in descending order."""

    NAME = "name"
    PARTITIONS = "partitions"
    SIZE = "size"
    RATE_IN = "rate-in"
    RATE_OUT = "rate-out"
    RETENTION = "retention"
    WRITTEN = "written"


_KEYS: Final = {
    TopicOrder.PARTITIONS: "partitions",
    TopicOrder.SIZE: "size_bytes",
    TopicOrder.RATE_IN: "bytes_in_per_s",
    TopicOrder.RATE_OUT: "bytes_out_per_s",
    TopicOrder.RETENTION: "retention_used",
    TopicOrder.WRITTEN: "last_write_ms",
}


@dataclass(frozen=True)
class TopicSelection:
    """The argument and the options of `topic list` that choose topics."""

    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="Names, or patterns such as 'pay*' or '^pay.*'. Default: all topics but internal ones.",
            autocompletion=complete_topics,
        ),
    ] = None
    internal: Annotated[bool, typer.Option("--internal", help="Also list internal topics.")] = False
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="Print only the first N topics of the order."),
    ] = None

    def topics(self, client: Client) -> list[dict[str, Any]]:
        """Return the metadata of the chosen topics. Raise a Failure for a name or pattern without a topic."""
        if self.names:
            return find_topics(client, self.names, internal=self.internal)
        return [each for each in topic_metadata(client, None) if self.internal or not each.get("is_internal")]


def list_topics(
    selection: TopicSelection = TopicSelection(),
    sort: Annotated[TopicOrder, typer.Option("--sort", help="Column to sort by.")] = TopicOrder.NAME,
    interval: Annotated[
        float, interval_option("Measure traffic over this many seconds. 0: do not measure it.")
    ] = 1.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """List topics with size, traffic, retention and last write.

    SIZE: bytes of the records on the disk. IN/S, OUT/S: bytes per second from producers and to consumers. RETENTION:
    the used share of the limit by time or by bytes, and this limit; at 100 % the oldest records are deleted next.
    WRITTEN: time since the newest record. A dash is an unknown figure.
    """
    gaps = Gaps()
    rows, unserved = _measure(selection, interval, bootstrap, gaps)
    sort_rows(rows, sort)
    _print_topics(rows[: selection.limit], len(rows), output)
    gaps.report()
    if unserved:
        _print_unserved(unserved)


def _measure(
    selection: TopicSelection, interval_s: float, bootstrap: str, gaps: Gaps
) -> tuple[list[dict[str, Any]], list[Partition]]:
    """Return (a row for each chosen topic, the partitions of these topics that are not served).

    interval_s: seconds for which traffic is measured, or 0 for no measurement.
    """
    errors = dict[Partition, str]()
    with ExitStack() as stack:
        client = stack.enter_context(connect(bootstrap))
        client.timeout_ms = PATIENCE_MS
        local = connect_locally(client, bootstrap)
        if local is not None:
            stack.enter_context(local)
        meter = TrafficMeter(client, local, gaps) if interval_s else None
        topics = selection.topics(client)
        if not topics:
            print_empty_list_note(client, "topics")
        partitions = [
            (topic["name"], each["partition_index"]) for topic in topics for each in topic["partitions"]
        ]
        names = [topic["name"] for topic in topics]
        rates = meter.measure(interval_s, names) if meter is not None else {}
        # Survey the logs after the measurement. Before it, the last writes would be older by the whole interval.
        logs = surveyed_logs(local, errors) if local is not None else None
        if logs is None:
            logs = requested_logs(client, partitions, gaps, errors)
        rows = _rows(topics, logs, retentions(client, gaps, names))
    for row in rows:
        measured = rates.get(row["name"], Rates())
        row |= {f"{name}_per_s": value for name, value in measured._asdict().items()}
    # Return only chosen partitions: a survey of logs adds the errors of all topics.
    return rows, sorted(errors.keys() & set(partitions))


def _print_unserved(partitions: list[Partition]) -> None:
    names = [f"{topic}-{number}" for topic, number in partitions[:_NAMED_MAX]]
    more = f" and {len(partitions) - len(names)} more" if len(partitions) > len(names) else ""
    print_note(
        f"kproc: partitions not served: {', '.join(names)}{more}; kproc topic describe shows the reasons"
    )


def _print_topics(rows: list[dict[str, Any]], count: int, output: Format) -> None:
    if output is Format.JSON:
        print_json(rows)
        return
    header = ("TOPIC", "PARTS", "SIZE", "IN/S", "OUT/S", "RETENTION", "WRITTEN")
    now_ms = SystemClock().wall_ms()
    print_table(header, [_cells(row, now_ms) for row in rows], drop=_DROPPED, cut=("TOPIC",))
    print_count(count, "topic", shown=len(rows))


def sort_rows(rows: list[dict[str, Any]], order: TopicOrder) -> None:
    """Sort the rows in place: names ascending, numbers descending. Rows without a value in the column come last.

    Rows with equal numbers are sorted by name.
    """
    rows.sort(key=lambda row: str(row["name"]))
    if order is not TopicOrder.NAME:
        key = _KEYS[order]
        rows.sort(key=lambda row: -1 if row[key] is None else row[key], reverse=True)


def _rows(
    topics: list[dict[str, Any]], logs: Mapping[Partition, LogFigures], limits: Mapping[str, Retention]
) -> list[dict[str, Any]]:
    now_ms = SystemClock().wall_ms()
    rows = []
    for topic in topics:
        name, partitions = topic["name"], topic["partitions"]
        keys = [(name, each["partition_index"]) for each in partitions]
        known = [logs[key] for key in keys if key in logs]
        sizes = [each.bytes for each in known if each.bytes is not None]
        ages = [now_ms - each.oldest_ms for each in known if each.oldest_ms >= 0]
        rows.append(
            {
                "name": name,
                "partitions": len(partitions),
                "size_bytes": sum(sizes) if sizes else None,
                "last_write_ms": max((each.newest_ms for each in known if each.newest_ms >= 0), default=None),
                **_retention(limits.get(name), max(sizes, default=None), max(ages, default=0)),
            }
        )
    return rows


def _retention(limit: Retention | None, largest_bytes: int | None, age_ms: int) -> dict[str, Any]:
    """Return the retention limits, and the used share and name ("time" or "bytes") of the limit that is reached first.

    The name is "policy" if the cleanup policy deletes no old records. All values are None if `limit` is.

    largest_bytes: size of the largest partition, because the limit by bytes is for each partition. age_ms: age of the
    oldest record.
    """
    if limit is None:
        return dict.fromkeys(("retention_ms", "retention_bytes", "retention_used", "retention_by"))
    shares: list[tuple[float, str]] = []
    if limit.has_time:
        shares.append((max(0, age_ms) / max(1, limit.ms), "time"))
    if limit.has_bytes and largest_bytes is not None:
        shares.append((largest_bytes / max(1, limit.bytes), "bytes"))
    by = "policy" if not limit.deletes else None
    used, by = max(shares, default=(None, by))
    return {
        "retention_ms": limit.ms,
        "retention_bytes": limit.bytes,
        "retention_used": used,
        "retention_by": by,
    }


def _cells(row: Mapping[str, Any], now_ms: int) -> list[object]:
    size, last_ms = row["size_bytes"], row["last_write_ms"]
    traffic = [row[name] for name in ("bytes_in_per_s", "bytes_out_per_s")]
    return [
        row["name"],
        row["partitions"],
        None if size is None else format_bytes(size),
        *(None if each is None else format_bytes(each) for each in traffic),
        _retention_cell(row),
        None if last_ms is None else format_duration(now_ms - last_ms),
    ]


def _retention_cell(row: Mapping[str, Any]) -> str | None:
    if row["retention_ms"] is None:
        return None
    if row["retention_by"] == "policy":
        return "compact"
    if row["retention_used"] is None:
        return "unlimited" if row["retention_bytes"] < 0 else None
    is_time = row["retention_by"] == "time"
    limit = format_duration(row["retention_ms"]) if is_time else format_bytes(row["retention_bytes"])
    return f"{row['retention_used']:.0%} of {limit}"
