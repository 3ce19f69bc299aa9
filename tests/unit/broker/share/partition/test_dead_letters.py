"""Dead letters: records that were rejected or delivered too often go to the group's dead letter topic, once."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from kproc.broker.share.partition import dead_letters, group_settings, letter_queue, original_records
from kproc.broker.share.partition.messages import AcknowledgeBatch, AcknowledgeType, ShareHolder
from kproc.broker.share.state.messages import (
    PersistedState,
    RecordState,
    SharePartitionKey,
    StateBatch,
    state_key,
)
from kproc.broker.storage.records_inside import RECORDS_INSIDE_MAX
from kproc.common.errors import ErrorCode
from kproc.wire.primitives import encode_varint
from kproc.wire.record_batch import decode_records, encode_batch
from kproc.wire.records import Record
from tests.support import hostile
from tests.support.handler_rig import HandlerRig
from tests.support.share_partition_rig import ShareOwner

REJECT, RELEASE, ACCEPT = AcknowledgeType.REJECT, AcknowledgeType.RELEASE, AcknowledgeType.ACCEPT
ANN = ShareHolder("g", "ann", 1, 0)
TOPIC = "dlq.t"
ENABLE = {"errors_deadletterqueue_group_enable": "true"}


@pytest.fixture
def owner(start: Callable[..., HandlerRig], monkeypatch: pytest.MonkeyPatch) -> ShareOwner:
    monkeypatch.setattr(group_settings, "share_version", lambda _image: 2)
    return with_dead_letters(start())


def with_dead_letters(rig: HandlerRig) -> ShareOwner:
    made = ShareOwner(rig)
    made.configure(errors_deadletterqueue_topic_name=TOPIC)
    return made


def reject(owner: ShareOwner, first: int, last: int) -> None:
    result = owner.acknowledge(ANN, AcknowledgeBatch(first, last, [REJECT]))
    assert result is not None
    assert result.error == 0


def letters(owner: ShareOwner, index: int = 0) -> list[Record]:
    """The records of the dead letter topic."""
    log = owner.rig.open(TOPIC, index).log
    found: list[Record] = []
    while (offset := found[-1].offset + 1 if found else 0) < log.state.end_offset:
        found += decode_records(log.reader.read_bytes(offset, 1))
    return found


def headers(record: Record) -> dict[str, bytes | None]:
    return {name.removeprefix("__dlq.errors."): value for name, value in record.headers}


def test_rejected_record_goes_to_the_dead_letter_topic(owner: ShareOwner) -> None:
    owner.rig.create_topic(TOPIC, **ENABLE)
    owner.load(ANN)
    owner.produce(3)
    owner.offsets(ANN)
    owner.states.holds = True
    owner.acknowledge(ANN, AcknowledgeBatch(1, 1, [REJECT]))
    assert letters(owner) == []
    owner.states.release()
    assert owner.state.batches == (StateBatch(1, 1, RecordState.ARCHIVING, 1),)
    owner.states.holds = False
    owner.rig.settle()
    owner.states.release()
    (letter,) = letters(owner)
    assert (letter.key, letter.value) == (None, None)
    assert letter.timestamp_ms == owner.rig.clock.wall_ms()
    assert headers(letter) == {
        "topic": b"t",
        "partition": b"0",
        "offset": b"1",
        "group": b"g",
        "delivery.count": b"1",
        "message": b"Offset rejected by client.",
    }
    assert owner.state.batches == (StateBatch(1, 1, RecordState.ARCHIVED, 1),)
    owner.acknowledge(ANN, AcknowledgeBatch(0, 0, [ACCEPT]))
    assert owner.state.start_offset == 2


def test_record_delivered_too_often_becomes_a_dead_letter(owner: ShareOwner) -> None:
    owner.configure(share_delivery_count_limit="2")
    owner.rig.create_topic(TOPIC, **ENABLE)
    owner.load(ANN)
    owner.produce(2)
    owner.offsets(ANN)
    owner.acknowledge(ANN, AcknowledgeBatch(0, 1, [RELEASE, ACCEPT]))
    assert owner.offsets(ANN) == [(0, 0, 2)]
    owner.rig.advance_ms(31_000)
    (letter,) = letters(owner)
    assert headers(letter)["delivery.count"] == b"2"
    assert headers(letter)["message"] == b"Offset delivery count exceeded the threshold."
    assert owner.state.start_offset == 2


def test_copied_dead_letter_has_key_value_and_headers(owner: ShareOwner) -> None:
    owner.configure(errors_deadletterqueue_copy_record_enable="true")
    owner.rig.create_topic(TOPIC, **ENABLE)
    owner.load(ANN)
    owned = owner.rig.open("t")
    records = [Record(b"k%d" % number, b"v%d" % number, 5, [("h", b"%d" % number)]) for number in range(4)]
    for codec in (0, 4):
        owned.log.append([memoryview(encode_batch(records, codec=codec))])
    owned.after_append()
    owner.offsets(ANN)
    reject(owner, 2, 5)
    found = letters(owner)
    assert [(each.key, each.value) for each in found] == [
        (b"k2", b"v2"),
        (b"k3", b"v3"),
        (b"k0", b"v0"),
        (b"k1", b"v1"),
    ]
    assert [headers(each)["h"] for each in found] == [b"2", b"3", b"0", b"1"]
    assert [headers(each)["offset"] for each in found] == [b"2", b"3", b"4", b"5"]


def test_copy_of_a_record_that_is_gone_has_headers_only(owner: ShareOwner) -> None:
    owner.configure(errors_deadletterqueue_copy_record_enable="true")
    owner.rig.create_topic(TOPIC, **ENABLE)
    owner.load(ANN)
    owner.produce(2)
    owner.offsets(ANN)
    owner.rig.open("t").log.retention.advance_start(2)
    reject(owner, 0, 1)
    assert [(each.key, each.value) for each in letters(owner)] == [(None, None)] * 2


@pytest.mark.parametrize("case", ["large", "many"])
def test_original_that_is_costly_to_read_is_not_copied(owner: ShareOwner, case: str) -> None:
    """A batch of a few kB can become 2 GiB, or have millions of records."""
    owner.configure(errors_deadletterqueue_copy_record_enable="true")
    owner.rig.create_topic(TOPIC, **ENABLE, max_message_bytes="100000000")
    owner.load(ANN)
    if case == "large":
        made = hostile.bomb(4, 33 << 20)
    else:
        count = RECORDS_INSIDE_MAX + 1
        body = (hostile.record(b"\0\0" + encode_varint(at) + b"\2k\1\0") for at in range(count))
        made = hostile.sealed(b"".join(body), count=count)
    owned = owner.rig.open("t")
    owned.log.append([memoryview(bytearray(made))])
    owned.after_append()
    owner.offsets(ANN)
    reject(owner, 0, 0)
    (letter,) = letters(owner)
    assert (letter.key, letter.value) == (None, None)
    assert headers(letter)["offset"] == b"0"


def test_one_batch_of_copies_is_written_in_a_duty_cycle(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request can reject a record in each of 2,000 partitions."""
    monkeypatch.setattr(original_records, "_READ_BYTES_MAX", 1)
    owner.configure(errors_deadletterqueue_copy_record_enable="true")
    owner.rig.create_topic(TOPIC, partitions=2, **ENABLE)
    for index in (0, 1):
        owner.acquire(ANN, owner.part(index), records_max=0)
        owner.produce(1, 1, index=index)
        owner.acquire(ANN, owner.part(index))
    owner.states.holds = True
    for index in (0, 1):
        owner.acknowledge(ANN, AcknowledgeBatch(0, 1, [REJECT]), index=index)
    owner.states.holds = False
    owner.states.release()
    logs = [owner.rig.open(TOPIC, index).log.state for index in (0, 1)]
    counts = [0]
    while counts[-1] < 4:
        owner.rig.run_cycle(owner.rig.handler(0))
        counts.append(sum(log.end_offset for log in logs))
        assert counts[-1] - counts[-2] <= 1, counts


