"""`kproc topic describe`: shows partitions of topics with offsets, sizes and problems, and settings that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kproc.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, Format, OutputFormat, print_json
from kproc.cli.completion import complete_topics
from kproc.cli.config_requests import SET_ON_TOPIC, describe_configs, topic_resource
from kproc.cli.connection import connect
from kproc.cli.human import format_bytes, format_duration
from kproc.cli.lines import print_facts, print_line, print_text
from kproc.cli.offsets import FoundOffset, find_offsets
from kproc.cli.tables import print_table
from kproc.cli.topic_usage import Gaps, log_sizes
from kproc.cli.topics import find_topics
from kproc.cli.transaction_requests import open_transactions
from kproc.cli.unserved import Partition, explain_unserved
from kproc.common.clock import SystemClock
from kproc.common.reading import EARLIEST, LATEST, MAX_TIMESTAMP, READ_COMMITTED

if TYPE_CHECKING:
    from kproc.client import Client


def describe(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC", help="Names, or patterns such as 'pay*'.", autocompletion=complete_topics
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show partitions and the settings of topics.

    Partitions have their offsets and sizes. Settings are those that differ from the broker's.

    STABLE: the last stable offset; with read_committed consumers read up to it. TXNS: open transactions, which hold it
    back. WRITTEN: time since the newest record. A partition that is not served has its reason instead.
    """
    gaps, errors = Gaps(), dict[Partition, str]()
    with connect(bootstrap) as client:
        described = _describe(client, find_topics(client, names), gaps, errors)
    line_of = explain_unserved(bootstrap, errors)
    for topic in described:
        for row in topic["partitions"]:
            row["error"] = line_of.get((topic["name"], row["partition"]))
    if output is Format.JSON:
        print_json(described)
    else:
        _print(described)
    gaps.report()


