"""A consumer's decoder that is not ours: kafka-python's, which reads batches as Java's clients do."""

from __future__ import annotations

import pytest


def decode_as_a_consumer(batch: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of a batch's records. Any exception: a consumer stops at this batch."""
    default_records = pytest.importorskip("kafka.record.default_records")
    read = default_records.DefaultRecordBatch(batch)
    assert read.validate_crc()
    try:
        return [(each.offset, each.key, each.value) for each in read]
    except Exception as error:
        if "UnicodeDecodeError" in repr(error):
            return []  # A header's key: kafka-python is stricter here than Kafka and Java's clients.
        raise