def test_many_dead_letters_are_several_batches(owner: ShareOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_queue, "RECORDS_MAX", 3)
    owner.rig.create_topic(TOPIC, **ENABLE)
    owner.load(ANN)
    owner.produce(8)
    owner.offsets(ANN)
    types = [REJECT, ACCEPT] * 4
    owner.acknowledge(ANN, AcknowledgeBatch(0, 7, list(map(int, types))))
    assert [headers(each)["offset"] for each in letters(owner)] == [b"0", b"2", b"4", b"6"]
    assert owner.state.start_offset == 8


def test_batch_of_dead_letters_has_at_most_max_message_bytes(owner: ShareOwner) -> None:
    owner.rig.create_topic(TOPIC, **ENABLE, max_message_bytes="700")
    owner.load(ANN)
    owner.produce(8)
    owner.offsets(ANN)
    reject(owner, 0, 7)
    assert len(letters(owner)) == 8
    assert owner.state.start_offset == 8


def test_letter_of_record_above_max_message_bytes_has_no_copy(
    owner: ShareOwner, caplog: pytest.LogCaptureFixture
) -> None:
    """A compressed record fits into a topic that its copy does not fit into. The letter was lost."""
    owner.configure(errors_deadletterqueue_copy_record_enable="true")
    owner.rig.create_topic(TOPIC, **ENABLE, max_message_bytes="1000")
    owner.load(ANN)
    owner.produce(1, value=b"small")
    owner.produce(2, value=b"v" * 1_000)
    owner.produce(1, value=b"small")
    owner.offsets(ANN)
    with caplog.at_level(logging.WARNING):
        reject(owner, 0, 3)
        owner.rig.advance_ms(100)
    assert [each.value for each in letters(owner)] == [b"small", None, None, b"small"]
    assert [headers(each)["offset"] for each in letters(owner)] == [b"0", b"1", b"2", b"3"]
    assert owner.state.start_offset == 4
    warning = "copies of 2 records of topic t exceed max.message.bytes (1000)"
    assert sum(warning in text for text in caplog.messages) == 1