class _Figures(NamedTuple):
    """Offsets, sizes and transactions of partitions. An offline partition is only in `sizes`."""

    starts: dict[Partition, FoundOffset]
    stable: dict[Partition, FoundOffset]
    ends: dict[Partition, FoundOffset]
    newest: dict[Partition, FoundOffset]
    sizes: dict[Partition, int]
    opened: dict[Partition, list[dict[str, int]]]
    """The open transactions of partitions whose last stable offset lags, as far as the broker tells them."""

    def records(self, topic: str) -> int:
        """Return the number of offsets in a topic's logs, the sum of end minus start."""
        return sum(end.offset - self.starts[key].offset for key, end in self.ends.items() if key[0] == topic)

    def describe(self, topic: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a dict about the partition that `row` of the Metadata response describes."""
        key = topic, row["partition_index"]
        is_served = key in self.ends
        is_held_back = is_served and self.stable[key].offset < self.ends[key].offset
        last_ms = self.newest[key].timestamp_ms if key in self.newest else -1
        return {
            "partition": key[1],
            "leader": row["leader_id"],
            "leader_epoch": row.get("leader_epoch"),
            "start_offset": self.starts[key].offset if is_served else None,
            "end_offset": self.ends[key].offset if is_served else None,
            "last_stable_offset": self.stable[key].offset if is_served else None,
            "open_transactions": self.opened.get(key) if is_held_back else [],
            "size_bytes": self.sizes.get(key),
            "last_write_ms": last_ms if last_ms >= 0 else None,
        }


def _find_figures(
    client: Client, numbers: Mapping[str, list[int]], gaps: Gaps, errors: dict[Partition, str]
) -> _Figures:
    """Request offsets, sizes and transactions of these partitions. Offline partitions are added to `errors`."""
    partitions = [(name, number) for name, each in numbers.items() for number in each]
    # Each request contains only the partitions that the previous one has found, so that an offline partition causes one
    # error and not four.
    starts = find_offsets(client, dict.fromkeys(partitions, EARLIEST), errors)
    stable = find_offsets(client, dict.fromkeys(starts, LATEST), errors, isolation=READ_COMMITTED)
    ends = find_offsets(client, dict.fromkeys(stable, LATEST), errors)
    filled = [each for each in ends if starts[each].offset < ends[each].offset]
    newest = find_offsets(client, dict.fromkeys(filled, MAX_TIMESTAMP), errors)
    sizes = log_sizes(client, gaps, numbers)
    # Only partitions whose last stable offset is below the end can have open transactions, so usually no request for
    # these is needed.
    held_back = [each for each in ends if stable[each].offset < ends[each].offset]
    opened = _open_transactions(client, held_back, gaps) if held_back else {}
    return _Figures(starts, stable, ends, newest, sizes, opened)


def _describe(
    client: Client, topics: list[dict[str, Any]], gaps: Gaps, errors: dict[Partition, str]
) -> list[dict[str, Any]]:
    numbers = {topic["name"]: [row["partition_index"] for row in topic["partitions"]] for topic in topics}
    figures = _find_figures(client, numbers, gaps, errors)
    settings = _topic_settings(client, list(numbers), gaps)
    return [
        {
            "name": topic["name"],
            "id": _topic_id_text(topic.get("topic_id")),
            "records": figures.records(topic["name"]),
            "configs": settings.get(topic["name"]),
            "partitions": [figures.describe(topic["name"], row) for row in topic["partitions"]],
        }
        for topic in topics
    ]


def _open_transactions(
    client: Client, partitions: list[Partition], gaps: Gaps
) -> dict[Partition, list[dict[str, int]]]:
    """Return the producers with an open transaction by partition, with the oldest transaction first."""
    from kproc.client import error_text
    from kproc.wire.header import ApiKey

    if gaps.lacks(client, ApiKey.DESCRIBE_PRODUCERS, "open transactions"):
        return {}
    refused: dict[Partition, dict[str, Any]] = {}
    found = open_transactions(client, partitions, refused)
    for row in refused.values():
        gaps.add("open transactions", error_text(row["error_code"]))
    return {
        partition: [
            {
                "producer_id": each["producer_id"],
                "producer_epoch": each["producer_epoch"],
                "start_offset": each["current_txn_start_offset"],
            }
            for each in rows
        ]
        for partition, rows in found.items()
    }


def _topic_settings(client: Client, names: list[str], gaps: Gaps) -> dict[str, dict[str, str | None]]:
    """Return the settings that are set on the topics themselves.

    A topic whose settings the user may not see is omitted.
    """
    from kproc.client import error_text

    found: dict[str, dict[str, str | None]] = {}
    for result in describe_configs(client, map(topic_resource, names), None):
        if result["error_code"]:
            gaps.add("settings", error_text(result["error_code"]))
            continue
        own = {
            row["name"]: row["value"] for row in result["configs"] if row.get("config_source") == SET_ON_TOPIC
        }
        found[result["resource_name"]] = own
    return found


def _topic_id_text(topic_id: bytes | None) -> str | None:
    """Format a topic id as Kafka does, in URL-safe base64 without padding. Return None for no id or one of zeros."""
    import base64

    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if topic_id and any(topic_id) else None


def _print(described: list[dict[str, Any]]) -> None:
    now_ms = SystemClock().wall_ms()
    for position, topic in enumerate(described):
        if position:
            print_line()
        rows = topic["partitions"]
        sizes = [row["size_bytes"] for row in rows if row["size_bytes"] is not None]
        configs = topic["configs"]
        facts = [
            f"topic {topic['name']}",
            f"id {topic['id'] or '-'}",
            f"partitions {len(rows)}",
            f"records {topic['records']}",
            f"size {format_bytes(sum(sizes)) if sizes else '-'}",
            "settings " + (" ".join(f"{name}={value}" for name, value in (configs or {}).items()) or "-"),
        ]
        print_facts(facts)
        has_errors = any(row["error"] for row in rows)
        header = ["PARTITION", "LEADER", "EPOCH", "START", "END", "STABLE", "TXNS", "SIZE", "WRITTEN"]
        print_table(
            [*header, "PROBLEM"] if has_errors else header,
            [_cells(row, now_ms, with_error=has_errors) for row in rows],
            drop=("EPOCH", "LEADER", "TXNS", "STABLE", "WRITTEN", "START"),
            cut=("PROBLEM",),
        )
        for row in rows:
            if row["error"]:
                print_text(f"partition not served: {row['error']}", indent="  ")


def _cells(row: Mapping[str, Any], now_ms: int, *, with_error: bool) -> list[object]:
    opened, size, last_ms = row["open_transactions"], row["size_bytes"], row["last_write_ms"]
    cells = [
        *(row[name] for name in ("partition", "leader", "leader_epoch", "start_offset", "end_offset")),
        row["last_stable_offset"],
        None if opened is None or row["error"] else len(opened),
        None if size is None else format_bytes(size),
        None if last_ms is None else format_duration(now_ms - last_ms),
    ]
    return [*cells, row["error"]] if with_error else cells
