"""Checks that compare the pipeline's results with those that numpy computes from the same events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from examples.clicks.events import PAGES, SPAN_MS, START_MS, WINDOW_MS, ExpectedTotals
from kproc.client.requests import FetchLimits
from kproc.common.reading import EARLIEST, LATEST, READ_COMMITTED
from kproc.spark.brokers import Cluster
from kproc.spark.offsets import TopicPartition
from kproc.wire.record_batch import decode_records, parse_header

_FETCH_BYTES: Final = 4 << 20


class ResultCheck(NamedTuple):
    """A figure of the results and its expected value."""

    what: str
    found: int
    expected: int

    @property
    def is_right(self) -> bool:
        return self.found == self.expected


def read_topic(cluster: Cluster, topic: str, partitions: int) -> Iterator[dict[str, Any]]:
    """Yield the JSON of every committed record, partition by partition."""
    every = [TopicPartition(topic, index) for index in range(partitions)]
    starts = cluster.list_offsets(dict.fromkeys(every, EARLIEST))
    ends = cluster.list_offsets(dict.fromkeys(every, LATEST), isolation=READ_COMMITTED)
    for partition in every:
        offset = starts[partition]
        while offset < ends[partition]:
            fetched = cluster.fetch(partition, offset, FetchLimits(_FETCH_BYTES), isolation=READ_COMMITTED)
            data = memoryview(fetched.records)
            coming = sorted(((first, producer) for producer, first in fetched.aborted), reverse=True)
            aborted: set[int] = set()
            position = 0
            while position < len(data):
                header = parse_header(data, position)
                end = position + header.total_bytes
                if end > len(data):
                    # The response ends inside a batch.
                    break
                while coming and coming[-1][0] <= header.last_offset:
                    aborted.add(coming.pop()[1])
                if header.is_control:
                    aborted.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborted):
                    for record in decode_records(data[position:end]):
                        yield json.loads(record.value or b"{}")
                offset, position = header.last_offset + 1, end


def check_pages(rows: Iterable[dict[str, Any]], expected: ExpectedTotals) -> list[ResultCheck]:
    """Check the windows: each minute of each page must appear once, with the right counts."""
    views = np.zeros_like(expected.pages)
    spent = np.zeros_like(expected.pages_ms)
    count = 0
    for row in rows:
        minute = (row["minute"] - START_MS) // WINDOW_MS
        if not (0 <= minute < SPAN_MS // WINDOW_MS and 0 <= row["page"] < PAGES):
            # This window has the record that closes the others.
            continue
        count += 1
        views[minute, row["page"]] += row["views"]
        spent[minute, row["page"]] += row["ms"]
    return [
        ResultCheck("page views in windows", int(views.sum()), expected.views),
        ResultCheck("windows", count, int((expected.pages > 0).sum())),
        ResultCheck("windows with a wrong count", int((views != expected.pages).sum()), 0),
        ResultCheck("windows with a wrong sum", int((spent != expected.pages_ms).sum()), 0),
    ]


def check_conversions(rows: Iterable[dict[str, Any]], expected: ExpectedTotals) -> list[ResultCheck]:
    """Check the join: every order in time must appear once, with its amount, and no late order."""
    orders: list[int] = []
    revenue = 0
    for row in rows:
        if row["order_id"] >= 0:
            orders.append(row["order_id"])
            revenue += row["amount"]
    return [
        ResultCheck("clicks joined with an order", len(orders), expected.conversions),
        ResultCheck("orders that were joined", len(set(orders)), expected.conversions),
        ResultCheck("revenue", revenue, expected.revenue),
    ]


def check_sessions(directory: Path, expected: ExpectedTotals) -> list[ResultCheck]:
    """Check the sessions in the Parquet files."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(directory)
    table = table.filter(pc.greater_equal(table["visitor"], 0))
    took_ms = table["last_ms"].to_numpy() - table["first_ms"].to_numpy()
    return [
        ResultCheck("sessions", table.num_rows, expected.sessions),
        ResultCheck("page views in sessions", int(table["views"].to_numpy().sum()), expected.session_views),
        ResultCheck("milliseconds in sessions", int(took_ms.sum()), expected.session_ms),
    ]


def wrong(checks: Sequence[ResultCheck]) -> list[ResultCheck]:
    return [check for check in checks if not check.is_right]
