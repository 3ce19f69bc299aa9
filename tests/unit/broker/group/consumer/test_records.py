"""The records of consumer groups: bytes of Kafka's message definitions, round trips, tombstones, damage."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.consumer.records import (
    CONSUMER_RECORDS,
    ConsumerRecordType,
    ConsumerRecordValue,
    GroupEpoch,
    MemberMetadata,
    MemberState,
)
from kproc.common.errors import Corrupt
from tests.support.consumer_records import TOPIC, VALUES


@pytest.mark.parametrize(("record_type", "value"), VALUES, ids=lambda each: type(each).__name__)
def test_record_reads_as_written(record_type: ConsumerRecordType, value: ConsumerRecordValue) -> None:
    name = "m" if record_type not in (ConsumerRecordType.GROUP, ConsumerRecordType.TARGET) else ""
    key = RecordKey(record_type, "g", name)
    encoded_key, encoded_value = CONSUMER_RECORDS.encode(key, value)
    assert CONSUMER_RECORDS.has(encoded_key)
    assert CONSUMER_RECORDS.decode(encoded_key, encoded_value) == (key, value)
    assert CONSUMER_RECORDS.decode(encoded_key, None) == (key, None)


def test_bytes_of_group_record() -> None:
    key = RecordKey(ConsumerRecordType.GROUP, "g")
    # Key: type 3, string of 1. Value: version 0, epoch 7, one tagged field: number 0, 8 bytes.
    assert CONSUMER_RECORDS.encode(key, GroupEpoch(7, 1)) == (
        b"\0\3\0\1g",
        b"\0\0" + b"\0\0\0\7" + b"\1" + b"\0\x08" + b"\0\0\0\0\0\0\0\1",
    )


def test_member_without_classic_protocols_is_read_from_kafka() -> None:
    """Kafka writes null for them: one tagged field, number 0 and 1 byte, which is 0. Its default is not null."""
    key = RecordKey(ConsumerRecordType.MEMBER, "g", "m")
    value = MemberMetadata(
        instance_id="seat", client_id="c", client_host="h", topic_regex="(^t$)", rebalance_timeout_ms=300_000
    )
    encoded_key, encoded = CONSUMER_RECORDS.encode(key, value)
    assert encoded == b"\0\0\5seat\0\2c\2h\1\6(^t$)\0\x04\x93\xe0\0\1\0\1\0"
    assert CONSUMER_RECORDS.decode(encoded_key, encoded) == (key, value)
    # A record without the field.
    assert CONSUMER_RECORDS.decode(encoded_key, encoded[:-4] + b"\0") == (key, value)


def test_bytes_of_member_state_record() -> None:
    key = RecordKey(ConsumerRecordType.MEMBER_STATE, "g", "m")
    state = MemberState(3, 2, MemberPhase.UNRELEASED, {TOPIC: {5: 4}})
    assert CONSUMER_RECORDS.encode(key, state) == (
        b"\0\x08\0\1g\0\1m",
        b"\0\0"
        + b"\0\0\0\3\0\0\0\2\2"
        + b"\2" + TOPIC + b"\2\0\0\0\5"  # one topic, one partition
        + b"\1\0\5\2\0\0\0\4"  # tagged field 0: an array of one epoch
        + b"\1"  # nothing to revoke
        + b"\0",
    )  # fmt: skip


def test_record_of_partition_metadata_is_ignored() -> None:
    """Kafka before 4.1 wrote it. Its value has no effect, whatever its layout."""
    assert CONSUMER_RECORDS.decode(b"\0\4\0\1g", b"\0\0damage") == (
        RecordKey(ConsumerRecordType.PARTITION_METADATA, "g"),
        None,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\3\0\5g", b""),
        (b"\0\3\xff\xff", None),
        (b"\0\3\0\1gmore", None),
        (b"\0\5\0\1g", None),
        (b"\0\3\0\1g", b"\0\1\0\0\0\7\0"),
        (b"\0\3\0\1g", b"\0\0\0\0"),
        (
            b"\0\x08\0\1g\0\1m",
            b"\0\0\0\0\0\3\0\0\0\2\2\2" + TOPIC + b"\2\0\0\0\5\1\0\x09\3\0\0\0\4\0\0\0\4\1\0",
        ),
        (b"\0\x10\0\1g\0\1m", b"\0\0\x7f"),
    ],
)
def test_damaged_record_is_corrupt(key: bytes, value: bytes | None) -> None:
    with pytest.raises(Corrupt, match="cannot decode a record of a group"):
        CONSUMER_RECORDS.decode(key, value)


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1\0\1g", b"\0\2\0\1g", b"\0\x0a\0\1g"])
def test_keys_of_other_records_are_told_apart(key: bytes) -> None:
    assert not CONSUMER_RECORDS.has(key)
