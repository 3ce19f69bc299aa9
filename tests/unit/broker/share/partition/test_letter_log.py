"""The dead letter log's side of dead letters: after a death, letters that were written are found and not repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.peers.forwarding import Answer
from kproc.broker.share.partition import dead_letters, group_settings, letter_log, letter_queue
from kproc.broker.share.partition.letter_log import (
    APPEND_LETTERS,
    OFFSET_HEADER,
    LetterSource,
    letter_producer_id,
)
from kproc.broker.share.partition.messages import AcknowledgeBatch, AcknowledgeType, ShareHolder
from kproc.broker.share.state.messages import RecordState, state_key
from kproc.broker.storage.producer_state import OWN_PRODUCER_IDS
from kproc.common.errors import ErrorCode
from kproc.wire.record_batch import decode_records, encode_batch, parse_header
from kproc.wire.records import Record
from tests.support.handler_rig import HandlerRig
from tests.support.share_partition_rig import ShareOwner

ANN, BOB = ShareHolder("g", "ann", 1, 0), ShareHolder("g", "bob", 1, 0)
TOPIC = "dlq.t"


@pytest.fixture
def owner(start: Callable[..., HandlerRig], monkeypatch: pytest.MonkeyPatch) -> ShareOwner:
    monkeypatch.setattr(group_settings, "share_version", lambda _image: 2)
    monkeypatch.setattr(letter_queue, "RECORDS_MAX", 3)
    made = ShareOwner(start())
    made.configure(errors_deadletterqueue_topic_name=TOPIC)
    made.rig.create_topic(TOPIC, errors_deadletterqueue_group_enable="true")
    made.load(ANN)
    made.produce(8)
    made.offsets(ANN)
    return made


def letters(owner: ShareOwner) -> list[int]:
    """Return the offsets of the records that have a letter, in the order of the letters."""
    log = owner.rig.open(TOPIC, 0).log
    found = []
    offset = log.state.start_offset
    while offset < log.state.end_offset:
        for record in decode_records(log.reader.read_bytes(offset, 1)):
            found.append(int(dict(record.headers)[OFFSET_HEADER] or b""))
            offset = record.offset + 1
    return found


def start_to_reject(owner: ShareOwner, *, writes: int) -> None:
    """Reject all records. Let the share coordinator answer only this many writes of the state."""
    owner.states.holds = True
    owner.acknowledge(ANN, AcknowledgeBatch(0, 7, [AcknowledgeType.REJECT]))
    for _ in range(writes):
        owner.states.release()
        owner.rig.settle()


def die(owner: ShareOwner) -> None:
    """Forget the share partition and its unanswered writes, as a death of its owner does. Load it again."""
    owner.states.held.clear()
    owner.states.holds = False
    (partition,) = owner.shares._by_key.values()
    owner.shares._drop(partition)
    owner.load(BOB)
    owner.rig.settle()


@pytest.mark.parametrize("writes", range(6))
def test_death_at_any_write_repeats_no_letter(owner: ShareOwner, writes: int) -> None:
    """Three batches of letters: a death can come before each write of the state, and after the last one."""
    start_to_reject(owner, writes=writes)
    before = letters(owner)
    if not writes:
        die(owner)
        assert letters(owner) == []  # The rejection was not persisted, so it was never confirmed.
        return
    assert len(before) == min(3 * writes, 8)
    die(owner)
    assert letters(owner) == [*range(8)]
    assert owner.state.start_offset == 8
    assert not owner.shares._dead_letters._queues


def test_failed_attempt_that_was_written_is_not_repeated(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic's owner dies after it has appended the batch and before it has answered."""
    gather, lost = dead_letters.gather, []

    def losing(services: Any, name: str, parts: Any, on_answers: Callable[[list[Answer]], None]) -> None:
        def on_reply(answers: list[Answer]) -> None:
            if name == APPEND_LETTERS and not lost:
                lost.append(name)
                answers = [{**answers[0], "error_code": int(ErrorCode.NOT_LEADER_OR_FOLLOWER)}]
            on_answers(answers)

        gather(services, name, parts, on_reply)

    monkeypatch.setattr(dead_letters, "gather", losing)
    owner.acknowledge(ANN, AcknowledgeBatch(0, 7, [AcknowledgeType.REJECT]))
    assert letters(owner) == [0, 1, 2]
    owner.rig.advance_ms(1_100)
    assert letters(owner) == [*range(8)]
    assert owner.state.start_offset == 8


