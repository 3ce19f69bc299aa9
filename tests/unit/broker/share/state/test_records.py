"""The records of `__share_group_state`: bytes, damaged bytes, and Kafka's own decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kproc.broker.share.state.messages import SharePartitionKey, StateBatch
from kproc.broker.share.state.records import (
    ShareRecordValue,
    ShareStateRecordType,
    Snapshot,
    UnknownRecord,
    Update,
    base_key_of,
    decode_share_record,
    encode_share_key,
    encode_share_record,
    encode_tombstone,
)
from kproc.broker.storage.validate import COORDINATOR
from kproc.common.errors import Corrupt
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.java_tools import DUMP_LOG_SEGMENTS, run_tool
from tests.support.kafka_jars import missing_reason
from tests.support.logs import NOW_MS, LogRig, append_one

KEY = SharePartitionKey("grüße", bytes(range(0xF0, 0x100)), 7)
BATCHES = (StateBatch(5, 9, 0, 1), StateBatch(10, 2**62, 4, 32_767))
VALUES: list[ShareRecordValue] = [
    Snapshot(1, 2, 3, 4, 5, NOW_MS, NOW_MS + 1, BATCHES),
    Snapshot(0, 0, 0, -1, -1, NOW_MS, NOW_MS),
    Update(1, 3, 5, 6, BATCHES),
    Update(1, 3, -1, -1),
]


@pytest.mark.parametrize("value", VALUES)
def test_decode_share_record_reads_what_encode_wrote(value: ShareRecordValue) -> None:
    assert decode_share_record(*encode_share_record(KEY, value)) == (KEY, value)


def test_share_records_have_kafkas_bytes() -> None:
    key, value = encode_share_record(KEY, VALUES[3])
    assert key.hex() == "000100076772c3bcc39f65f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff00000007"
    assert value.hex() == "00000000000100000003ffffffffffffffff0100"
    assert encode_tombstone(KEY) == (b"\0\0" + key[2:], None)
    assert decode_share_record(*encode_tombstone(KEY)) == (KEY, None)


def test_base_key_of_an_update_is_its_snapshots_key() -> None:
    update, snapshot = (encode_share_key(ShareStateRecordType(number), KEY) for number in (1, 0))
    assert base_key_of(update) == snapshot
    assert base_key_of(snapshot) is None


def test_decode_share_record_rejects_damaged_bytes() -> None:
    key, value = encode_share_record(KEY, VALUES[0])
    for damaged in (None, b"", b"\0", key[:-1], key + b"\0", b"\0\0\xff\xff" + key[4:]):
        with pytest.raises(Corrupt):
            decode_share_record(damaged, value)
    for end in range(len(value)):
        with pytest.raises(Corrupt):
            decode_share_record(key, value[:end])
    with pytest.raises(Corrupt):
        decode_share_record(key, b"\0\1" + value[2:])
    with pytest.raises(UnknownRecord):
        decode_share_record(b"\0\2" + key[2:], value)


@pytest.mark.java
@pytest.mark.usefixtures("java_tools")
@pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or "")
def test_kafkas_decoder_reads_our_share_records(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "__share_group_state-0")
    log = rig.open()
    records: list[tuple[bytes, bytes | None]] = [encode_share_record(KEY, value) for value in VALUES]
    for key, value in [*records, encode_tombstone(KEY)]:
        batch = memoryview(encode_batch([Record(key, value, NOW_MS)]))
        assert append_one(log, batch, origin=COORDINATOR).error_code == 0
    log.close()
    (path,) = rig.directory.glob("*.log")
    result = run_tool(DUMP_LOG_SEGMENTS, "--share-group-state-decoder", "--files", str(path))
    assert not result.stderr
    lines = [line for line in result.lines if line.startswith("| offset")]
    keys = [json.loads(line.partition("key: ")[2].partition(" payload: ")[0]) for line in lines]
    assert lines[4].endswith("payload: <DELETE>")
    payloads = [json.loads(line.partition("payload: ")[2]) for line in lines[:4]]
    assert [key["type"] for key in keys] == ["0", "0", "1", "1", "0"]
    assert all(key["data"]["groupId"] == KEY.group_id and key["data"]["partition"] == 7 for key in keys)
    whole, empty, update, _ = (payload["data"] for payload in payloads)
    assert (whole["snapshotEpoch"], whole["stateEpoch"], whole["leaderEpoch"]) == (1, 2, 3)
    assert (whole["startOffset"], whole["deliveryCompleteCount"]) == (4, 5)
    assert (whole["createTimestamp"], whole["writeTimestamp"]) == (NOW_MS, NOW_MS + 1)
    assert empty["startOffset"] == -1
    assert update["stateBatches"] == [
        {"firstOffset": 5, "lastOffset": 9, "deliveryState": 0, "deliveryCount": 1},
        {"firstOffset": 10, "lastOffset": 2**62, "deliveryState": 4, "deliveryCount": 32_767},
    ]