@pytest.mark.parametrize("case", ["forbidden", "missing", "prefix", "too large"])
def test_dead_letter_that_cannot_be_written_is_archived(
    owner: ShareOwner, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    if case == "forbidden":
        owner.rig.create_topic(TOPIC)
    elif case == "prefix":
        owner.rig.create_topic("other", **ENABLE)
        owner.configure(errors_deadletterqueue_topic_name="other")
    elif case == "too large":
        owner.rig.create_topic(TOPIC, **ENABLE, max_message_bytes="100")
    owner.load(ANN)
    owner.produce(5)
    owner.offsets(ANN)
    with caplog.at_level(logging.WARNING):
        owner.acknowledge(ANN, AcknowledgeBatch(0, 4, [REJECT, ACCEPT, REJECT, ACCEPT, REJECT]))
    assert owner.state.start_offset == 5
    # A request can reject every other one of 20,000 records.
    lines = [text for text in caplog.messages if "dead letters of share partition" in text]
    assert len(lines) == (3 if case == "too large" else 1)
    assert case == "too large" or "are lost, of records between the offsets 0 and 4 of topic t:" in lines[0]


def test_missing_topic_is_created_if_the_broker_may(
    start: Callable[..., HandlerRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_settings, "share_version", lambda _image: 2)
    rig = start(settings={"errors.deadletterqueue.auto.create.topics.enable": "true"})
    rig.controller_serves = {"create_topics"}
    owner = with_dead_letters(rig)
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    reject(owner, 0, 0)
    assert len(letters(owner)) == 1
    image = rig.cluster.image.topics_by_name[TOPIC]
    assert image.configs["errors.deadletterqueue.group.enable"] == "true"
    assert image.configs["message.timestamp.type"] == "CreateTime"


def test_loaded_state_goes_on_with_its_dead_letters(owner: ShareOwner) -> None:
    """A crash came between the state ARCHIVING and the state ARCHIVED."""
    owner.rig.create_topic(TOPIC, **ENABLE)
    owner.produce(4)
    batches = (StateBatch(1, 1, RecordState.ARCHIVING, 5), StateBatch(2, 2, RecordState.ARCHIVING, 1))
    owner.states.states[state_key("g", owner.topic_id, 0)] = PersistedState(0, 0, 1, 0, batches)
    owner.load(ANN)
    assert [headers(each)["message"] for each in letters(owner)] == [
        b"Offset delivery count exceeded the threshold.",
        b"Offset rejected by client.",
    ]
    assert owner.state.start_offset == 3
    assert owner.offsets(ANN) == [(3, 3, 1)]


def test_write_is_tried_again_after_the_death_of_an_owner(
    start: Callable[..., HandlerRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_settings, "share_version", lambda _image: 2)
    rig = start(handlers=2)
    owner = with_dead_letters(rig)
    rig.create_topic(TOPIC, partitions=8, **ENABLE)
    index = next(index for index in (0, 1) if rig.owner("t", index) == 0)
    if rig.owner(TOPIC, index) == 0:
        pytest.skip("both partitions have the same owner")
    part = owner.part(index=index)
    owner.acquire(ANN, part)
    owner.produce(1, index=index)
    owner.acquire(ANN, part)
    rig.kill(1)
    owner.acknowledge(ANN, AcknowledgeBatch(0, 0, [REJECT]), index=index)
    rig.start_handler(1, is_restart=True)
    rig.advance_ms(1_100)
    assert [headers(each)["partition"] for each in letters(owner, index)] == [b"%d" % index]


def failing_attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to owners of dead letter logs from now on, all of which fail."""
    attempts: list[str] = []

    def fail(_services: object, operation: str, _parts: object, on_answers: Callable[..., None]) -> None:
        attempts.append(operation)
        on_answers([{"error_code": int(ErrorCode.KAFKA_STORAGE_ERROR), "offsets": []}])

    monkeypatch.setattr(dead_letters, "gather", fail)
    return attempts


def test_pause_of_a_dropped_share_partition_ends(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Handler that leaves waits until nothing is parked. Its share partitions have another owner already."""
    owner.rig.create_topic(TOPIC, **ENABLE)
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    attempts = failing_attempts(monkeypatch)
    reject(owner, 0, 0)
    partition = owner.shares.find(SharePartitionKey("g", owner.topic_id, 0))
    assert partition is not None
    owner.shares._drop(partition)
    purgatory = owner.services.owner.purgatory
    purgatory.expire_all()
    assert len(attempts) == 1
    assert len(purgatory) == 0


def test_pause_between_attempts_is_not_shortened(owner: ShareOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of ACLs completes all parked operations. Five changes in a row lost the letters."""
    owner.rig.create_topic(TOPIC, **ENABLE)
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    gather = dead_letters.gather
    attempts = failing_attempts(monkeypatch)
    reject(owner, 0, 0)
    for _ in range(5):
        owner.services.owner.purgatory.expire_all()
        owner.rig.settle()
    assert len(attempts) == 1
    monkeypatch.setattr(dead_letters, "gather", gather)
    owner.rig.advance_ms(1_000)
    assert len(letters(owner)) == 1
    assert owner.state.start_offset == 1


def test_without_a_topic_rejected_records_are_archived(owner: ShareOwner) -> None:
    owner.configure(errors_deadletterqueue_topic_name="")
    owner.load(ANN)
    owner.produce(1)
    owner.offsets(ANN)
    reject(owner, 0, 0)
    assert len(owner.states.writes) == 2
    assert owner.state.start_offset == 1
