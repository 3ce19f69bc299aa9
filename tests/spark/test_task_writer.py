"""TaskWriter: its memory while it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kproc.spark.encode import Draft
from kproc.spark.sink_options import parse_sink_options
from kproc.spark.task_writer import GATHER_ALL_BYTES_MAX, TaskWriter

pytest.importorskip("pyspark")

pa = pytest.importorskip("pyarrow")

MiB = 1024 * 1024
BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


class Sent:
    """In the place of a Producer: counts what it is given."""

    def __init__(self) -> None:
        self.batch_bytes: dict[str, int] = {}
        self.bytes = 0
        self.records: Counter[str] = Counter()

    def partition_count(self, topic: str) -> int:
        return 100

    def send(self, topic: str, draft: Draft) -> None:
        self.bytes += draft.total_bytes
        self.records[topic] += draft.count

    def poll(self) -> None: ...

    def flush(self) -> None: ...


@pytest.mark.long
def test_writer_bounds_buffered_rows_over_all_topics() -> None:
    sent: Any = Sent()
    given = 0
    most = 0

    def batches() -> Iterator[Any]:
        nonlocal given, most
        value = b"x" * 10_000
        for number in range(120):
            yield pa.record_batch(
                {"value": pa.array([value] * 105), "topic": pa.array([f"t{number % 40}"] * 105)}
            )
            given += 105 * len(value)
            most = max(most, given - sent.bytes)

    TaskWriter(parse_sink_options(BROKER), sent, 0).write(batches())
    assert given > 3 * GATHER_ALL_BYTES_MAX
    assert 20 * MiB < most < GATHER_ALL_BYTES_MAX + 2 * MiB
    assert sent.records == {f"t{number}": 3 * 105 for number in range(40)}


def test_writer_counts_unused_columns_that_share_a_buffer() -> None:
    sent: Any = Sent()
    sent_when: list[int] = []

    def batches() -> Iterator[Any]:
        for number in range(40):
            yield pa.record_batch({"value": pa.array(["v"] * 1_000), "more": pa.array(["x" * 2_000] * 1_000)})
            if sum(sent.records.values()) == 1_000 * (number + 1):
                sent_when.append(number + 1)

    TaskWriter(parse_sink_options({**BROKER, "topic": "t"}), sent, 0).write(batches())
    assert sent_when == [17, 34]  # 2 MB each, 32 MiB in all.
    assert sent.records == {"t": 40_000}
