"""Transaction markers: their bytes, and how they are recognized."""

from __future__ import annotations

import pytest

from kproc.common.errors import KafkaError
from kproc.wire.record_batch import CONTROL, TRANSACTIONAL, Record, check_batch, decode_records, encode_batch
from kproc.wire.transaction_marker import (
    ControlType,
    control_type,
    coordinator_epoch_of,
    encode_end_transaction,
    read_end_transaction,
)


def test_transaction_markers_say_their_outcome_and_epoch():
    batch = encode_end_transaction(
        ControlType.COMMIT, timestamp_ms=5, producer_id=7, producer_epoch=3, coordinator_epoch=11
    )
    header = check_batch(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    (marker,) = decode_records(batch)
    assert control_type(marker) == ControlType.COMMIT
    assert coordinator_epoch_of(marker) == 11
    # The bytes that Kafka writes: version 0, type; version 0, coordinator epoch.
    assert (marker.key, marker.value) == (b"\0\0\0\1", b"\0\0\0\0\0\x0b")
    flags = TRANSACTIONAL | CONTROL
    record = Record(marker.key, marker.value, 5)
    assert batch == encode_batch([record], producer_id=7, producer_epoch=3, flags=flags)
    for broken in (Record(None, None), Record(b"\0", b"\0")):
        with pytest.raises(KafkaError):
            control_type(broken)
        with pytest.raises(KafkaError):
            coordinator_epoch_of(broken)


@pytest.mark.parametrize("outcome", ControlType)
def test_a_marker_is_recognised_by_its_bytes_and_nothing_else_is(outcome: ControlType) -> None:
    batch = encode_end_transaction(
        outcome, timestamp_ms=5, producer_id=7, producer_epoch=3, coordinator_epoch=-1
    )
    assert read_end_transaction(memoryview(batch)) == (outcome == ControlType.ABORT, -1)
    longer = encode_batch([Record(b"\0\0\0\1", b"\0\0\0\0\0\x0b!")])
    assert read_end_transaction(memoryview(longer)) is None
    assert read_end_transaction(memoryview(batch[:61])) is None
    for at, byte in ((61, 1), (65, 9), (69, 2), (70, 1), (77, 2)):
        damaged = bytearray(batch)
        damaged[at] = byte
        assert read_end_transaction(memoryview(damaged)) is None, at