def test_attempts_end_although_the_log_can_be_searched(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has no space for the batch, but nothing prevents a search for the former one."""
    gather = dead_letters.gather

    def failing(services: Any, name: str, parts: Any, on_answers: Callable[[list[Answer]], None]) -> None:
        if name == APPEND_LETTERS:
            on_answers([letter_log._failed(0, ErrorCode.KAFKA_STORAGE_ERROR, None)])
        else:
            gather(services, name, parts, on_answers)

    monkeypatch.setattr(dead_letters, "gather", failing)
    owner.acknowledge(ANN, AcknowledgeBatch(0, 7, [AcknowledgeType.REJECT]))
    for _ in range(4 * 3):
        assert owner.state.start_offset < 8
        owner.rig.advance_ms(8_100)
    assert owner.state.start_offset == 8


def test_reload_waits_for_the_call_of_its_predecessor(
    owner: ShareOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather, held = dead_letters.gather, []

    def holding(*call: Any) -> None:
        held.append(call)

    monkeypatch.setattr(dead_letters, "gather", holding)
    owner.acknowledge(ANN, AcknowledgeBatch(0, 7, [AcknowledgeType.REJECT]))
    (call,) = held
    die(owner)
    assert held == [call]
    monkeypatch.setattr(dead_letters, "gather", gather)
    gather(*call)
    owner.rig.advance_ms(200)
    assert letters(owner) == [*range(8)]
    assert owner.state.start_offset == 8


def test_call_of_a_former_owner_is_rejected(owner: ShareOwner) -> None:
    source = LetterSource(1, owner.topic_id, 0, OWN_PRODUCER_IDS)

    answers: list[Answer] = []
    owned = owner.rig.open(TOPIC, 0)
    image = owner.services.image.topics_by_name[TOPIC].partitions[0]
    for handle in (letter_log.append_letters, letter_log.find_last_letters):
        handle(owner.services, owned, image, source, answers.append)
    assert [each["error_code"] for each in answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert letters(owner) == []


def test_odd_offsets_in_a_clients_batch_are_no_letters(owner: ShareOwner) -> None:
    """A client that may write to the topic has produced with the share partition's producer id."""
    start_to_reject(owner, writes=0)
    producer_id = letter_producer_id(state_key("g", owner.topic_id, 0), owner.state.state_epoch)
    values = (None, b"", b"-1", b"x", b"9" * 5000)
    records = [Record(None, None, 0, ((OFFSET_HEADER, value),)) for value in values]
    forged = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    owned = owner.rig.open(TOPIC, 0)
    owned.log.append([memoryview(bytearray(forged))])
    answers: list[Answer] = []
    image = owner.services.image.topics_by_name[TOPIC].partitions[0]
    source = LetterSource(owner.services.handler_index, owner.topic_id, 0, producer_id)
    letter_log.find_last_letters(owner.services, owned, image, source, answers.append)
    owner.rig.settle()
    assert [(each["error_code"], each["offsets"]) for each in answers] == [(0, [])]


def test_letters_that_retention_removed_are_written_again(owner: ShareOwner) -> None:
    start_to_reject(owner, writes=1)
    owned = owner.rig.open(TOPIC, 0)
    owned.log.retention.advance_start(3)
    die(owner)
    assert letters(owner) == [*range(8)]


def test_batches_of_a_share_partition_have_one_producer(owner: ShareOwner) -> None:
    owner.acknowledge(ANN, AcknowledgeBatch(0, 7, [AcknowledgeType.REJECT]))
    log = owner.rig.open(TOPIC, 0).log
    heads = [parse_header(log.reader.read_bytes(offset, 1)) for offset in (0, 3, 6)]
    name = state_key("g", owner.topic_id, 0)
    assert {each.producer_id for each in heads} == {letter_producer_id(name, owner.state.state_epoch)}
    assert [each.base_sequence for each in heads] == [0, 3, 6]
    assert log.state.expire_producers(1 << 60) == 0
    # A reset of the offsets raises the state epoch: the letters from before it must not be found.
    assert letter_producer_id(name, 0) != letter_producer_id(name, 1)
    assert all(OWN_PRODUCER_IDS <= letter_producer_id(name, epoch) < 1 << 63 for epoch in range(100))
    assert RecordState.ARCHIVING not in {each.state for each in owner.state.batches}
