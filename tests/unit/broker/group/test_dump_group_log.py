"""Apache Kafka's own DumpLogSegments reads the offsets that our coordinators write, in transactions and outside."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kproc.broker.config import Config
from kproc.broker.coordinator.coordinator_log import CoordinatorLog
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.coordinator.rules import Marker, Producer
from kproc.broker.group.consumer.records import (
    CONSUMER_RECORDS,
    ConsumerRecordType,
    ConsumerRecordValue,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    MemberTarget,
    TargetEpoch,
)
from kproc.broker.group.messages import CommitRequest
from kproc.broker.group.records import CommittedOffset, OffsetKey
from kproc.broker.handler.coordinator_kinds import groups
from kproc.broker.share.membership.records import SHARE_RECORDS
from kproc.broker.streams.records import STREAMS_RECORDS
from kproc.common.clock import ManualClock
from kproc.common.deadlines import Deadlines
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.consumer_groups import NO_TOPICS
from tests.support.consumer_records import VALUES
from tests.support.coordinators import ALL_TOPICS, UNGUARDED
from tests.support.java_tools import DUMP_LOG_SEGMENTS, run_tool
from tests.support.kafka_jars import missing_reason
from tests.support.logs import NOW_MS, TOPIC_ID, LogRig
from tests.support.owned_log import OwnedLog
from tests.support.share_groups import SAMPLES as SHARE_SAMPLES
from tests.support.streams_records import NAMED as STREAMS_NAMED
from tests.support.streams_records import VALUES as STREAMS_VALUES

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]


def fill(rig: LogRig) -> None:
    """Offset 1 outside, 2 and 3 in transactions of two producers; one commits, the other aborts."""
    with closing(rig.open()) as log:
        clock = ManualClock(wall_ms=NOW_MS)
        kind = groups(Config(), clock, NO_TOPICS)
        shard = CoordinatorLog(kind, OwnedLog(log), Config(), clock, Deadlines(), {}, 0, UNGUARDED)
        shard.load_some(ALL_TOPICS)
        for offset, producer in ((1, None), (2, Producer(7, 0)), (3, Producer(8, 4))):
            value = CommittedOffset(offset=offset, commit_timestamp_ms=NOW_MS, topic_id=TOPIC_ID)
            request = CommitRequest(
                group_id="g",
                member_id="",
                group_instance_id=None,
                generation=-1,
                knows_unknown_group=False,
                offsets=[(OffsetKey("g", "t", 0), value)],
                producer=producer,
            )
            shard.coordinator.offset_requests.commit(request, lambda code: None)
        assert shard.append_marker(Marker(7, 0, 5, True, 0)) == 0
        assert shard.append_marker(Marker(8, 4, 5, False, 0)) == 0


def test_offsets_of_transactions_and_their_markers_are_read(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "__consumer_offsets-0")
    fill(rig)
    files = ",".join(str(path) for path in rig.directory.glob("*.log"))
    result = run_tool(DUMP_LOG_SEGMENTS, "--offsets-decoder", "--files", files)
    assert not result.stderr
    batches = [line for line in result.lines if line.startswith("baseOffset")]
    assert [line.split("producerId: ")[1].split()[0] for line in batches] == ["-1", "7", "8", "7", "8"]
    assert ["isTransactional: true" in line for line in batches] == [False, True, True, True, True]
    assert all("isvalid: true" in line for line in batches)
    records = [line for line in result.lines if line.startswith("| offset")]
    for line, offset in zip(records, (1, 2, 3), strict=False):
        assert '"group":"g","topic":"t","partition":0' in line
        assert f'"offset":{offset},' in line
    endings = [line.split("endTxnMarker: ")[1].split()[0] for line in records if "endTxnMarker" in line]
    assert endings == ["COMMIT", "ABORT"]


def test_records_of_consumer_groups_are_read(tmp_path: Path) -> None:
    """Each type with everything that it can hold, and its tombstone."""
    records = []
    for record_type, value in VALUES:
        is_of_group = record_type in (ConsumerRecordType.GROUP, ConsumerRecordType.TARGET)
        key = RecordKey(record_type, "g", "" if is_of_group else "m")
        records += [CONSUMER_RECORDS.encode(key, value), CONSUMER_RECORDS.encode(key, None)]
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(encode_batch([Record(key, value) for key, value in records]))
    result = run_tool(DUMP_LOG_SEGMENTS, "--offsets-decoder", "--files", str(path))
    assert not result.stderr
    lines = [line for line in result.lines if line.startswith("| offset")]
    assert len(lines) == len(records)
    for number, (line, (record_type, value)) in enumerate(zip(lines[::2], VALUES, strict=True)):
        assert f'{{"type":"{int(record_type)}","data":{{"groupId":"g"' in line, line
        assert '{"version":"0","data":{' in line, line
        assert lines[2 * number + 1].endswith("payload: <DELETE>"), lines[2 * number + 1]
        for text in texts(value):
            assert text in line, (text, line)


def test_records_of_share_groups_are_read(tmp_path: Path) -> None:
    """Each type with everything that it can hold, and its tombstone."""
    records = []
    for record_type, name, value in SHARE_SAMPLES:
        key = RecordKey(record_type, "g", name)
        records += [SHARE_RECORDS.encode(key, value), SHARE_RECORDS.encode(key, None)]
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(encode_batch([Record(key, value) for key, value in records]))
    result = run_tool(DUMP_LOG_SEGMENTS, "--offsets-decoder", "--files", str(path))
    assert not result.stderr
    lines = [line for line in result.lines if line.startswith("| offset")]
    assert len(lines) == len(records)
    assert all(line.endswith("payload: <DELETE>") for line in lines[1::2])
    for line, (record_type, _, _) in zip(lines[::2], SHARE_SAMPLES, strict=True):
        assert f'{{"type":"{int(record_type)}","data":{{"groupId":"g"' in line, line
    text = "\n".join(lines)
    for expected in (
        '"rackId":null,"clientId":"c","clientHost":"/h","subscribedTopicNames":["t","u"]',
        '"epoch":7,"metadataHash":-5',
        '"assignmentEpoch":7,"assignmentTimestamp":1234',
        '"memberEpoch":7,"previousMemberEpoch":6,"state":0,"assignedPartitions":[{"topicId":"AAECAwQFBgcICQoLDA0ODw"',
        '"initializingTopics":[{"topicId":"AAECAwQFBgcICQoLDA0ODw","topicName":"t","partitions":[1]}]',
        '"deletingTopics":[{"topicId":"AAECAwQFBgcICQoLDA0ODw","topicName":"t"}]',
    ):
        assert expected in text, (expected, text)


def test_records_of_streams_groups_are_read(tmp_path: Path) -> None:
    """Each type with everything that it can hold, and its tombstone."""
    records = []
    for record_type, value in STREAMS_VALUES:
        key = RecordKey(record_type, "g", "m" if record_type in STREAMS_NAMED else "")
        records += [STREAMS_RECORDS.encode(key, value), STREAMS_RECORDS.encode(key, None)]
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(encode_batch([Record(key, value) for key, value in records]))
    result = run_tool(DUMP_LOG_SEGMENTS, "--offsets-decoder", "--files", str(path))
    assert not result.stderr
    lines = [line for line in result.lines if line.startswith("| offset")]
    assert len(lines) == len(records)
    for line, (record_type, _) in zip(lines[::2], STREAMS_VALUES, strict=True):
        assert f'{{"type":"{int(record_type)}","data":{{"groupId":"g"' in line, line
        assert '{"version":"0","data":{' in line, line
    text = "\n".join(lines)
    for expected in (
        '"epoch":7,"metadataHash":-1,"validatedTopologyEpoch":3,"lastAssignmentConfigs":[{"key":"num.standby.replicas"',
        '"processId":"p","userEndpoint":{"host":"localhost","port":65535},"clientTags":[{"key":"zone","value":"a"}]',
        '"assignmentEpoch":4,"assignmentTimestamp":5',
        '"activeTasks":[{"subtopologyId":"0","partitions":[1,2]}],"standbyTasks":[{"subtopologyId":"1","partitions":[1]}]',
        '"memberEpoch":4,"previousMemberEpoch":3,"state":1,"activeTasks":[{"subtopologyId":"0","partitions":[1],'
        '"assignmentEpochs":[3]}]',
        '"copartitionGroups":[{"sourceTopics":[0,1],"sourceTopicRegex":[],"repartitionSourceTopics":[0]}]',
    ):
        assert expected in text, text


def texts(value: ConsumerRecordValue) -> list[str]:
    """Return what Kafka's decoder says of fields of a value."""
    match value:
        case GroupEpoch():
            return [
                f'"epoch":{value.epoch}',
                f'"metadataHash":{value.metadata_hash}' if value.metadata_hash else "",
            ]
        case TargetEpoch():
            return [f'"assignmentEpoch":{value.epoch}']
        case MemberMetadata():
            classic = value.classic
            timeout = (
                f'"sessionTimeoutMs":{classic.session_timeout_ms}'
                if classic
                else '"classicMemberMetadata":null'
            )
            return [
                f'"rebalanceTimeoutMs":{value.rebalance_timeout_ms}',
                f'"clientId":"{value.client_id}"',
                timeout,
            ]
        case MemberTarget():
            return ['"topicPartitions":[', *('"partitions":[0,2]' for _ in list(value.partitions)[:1])]
        case MemberState():
            return [
                f'"memberEpoch":{value.epoch},"previousMemberEpoch":{value.previous_epoch},"state":{value.phase}'
            ]
        case _:
            return ['"topics":["xa","xb"],"version":12,"timestamp":34']
