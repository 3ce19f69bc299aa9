"""LetterQueue: batches of dead letters, letters that the topic has already, and the headers of a letter."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.config import Config
from kproc.broker.share.partition import letter_queue
from kproc.broker.share.partition.group_settings import share_settings
from kproc.broker.share.partition.in_flight import DeadLetters
from kproc.broker.share.partition.letter_queue import DELIVERED_TOO_OFTEN, REJECTED, LetterQueue, dead_letter
from kproc.broker.share.partition.share_partition import SharePartition
from kproc.broker.share.state.messages import SharePartitionKey
from kproc.wire.records import Record
from tests.support.logs import TOPIC_ID

LARGE = 1 << 20


@pytest.fixture
def part() -> SharePartition:
    settings = share_settings({}, Config.build({}), allows_dead_letters=True)
    return SharePartition(SharePartitionKey("g", TOPIC_ID, 3), "t", 0, settings, 0, 0)


def rejected(first: int, last: int) -> DeadLetters:
    return DeadLetters(first, last, 2, is_rejected=True)


def queue_of(*letters: DeadLetters) -> LetterQueue:
    queue = LetterQueue()
    queue.letters.extend(letters)
    return queue


def offsets(records: list[Record]) -> list[int]:
    return [int(dict(record.headers)["__dlq.errors.offset"] or b"") for record in records]


def test_headers_name_the_record_and_the_reason(part: SharePartition) -> None:
    original = Record(b"k", b"v", 5, [("h", b"x")])
    record = dead_letter(part, DeadLetters(7, 9, 5, is_rejected=False), 8, original, 1_000)
    headers: dict[str, Any] = {name.removeprefix("__dlq.errors."): value for name, value in record.headers}
    assert (record.key, record.value, record.timestamp_ms, headers.pop("h")) == (b"k", b"v", 1_000, b"x")
    assert headers == {
        "topic": b"t",
        "partition": b"3",
        "offset": b"8",
        "group": b"g",
        "delivery.count": b"5",
        "message": DELIVERED_TOO_OFTEN.encode(),
    }
    reasons = dict(dead_letter(part, rejected(7, 7), 7, None, 1_000).headers)
    assert reasons["__dlq.errors.message"] == REJECTED.encode()


def test_batch_has_at_least_one_record_and_begins_anew(part: SharePartition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_queue, "RECORDS_MAX", 3)
    queue = queue_of(rejected(0, 1), rejected(5, 9))
    assert offsets(queue.fill_batch(part, None, LARGE, 0)) == [0, 1, 5]
    assert (queue.batch, [*queue.letters]) == ([rejected(0, 1), rejected(5, 5)], [rejected(6, 9)])
    # The batch was not written, and now only one record fits.
    assert offsets(queue.fill_batch(part, None, 1, 0)) == [0]
    assert [*queue.letters] == [rejected(1, 1), rejected(5, 5), rejected(6, 9)]


def test_written_letters_become_the_batch(part: SharePartition) -> None:
    queue = queue_of(rejected(5, 9))
    queue.batch = [rejected(0, 2)]
    queue.separate_written([1, 7])
    assert queue.batch == [rejected(1, 1), rejected(7, 7)]
    assert [*queue.letters] == [rejected(0, 0), rejected(2, 2), rejected(5, 6), rejected(8, 9)]


def test_drained_queue_has_all_letters_in_its_batch() -> None:
    queue = queue_of(rejected(5, 9))
    queue.batch = [rejected(0, 2)]
    queue.drain()
    assert (queue.batch, len(queue.letters)) == ([rejected(0, 2), rejected(5, 9)], 0)
