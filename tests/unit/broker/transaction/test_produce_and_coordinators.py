"""Whole transactions: the owners of partitions and the coordinators together, with deaths and hand-overs between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kproc.broker.storage.log import Log, SyncPoint
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL, decode_records, parse_header
from tests.support.handler_rig import HandlerRig, HeldSyncer
from tests.support.handler_transactions import PARTITIONS, TOPIC, Producer, begun, cluster, home_of, settled
from tests.support.raw import batch, fetch_fields, produce_fields, split_batches

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)
# Produce, EndTxn: of producers that add partitions and keep their epoch, and of those with an epoch each transaction.
KEEPS, RAISES = (11, 3), (12, 5)
both = pytest.mark.parametrize("versions", [KEEPS, RAISES], ids=["keeps its epoch", "raises it"])


@pytest.fixture(autouse=True)
def syncs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of fdatasync ends by itself, but later than what was appended before it."""

    def submit(syncer: HeldSyncer, points: Sequence[tuple[Log, SyncPoint]]) -> None:
        syncer.rounds.append(list(points))
        syncer.end_round()

    monkeypatch.setattr(HeldSyncer, "submit", submit)


def synced(start: Start, *, handlers: int = 2) -> HandlerRig:
    return cluster(start, handlers=handlers, **{"kproc.flush": "group"})


class Writer:
    """A transactional producer with its sequences."""

    def __init__(self, producer: Producer, versions: tuple[int, int]) -> None:
        self.producer = producer
        self.rig = producer.rig
        self.produce_version, self.end_version = versions
        self.sequences: dict[int, int] = {}
        self.sent: list[dict[int, int]] = []

    def begin(self, *indexes: int) -> None:
        if self.end_version < RAISES[1]:
            assert self.producer.add(*indexes) == [0] * len(indexes)

    def send(self, value: bytes, *indexes: int, again: bool = False) -> None:
        """One record for each partition in one request, which may be the last one again."""
        sequences = self.sent[-1] if again else {index: self.sequences.get(index, 0) for index in indexes}
        self.sent.append(sequences)
        parts = []
        for index, sequence in sequences.items():
            self.sequences[index] = sequence + 1
            parts.append(
                (
                    index,
                    batch(
                        value,
                        producer_id=self.producer.producer_id,
                        producer_epoch=self.producer.epoch,
                        base_sequence=sequence,
                        flags=TRANSACTIONAL,
                    ),
                )
            )
        fields = produce_fields([(TOPIC, NO_ID, parts)]) | {"transactional_id": self.producer.name}
        self.rig.processors[self.producer.at].send(ApiKey.PRODUCE, self.produce_version, fields)

    def codes(self) -> list[list[int]]:
        """Of the partitions of each request that has been answered."""
        return [
            [
                row["error_code"]
                for row in answer.fields(ApiKey.PRODUCE, self.produce_version)["responses"][0][
                    "partition_responses"
                ]
            ]
            for answer in self.rig.processors[self.producer.at].answers()
        ]

    def end(self, *, commits: bool = True) -> int:
        epoch = self.producer.epoch
        code = self.producer.end(commits=commits, version=self.end_version)
        if self.producer.epoch != epoch:
            self.sequences.clear()
        return code


def read(rig: HandlerRig, index: int, *, committed: bool) -> list[bytes | None]:
    """Values of a partition; of a committed reader without those of the transactions that are said to be aborted."""
    fields: dict[str, Any] = fetch_fields([(TOPIC, NO_ID, [(index, 0)])]) | {
        "isolation_level": int(committed)
    }
    answer = rig.processors[rig.owner(TOPIC, index)].ask(ApiKey.FETCH, 12, fields, connection=99)
    row = answer["responses"][0]["partitions"][0]
    assert row["error_code"] == 0
    ahead = sorted((each["first_offset"], each["producer_id"]) for each in row["aborted_transactions"] or ())
    values: list[bytes | None] = []
    aborting: set[int] = set()
    for each in split_batches(row["records"]):
        header = parse_header(each)
        while ahead and ahead[0][0] <= header.base_offset:
            aborting.add(ahead.pop(0)[1])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif header.producer_id not in aborting:
            values += [record.value for record in decode_records(each)]
    return values


@both
def test_transactions_one_after_another(start: Start, versions: tuple[int, int]) -> None:
    """Requests are pipelined, and nobody waits between the end of one and the beginning of the next."""
    rig = synced(start)
    writer = Writer(begun(rig), versions)
    every = range(PARTITIONS)
    committed: list[bytes | None] = []
    for number, commits in enumerate((True, False, True, False, True)):
        writer.begin(*every)
        for _ in range(3):
            writer.send(b"value-%d" % number, *every)
        assert writer.codes() == [[0] * PARTITIONS] * 3
        assert read(rig, 0, committed=True) == committed
        assert writer.end(commits=commits) == ErrorCode.NONE
        committed += [b"value-%d" % number] * 3 * commits
        if versions is KEEPS:
            settled(rig)
    settled(rig)
    for index in every:
        assert read(rig, index, committed=True) == committed
        assert len(read(rig, index, committed=False)) == 15
        assert rig.open(TOPIC, index).log.state.producers.first_open_offset is None


