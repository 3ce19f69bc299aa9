"""`kproc dump-log`: tables, JSON, and the exit code of --verify."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.cluster.records import BrokerConfigSet, ClusterRegistered, encode_record
from kproc.broker.coordinator.member_phase import MemberPhase
from kproc.broker.coordinator.record_codec import RecordKey
from kproc.broker.group.consumer.records import (
    CONSUMER_RECORDS,
    ConsumerRecordType,
    MemberState,
)
from kproc.broker.group.records import CommittedOffset, OffsetKey, encode_offset_key, encode_offset_value
from kproc.broker.share.membership.records import SHARE_RECORDS
from kproc.broker.share.state.messages import RecordState, SharePartitionKey, StateBatch
from kproc.broker.share.state.records import Snapshot, Update, encode_share_record, encode_tombstone
from kproc.broker.storage import checkpoints
from kproc.broker.storage.log import LogConfig
from kproc.broker.storage.offset_checkpoints import FILES, write_offset_checkpoint
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.streams.records import STREAMS_RECORDS
from kproc.cli.main import run
from kproc.common.clock import ManualClock
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.logs import NOW_MS, LogRig, append_one, batch, sequenced
from tests.support.share_groups import SAMPLES
from tests.support.streams_records import NAMED, VALUES

LOG = f"{0:020d}.log"
BATCHES = 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A partition of several segments with indexes and a producer snapshot, cleanly closed."""
    rig = LogRig(tmp_path / "t-0", config=LogConfig(index_interval_bytes=200, segment_bytes=900))
    log = rig.open()
    for number in range(BATCHES):
        append_one(log, batch(f"a{number}", f"b{number}", timestamp=NOW_MS + 10 * number))
    append_one(log, sequenced(7, 0, count=3))
    log.close(clean=True)
    return rig.directory


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def test_verify_says_what_is_damaged_and_ends_with_1(directory: Path, capsys) -> None:
    assert run(["dump-log", "--verify", str(directory.parent)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["t-0", "21", "43", "0"]
    flip(directory / LOG, 70)
    assert run(["dump-log", "--verify", str(directory)]) == 1
    shown = capsys.readouterr()
    assert shown.err == "kproc: damaged: t-0\n"
    assert f"t-0/{LOG}: batch at position 0" in shown.out


@pytest.fixture
def data(directory: Path) -> Path:
    """A data directory with the partition, metadata of which a part is in a snapshot, and all checkpoints."""
    data = directory.parent
    metadata, image = MetadataLog.open(data, ManualClock(), OsFs())
    metadata.commit(image, [ClusterRegistered("c")])
    while not list(metadata_directory(data).glob("*.checkpoint")):
        metadata.commit(image, [BrokerConfigSet("", "log.retention.ms", "1" * 100_000)])
        metadata.compact_if_large(image)
    metadata.commit(image, [BrokerConfigSet("", "log.retention.ms", None)])
    metadata.close()
    topic_id = checkpoints.read_partition_metadata(OsFs(), directory)
    assert topic_id is not None
    for name in FILES:
        write_offset_checkpoint(OsFs(), data, name, {(topic_id, 0): 1}, {topic_id: "t"})
    checkpoints.write_meta_properties(OsFs(), data, checkpoints.MetaProperties("c", 1, "d"))
    return data


def metadata_directory(data: Path) -> Path:
    return data / "__cluster_metadata-0"


def problems_of(data: Path, capsys) -> list[tuple[str, str]]:
    """Return the partition and the file of each problem that --verify finds. Each problem is one line."""
    code = run(["dump-log", "--verify", "--format", "json", str(data)])
    shown = capsys.readouterr()
    rows = [(each["partition"], row) for each in json.loads(shown.out) for row in each["problems"]]
    assert code == (1 if rows else 0)
    assert "\n" not in "".join(row["problem"] for _, row in rows)
    assert "Traceback" not in shown.err
    return [(partition, row["file"]) for partition, row in rows]


@pytest.mark.long
def test_verify_finds_damage_in_each_file_of_a_data_directory(data: Path, capsys) -> None:
    """Also in a snapshot of the metadata and in the checkpoints, whose damage no log shows."""
    assert problems_of(data, capsys) == []
    (snapshot,) = metadata_directory(data).glob("*.checkpoint")
    own = [data / name for name in (*FILES, *(f"{each}.by-id" for each in FILES), "meta.properties")]
    in_partition = [data / "t-0" / name for name in ("partition.metadata", "leader-epoch-checkpoint")]
    for path in (snapshot, *own, *in_partition):
        content = path.read_bytes()
        partition = path.parent.name
        for damaged in (b"\xff" * len(content), content[:-3] + b"\xff\xfe\xfd"):
            path.write_bytes(damaged)
            assert problems_of(data, capsys) == [(partition, path.name)], (path, damaged[:40])
        path.write_bytes(content)
    assert problems_of(data, capsys) == []


def test_verify_finds_a_metadata_snapshot_without_its_end(data: Path, capsys) -> None:
    """Cut between two batches, it looks whole. And a snapshot is checked if the log beside it is lost."""
    (snapshot,) = metadata_directory(data).glob("*.checkpoint")
    for path in metadata_directory(data).glob("*.log"):
        path.unlink()
    assert problems_of(data, capsys) == []
    headers = [("record-count", b"\xff")]
    first = encode_batch([Record(None, encode_record(ClusterRegistered("c")), headers=headers)])
    for content in (b"", first):
        snapshot.write_bytes(content)
        assert problems_of(data, capsys) == [("__cluster_metadata-0", snapshot.name)]


def test_verify_checks_only_crcs_of_kafkas_metadata(data: Path, capsys) -> None:
    metadata = metadata_directory(data)
    (metadata / "quorum-state").touch()
    (snapshot,) = metadata.glob("*.checkpoint")
    snapshot.write_bytes(encode_batch([Record(None, b"\1\x0c\0Kafka's")]))
    assert run(["dump-log", "--verify", str(data)]) == 0
    note = f"kproc: {metadata} is Kafka's: the CRCs are checked, but not the content of its records\n"
    assert capsys.readouterr().err == note
    flip(snapshot, 70)
    assert problems_of(data, capsys) == [("__cluster_metadata-0", snapshot.name)]


def test_records_are_shown_as_json(directory: Path, capsys) -> None:
    assert run(["dump-log", "--records", "--format", "json", str(directory / LOG)]) == 0
    [dumped] = json.loads(capsys.readouterr().out)
    assert [record["value"] for record in dumped["entries"][0]["records"]] == ["a0", "b0"]


def test_every_kind_of_file_has_a_table(directory: Path, capsys) -> None:
    files = [str(path) for path in sorted(directory.iterdir()) if path.stem.isdigit()]
    assert run(["dump-log", *files]) == 0
    shown = capsys.readouterr().out
    assert all(file in shown for file in files)
    for word in ("POSITION", "OFFSET", "TIMESTAMP", "PRODUCER-ID"):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["missing.log"], 1, "no such file"),
        (["leader-epoch-checkpoint"], 1, "expected a segment's file"),
        (["/dev/zero"], 1, "is neither a regular file nor a directory"),
        (["--verify", LOG], 2, "expected the directory"),
        (["--verify", "--records", "."], 2, "shows no records"),
        (["00000000000000000777.snapshot"], 1, "kproc: 00000000000000000777.snapshot: a producer snapshot of 1 bytes"),
    ],
)
def test_dump_log_error_is_one_line(
    directory: Path, capsys, monkeypatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(directory)
    Path("00000000000000000777.snapshot").write_bytes(b"x")
    assert run(["dump-log", *arguments]) == code
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1


def test_records_of_share_groups_are_decoded(tmp_path: Path, capsys) -> None:
    records = [SHARE_RECORDS.encode(RecordKey(each, "g", name), value) for each, name, value in SAMPLES]
    directory = tmp_path / "__consumer_offsets-7"
    directory.mkdir()
    (directory / LOG).write_bytes(encode_batch([Record(key, value) for key, value in records]))
    assert run(["dump-log", "--records", "--format", "json", str(directory / LOG)]) == 0
    rows = json.loads(capsys.readouterr().out)[0]["entries"][0]["records"]
    found = {row["key"]["type"]: (row["key"], row["value"]) for row in rows}
    assert found["ShareGroupCurrentMemberAssignment"][0]["member"] == "m"
    topic_id = "AAECAwQFBgcICQoLDA0ODw"
    assert found["ShareGroupTargetAssignmentMember"][1] == {"partitions": {topic_id: [0, 3]}}
    topics = found["ShareGroupStatePartitionMetadata"][1]
    assert topics["initialized"] == {topic_id: {"name": "t", "partitions": [0]}}
    assert topics["deleting"] == {topic_id: "t"}


def test_records_of_streams_groups_are_decoded(tmp_path: Path, capsys) -> None:
    records = [
        STREAMS_RECORDS.encode(RecordKey(record_type, "g", "m" if record_type in NAMED else ""), value)
        for record_type, value in VALUES
    ]
    directory = tmp_path / "__consumer_offsets-7"
    directory.mkdir()
    (directory / LOG).write_bytes(encode_batch([Record(key, value) for key, value in records]))
    assert run(["dump-log", "--records", "--format", "json", str(directory / LOG)]) == 0
    rows = json.loads(capsys.readouterr().out)[0]["entries"][0]["records"]
    found = {row["key"]["type"]: (row["key"], row["value"]) for row in rows}
    assert found["StreamsGroupCurrentMemberAssignment"][0]["member"] == "m"
    state = found["StreamsGroupCurrentMemberAssignment"][1]
    assert state["owned"] == {"active": {"0": {"1": 3}}, "standby": {"1": [0]}, "warmup": {}}
    assert found["StreamsGroupTargetAssignmentMember"][1]["active"] == {"0": [1, 2]}
    assert found["StreamsGroupTopology"][1]["subtopologies"][0]["source_topics"] == ["a", "b"]


def test_records_of_groups_are_decoded(tmp_path: Path, capsys) -> None:
    """A record that nobody can decode is shown as it is."""
    member = RecordKey(ConsumerRecordType.MEMBER_STATE, "g", "m")
    state = MemberState(3, 2, MemberPhase.UNREVOKED, {bytes(16): {5: 3}})
    expression = RecordKey(ConsumerRecordType.EXPRESSION, "g", "^t.*")
    committed = CommittedOffset(offset=41, commit_timestamp_ms=NOW_MS)
    records = [
        CONSUMER_RECORDS.encode(member, state),
        CONSUMER_RECORDS.encode(expression, None),
        (encode_offset_key(OffsetKey("g", "t", 0)), encode_offset_value(committed)),
        (b"\0\3", b"no record of a group"),
    ]
    directory = tmp_path / "__consumer_offsets-7"
    directory.mkdir()
    (directory / LOG).write_bytes(encode_batch([Record(key, value) for key, value in records]))
    assert run(["dump-log", "--records", "--format", "json", str(directory / LOG)]) == 0
    first, second, third, last = json.loads(capsys.readouterr().out)[0]["entries"][0]["records"]
    assert first["key"] == {"type": "ConsumerGroupCurrentMemberAssignment", "group": "g", "member": "m"}
    assert first["value"]["phase"] == "UNREVOKED"
    assert first["value"]["owned"] == {"A" * 22: {"5": 3}}
    assert second["key"] == {"type": "ConsumerGroupRegularExpression", "group": "g", "regex": "^t.*"}
    assert second["value"] is None
    assert third["key"] == {"type": "OffsetCommit", "group": "g", "topic": "t", "partition": 0}
    assert (third["value"]["offset"], third["value"]["commit_timestamp_ms"]) == (41, NOW_MS)
    assert (last["key"], last["value"]) == ("\0\3", "no record of a group")
    assert run(["dump-log", "--records", str(directory / LOG)]) == 0
    assert "key={type=OffsetCommit group=g topic=t partition=0}" in capsys.readouterr().out


def test_records_of_share_partitions_are_decoded(tmp_path: Path, capsys) -> None:
    key = SharePartitionKey("g", bytes(16), 2)
    batches = (StateBatch(5, 9, RecordState.ARCHIVED, 3), StateBatch(10, 10, 77, 1))
    records: list[tuple[bytes, bytes | None]] = [
        encode_share_record(key, Snapshot(1, 2, 3, 4, 5, 6, 7)),
        encode_share_record(key, Update(1, 3, 5, -1, batches)),
        encode_tombstone(key),
        (b"\0\7", b"another type"),
        (b"", b"no key"),
    ]
    directory = tmp_path / "__share_group_state-49"
    directory.mkdir()
    (directory / LOG).write_bytes(encode_batch([Record(key, value) for key, value in records]))
    assert run(["dump-log", "--records", "--format", "json", str(directory / LOG)]) == 0
    snapshot, update, gone, unknown, damaged = json.loads(capsys.readouterr().out)[0]["entries"][0]["records"]
    place = {"group": "g", "topic": "A" * 22, "partition": 2}
    assert snapshot["key"] == gone["key"] == {"type": "ShareSnapshot", **place}
    assert snapshot["value"]["state_epoch"] == 2
    assert gone["value"] is None
    assert update["key"] == {"type": "ShareUpdate", **place}
    assert update["value"]["batches"] == [
        {"first": 5, "last": 9, "state": "ARCHIVED", "delivery_count": 3},
        {"first": 10, "last": 10, "state": 77, "delivery_count": 1},
    ]
    assert (unknown["value"], damaged["value"]) == ("another type", "no key")
    assert run(["dump-log", "--records", str(directory / LOG)]) == 0
    first, second = "{first=5 last=9 state=ARCHIVED delivery_count=3}", "{first=10 last=10 state=77 delivery_count=1}"
    assert f"batches=[{first} {second}]" in capsys.readouterr().out
