"""The records of share groups: their bytes, and damaged ones."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.share.membership.records import (
    SHARE_RECORDS,
    ShareEpoch,
    ShareRecordType,
    ShareRecordValue,
    ShareTargetEpoch,
)
from kproc.common.errors import Corrupt
from tests.support.share_groups import SAMPLES


@pytest.mark.parametrize(("record_type", "name", "value"), SAMPLES, ids=[each[0].name for each in SAMPLES])
def test_record_survives_encoding(record_type: ShareRecordType, name: str, value: ShareRecordValue) -> None:
    key = RecordKey(record_type, "g", name)
    encoded_key, encoded_value = SHARE_RECORDS.encode(key, value)
    assert SHARE_RECORDS.has(encoded_key)
    assert SHARE_RECORDS.decode(encoded_key, encoded_value) == (key, value)
    assert SHARE_RECORDS.decode(encoded_key, None) == (key, None)


def test_bytes_of_the_epochs_are_those_of_kafka() -> None:
    key = RecordKey(ShareRecordType.GROUP, "g")
    assert SHARE_RECORDS.encode(key, ShareEpoch(7, 1)) == (
        b"\0\x0b\0\x01g",
        b"\0\0\0\0\0\x07\0\0\0\0\0\0\0\x01\0",
    )
    key = RecordKey(ShareRecordType.TARGET, "g")
    # Kafka leaves out a tagged field that has its default.
    assert SHARE_RECORDS.encode(key, ShareTargetEpoch(7))[1] == b"\0\0\0\0\0\x07\0"


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0\x0b\0\x05g", None), (b"\0\x0a\0\x01g", None), (b"\0\x0b\0\x01g", b"\0\x01\0\0\0\x07")],
)
def test_damaged_record_is_corrupt(key: bytes, value: bytes | None) -> None:
    with pytest.raises(Corrupt, match="cannot decode a record of a group"):
        SHARE_RECORDS.decode(key, value)