def test_next_transaction_starts_during_markers_of_last(start: Start) -> None:
    rig = synced(start)
    writer = Writer(begun(rig), RAISES)
    every = range(PARTITIONS)
    writer.send(b"value-0", *every)
    assert writer.codes() == [[0] * PARTITIONS]
    for number in range(1, 4):
        producer = writer.producer
        fields = {
            "transactional_id": producer.name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "committed": True,
        }
        rig.processors[0].send(ApiKey.END_TXN, 5, fields)
        producer.epoch += 1
        writer.sequences.clear()
        writer.send(b"value-%d" % number, *every)
        ended, written = rig.processors[0].answers()
        assert ended.fields(ApiKey.END_TXN, 5)["error_code"] == 0
        (row,) = written.fields(ApiKey.PRODUCE, 12)["responses"]
        assert [each["error_code"] for each in row["partition_responses"]] == [0] * PARTITIONS
    assert writer.end() == ErrorCode.NONE
    settled(rig)
    for index in every:
        assert read(rig, index, committed=True) == [b"value-%d" % number for number in range(4)]


def test_unadded_partition_is_rejected_and_transaction_aborts(start: Start) -> None:
    rig = synced(start)
    writer = Writer(begun(rig), KEEPS)
    writer.begin(0)
    writer.send(b"value-0", 0, 1)
    assert writer.codes() == [[0, ErrorCode.TRANSACTION_ABORTABLE]]
    assert writer.end(commits=False) == ErrorCode.NONE
    settled(rig)
    assert [read(rig, index, committed=True) for index in (0, 1)] == [[], []]
    assert read(rig, 1, committed=False) == []


@both
def test_a_producer_that_was_fenced_writes_nothing_more(start: Start, versions: tuple[int, int]) -> None:
    rig = synced(start)
    old = Writer(begun(rig), versions)
    old.begin(0, 1)
    old.send(b"value-0", 0)
    assert old.codes() == [[0]]
    again = Producer(rig)
    assert again.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    settled(rig)
    assert again.init() == ErrorCode.NONE
    old.send(b"value-1", 0, 1)
    assert old.codes() == [[ErrorCode.INVALID_PRODUCER_EPOCH] * 2]
    assert [read(rig, index, committed=True) for index in (0, 1)] == [[], []]


@both
@pytest.mark.parametrize("is_owner", [True, False], ids=["owner", "coordinator"])
def test_transaction_ends_everywhere_after_death_of_handler(
    start: Start, versions: tuple[int, int], *, is_owner: bool
) -> None:
    rig = synced(start, handlers=3)
    writer = Writer(begun(rig), versions)
    coordinator = home_of(rig)
    victim = coordinator if not is_owner else next(n for n in range(3) if n != coordinator)
    writer.producer.at = next(n for n in range(3) if n != victim)
    every = range(PARTITIONS)
    writer.begin(*every)
    writer.send(b"value-0", *every)
    assert writer.codes() == [[0] * PARTITIONS]
    rig.kill(victim)
    rig.start_handler(victim, is_restart=True)
    settled(rig)
    writer.send(b"value-0", again=True)
    assert writer.codes() == [[0] * PARTITIONS]
    assert writer.end() == ErrorCode.NONE
    settled(rig)
    for index in every:
        assert read(rig, index, committed=True) == [b"value-0"]


@both
def test_partitions_and_coordinators_move_during_transaction(
    start: Start, versions: tuple[int, int]
) -> None:
    rig = synced(start)
    writer = Writer(begun(rig), versions)
    every = range(PARTITIONS)
    writer.begin(*every)
    writer.send(b"value-0", *every)
    assert writer.codes() == [[0] * PARTITIONS]
    rig.set_handler_count(1)
    settled(rig)
    writer.send(b"value-1", *every)
    assert writer.codes() == [[0] * PARTITIONS]
    rig.set_handler_count(2)
    settled(rig)
    assert writer.end() == ErrorCode.NONE
    settled(rig)
    for index in every:
        assert read(rig, index, committed=True) == [b"value-0", b"value-1"]


def test_topic_deletion_during_transaction_spares_others(start: Start) -> None:
    rig = synced(start)
    rig.create_topic("doomed")
    writer = Writer(begun(rig), KEEPS)
    writer.begin(0)
    assert writer.producer.add(0, topic="doomed") == [0]
    writer.send(b"value-0", 0)
    assert writer.codes() == [[0]]
    rig.delete_topic("doomed")
    assert writer.end() == ErrorCode.NONE
    settled(rig)
    assert read(rig, 0, committed=True) == [b"value-0"]
    assert writer.producer.describe()["transaction_state"] == "CompleteCommit"
