"""The records of streams groups: bytes of Kafka's message definitions, round trips, tombstones, damage."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.streams.reconciliation import StreamsMemberState
from kproc.broker.streams.records import (
    STREAMS_RECORDS,
    StreamsGroupEpoch,
    StreamsRecordType,
    StreamsRecordValue,
)
from kproc.broker.streams.tasks import OwnedTasks
from kproc.common.errors import Corrupt
from tests.support.streams_records import NAMED, VALUES


@pytest.mark.parametrize(("record_type", "value"), VALUES)
def test_record_reads_as_written(record_type: StreamsRecordType, value: StreamsRecordValue) -> None:
    key = RecordKey(record_type, "g", "m" if record_type in NAMED else "")
    encoded_key, encoded_value = STREAMS_RECORDS.encode(key, value)
    assert STREAMS_RECORDS.has(encoded_key)
    assert STREAMS_RECORDS.decode(encoded_key, encoded_value) == (key, value)
    assert STREAMS_RECORDS.decode(encoded_key, None) == (key, None)


def test_bytes_of_group_record() -> None:
    key = RecordKey(StreamsRecordType.GROUP, "g")
    # Key: type 17, string of 1. Value: version 0, epoch 7, hash 1, one tagged field: number 0, 4 bytes.
    assert STREAMS_RECORDS.encode(key, StreamsGroupEpoch(7, 1, 2)) == (
        b"\0\x11\0\1g",
        b"\0\0" + b"\0\0\0\7" + b"\0\0\0\0\0\0\0\1" + b"\1" + b"\0\4" + b"\0\0\0\2",
    )


def test_bytes_of_member_state_record() -> None:
    key = RecordKey(StreamsRecordType.MEMBER_STATE, "g", "m")
    state = StreamsMemberState(3, 2, MemberPhase.UNRELEASED, OwnedTasks({("s", 5): 4}))
    assert STREAMS_RECORDS.encode(key, state) == (
        b"\0\x16\0\1g\0\1m",
        b"\0\0"
        + b"\0\0\0\3\0\0\0\2\2"
        # One subtopology with partition 5, and in tagged field 0 the epoch 4.
        + b"\2"
        + b"\2s"
        + b"\2\0\0\0\5"
        + b"\1\0\5\2\0\0\0\4"
        + b"\1\1\1\1\1"
        + b"\0",
    )


def test_state_without_epochs_has_those_of_the_member() -> None:
    """Kafka before 4.2 wrote no epochs."""
    value = b"\0\0\0\0\0\3\0\0\0\2\0\2\2s\2\0\0\0\5\0\1\1\1\1\1\0"
    assert STREAMS_RECORDS.decode(b"\0\x16\0\1g\0\1m", value)[1] == StreamsMemberState(
        3, 2, MemberPhase.STABLE, OwnedTasks({("s", 5): 3})
    )


def test_unknown_state_is_read() -> None:
    value = b"\0\0\0\0\0\3\0\0\0\2\x09\1\1\1\1\1\1\0"
    state = STREAMS_RECORDS.decode(b"\0\x16\0\1g\0\1m", value)[1]
    assert state == StreamsMemberState(3, 2, MemberPhase.UNKNOWN)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(b"\0\x11\0\2g", None, id="short group"),
        pytest.param(b"\0\x13\0\1g\xff\xff", None, id="null member"),
        pytest.param(b"\0\x11\0\1g!", None, id="bytes after the key"),
        pytest.param(b"\0\x11\0\1g", b"\0\1\0\0\0\7\0", id="version of a newer Kafka"),
        pytest.param(b"\0\x17\0\1g", b"\0\0\0\0\0\1\x7f", id="more subtopologies than bytes"),
    ],
)
def test_damaged_record_is_corrupt(key: bytes, value: bytes | None) -> None:
    with pytest.raises(Corrupt, match="cannot decode a record of a group"):
        STREAMS_RECORDS.decode(key, value)
