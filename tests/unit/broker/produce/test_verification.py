"""Transactional Produce: the first batch waits for the coordinator, and later ones wait behind it in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from kproc.broker.peers.transaction_call import TxnProducer
from kproc.broker.produce.reply import Result
from kproc.broker.request.context import PartitionKey, Services
from kproc.broker.storage import inspection
from kproc.broker.storage.validate import TRANSACTION
from kproc.broker.transport.envelope import CLOSE
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.raw import batch, fetch_fields, produce_fields, values_of

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)
NAME, PID = "payments", 7
OLD, WITH_ABORTABLE, ADDING = (
    10,
    11,
    12,
)  # Versions of Produce: both kinds of transactions, with two kinds of clients.


@dataclass
class Question:
    """What a Handler has asked the transaction's coordinator."""

    handler: int
    txn: TxnProducer
    keys: list[PartitionKey]
    adds: bool
    answer: Callable[[int], None]


class Coordinator:
    """Of all transactions: it answers when the test says so, or everything alike."""

    def __init__(self) -> None:
        self.asked: deque[Question] = deque()
        self.always: int | None = None

    def join(
        self,
        services: Services,
        txn: TxnProducer,
        partitions: Sequence[PartitionKey],
        *,
        adds: bool,
        on_code: Callable[[int], None],
    ) -> None:
        self.asked.append(Question(services.handler_index, txn, list(partitions), adds, on_code))
        if self.always is not None:
            on_code(self.always)

    def answer(self, code: int = ErrorCode.NONE) -> None:
        """The oldest question."""
        self.asked.popleft().answer(code)


class Stray:
    """Who waits for a batch that came in no request."""

    acks, transactional_id, template, code = 1, NAME, None, -1

    def decide(self, result: Result) -> None:
        self.code = result[1]

    def fail(self) -> None:
        raise AssertionError


@dataclass
class Scene:
    rig: HandlerRig
    coordinator: Coordinator

    def send(
        self,
        sequence: int,
        *,
        version: int = ADDING,
        epoch: int = 0,
        index: int = 0,
        pid: int = PID,
        home: int = 0,
        connection: int = 1,
        acks: int = 1,
        flags: int = TRANSACTIONAL,
        name: str | None = NAME,
        records: bytes | None = None,
    ) -> None:
        """One record, its value says which."""
        records = records or batch(
            b"%d" % sequence, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, flags=flags
        )
        self.send_all(
            [(index, records)], version=version, home=home, connection=connection, acks=acks, name=name
        )

    def send_all(
        self,
        parts: list[tuple[int, bytes]],
        *,
        version: int = ADDING,
        home: int = 0,
        connection: int = 1,
        acks: int = 1,
        name: str | None = NAME,
    ) -> None:
        fields = produce_fields([("t", NO_ID, list(parts))], acks=acks) | {"transactional_id": name}
        self.rig.processors[home].send(ApiKey.PRODUCE, version, fields, connection=connection)

    def answers(self, version: int = ADDING, home: int = 0) -> list[list[tuple[int, int]]]:
        """(error code, base offset) of each partition, for each request that has been answered."""
        return [
            [
                (row["error_code"], row["base_offset"])
                for row in answer.fields(ApiKey.PRODUCE, version)["responses"][0]["partition_responses"]
            ]
            for answer in self.rig.processors[home].answers()
        ]

    def values(self, index: int = 0, home: int = 0) -> list[bytes | None]:
        fields = fetch_fields([("t", NO_ID, [(index, 0)])])
        answer = self.rig.processors[home].ask(ApiKey.FETCH, 12, fields, connection=99)
        return [value for _, value in values_of(answer["responses"][0]["partitions"][0]["records"])]

    def introduce(self, handler: int) -> None:
        """A Handler gets to know the coordinator."""
        parts_of(self.rig.handler(handler)).produce._transactions._request_join = self.coordinator.join

    def end(self, epoch: int = 0, *, index: int = 0, version: int = 0) -> int:
        """A marker that commits."""
        owned = self.rig.open("t", index)
        code = owned.log.appender.append_marker(
            PID, epoch, 0, is_commit=True, transaction_version=version
        ).error_code
        owned.after_append()
        return code


def scene_of(rig: HandlerRig, *, partitions: int = 1) -> Scene:
    scene = Scene(rig, Coordinator())
    for index in range(len(rig.handlers)):
        scene.introduce(index)
    if partitions:
        rig.create_topic("t", partitions=partitions)
    return scene


@pytest.fixture
def scene(start: Start) -> Scene:
    return scene_of(start())


# -- who asks what -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "adds"), [(OLD, False), (WITH_ABORTABLE, False), (ADDING, True)])
def test_first_batch_waits_for_coordinator_next_ones_do_not(
    scene: Scene, version: int, adds: bool
) -> None:
    scene.send(0, version=version)
    assert scene.answers(version) == []
    (question,) = scene.coordinator.asked
    assert (question.txn, question.keys, question.adds) == (TxnProducer(NAME, PID, 0), [("t", 0)], adds)
    assert scene.values() == []
    scene.coordinator.answer()
    assert scene.answers(version) == [[(0, 0)]]
    scene.send(1, version=version)
    assert scene.answers(version) == [[(0, 1)]]
    assert not scene.coordinator.asked
    assert scene.rig.open("t").log.state.last_stable_offset == 0
    assert not scene.rig.open("t").log.state.producers.verifying


def test_each_transaction_is_asked_for(scene: Scene) -> None:
    scene.coordinator.always = ErrorCode.NONE
    scene.send(0)
    scene.send(1)
    assert scene.answers() == [[(0, 0)], [(0, 1)]]
    assert scene.end(1, version=2) == ErrorCode.NONE
    scene.send(0, epoch=1)
    assert scene.answers() == [[(0, 3)]]
    assert [question.txn.epoch for question in scene.coordinator.asked] == [0, 1]


def test_partitions_of_one_request_are_asked_for_together(start: Start) -> None:
    scene = scene_of(start(), partitions=3)
    parts = [
        (n, batch(b"v", producer_id=PID, producer_epoch=0, base_sequence=0, flags=TRANSACTIONAL))
        for n in range(3)
    ]
    scene.send_all(parts)
    assert scene.answers() == []
    (question,) = scene.coordinator.asked
    assert question.keys == [("t", 0), ("t", 1), ("t", 2)]
    scene.coordinator.answer()
    assert scene.answers() == [[(0, 0)] * 3]


def test_unadded_partition_fails_only_its_own_batch(start: Start) -> None:
    """A client of transaction version 1 has forgotten to add it."""
    scene = scene_of(start(), partitions=2)
    record = batch(b"v", producer_id=PID, producer_epoch=0, base_sequence=0, flags=TRANSACTIONAL)
    scene.send_all([(0, record), (1, record)], version=WITH_ABORTABLE)
    assert scene.answers(WITH_ABORTABLE) == []
    scene.coordinator.answer(ErrorCode.TRANSACTION_ABORTABLE)
    assert [question.keys for question in scene.coordinator.asked] == [[("t", 0)], [("t", 1)]]
    scene.coordinator.answer()
    scene.coordinator.answer(ErrorCode.TRANSACTION_ABORTABLE)
    assert scene.answers(WITH_ABORTABLE) == [[(0, 0), (ErrorCode.TRANSACTION_ABORTABLE, -1)]]


def test_verification_can_be_switched_off_but_not_the_adding(start: Start) -> None:
    scene = scene_of(start(settings={"transaction.partition.verification.enable": "false"}))
    scene.send(0, version=WITH_ABORTABLE)
    assert scene.answers(WITH_ABORTABLE) == [[(0, 0)]]
    assert not scene.coordinator.asked
    assert scene.end() == ErrorCode.NONE
    scene.send(0, epoch=1)
    assert scene.answers() == []
    scene.coordinator.answer()
    assert scene.answers() == [[(0, 2)]]


def test_verification_is_switched_while_the_broker_runs(scene: Scene) -> None:
    change = {"name": "transaction.partition.verification.enable", "value": "false", "config_operation": 0}
    rows = [{"resource_type": 4, "resource_name": "", "configs": [change]}]
    (row,) = scene.rig.cluster.do("alter_configs", resources=rows, incremental=True, validate_only=False)[
        "responses"
    ]
    assert row["error_code"] == 0, row
    scene.rig.tell()
    scene.send(0, version=WITH_ABORTABLE)
    assert scene.answers(WITH_ABORTABLE) == [[(0, 0)]]


def test_a_batch_outside_of_transactions_waits_for_nothing(scene: Scene) -> None:
    """Also with a transactional id, which Kafka does not look at then."""
    scene.send(0)
    scene.send(0, flags=0, pid=8)
    scene.send_all([(0, batch(b"plain"))], name=None)
    assert scene.answers() == [[(0, 0)], [(0, 1)]]
    scene.coordinator.answer()
    assert scene.answers() == [[(0, 2)]]


@pytest.mark.parametrize("version", [WITH_ABORTABLE, ADDING])
def test_the_first_batches_of_many_producers_become_one_write(scene: Scene, version: int) -> None:
    scene.coordinator.always = ErrorCode.NONE
    queue = parts_of(scene.rig.handler()).append_queue
    before = queue.append_calls
    for pid in range(4):  # As many as a Handler takes at once from a Processor that was quiet.
        scene.send(0, pid=pid, version=version, connection=pid + 1)
    assert sorted(scene.answers(version)) == [[(0, offset)] for offset in range(4)]
    assert queue.append_calls - before == 1


def test_batch_behind_confirmed_one_joins_its_transaction(
    scene: Scene,
) -> None:
    scene.coordinator.always = ErrorCode.NONE
    for sequence in range(3):
        scene.send(sequence)
    assert scene.answers() == [[(0, sequence)] for sequence in range(3)]
    assert len(scene.coordinator.asked) == 1


def test_paused_batches_of_a_transaction_stay_confirmed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Handler that reads one record in a duty cycle appends one of these batches in each."""
    monkeypatch.setattr(inspection, "INSPECTED_MAX", 1)
    scene = scene_of(start(), partitions=0)
    scene.rig.create_topic("t", **{"cleanup.policy": "compact"})
    for sequence in range(3):
        scene.send(sequence)
    scene.rig.settle()
    scene.rig.partitions().inspection.spend(1, 0)  # Another partition has used the duty cycle up.
    scene.coordinator.answer()
    scene.rig.handler()._due.press()
    scene.rig.handler().do_work(0)
    assert parts_of(scene.rig.handler()).append_queue.paused
    scene.send(3)
    assert sorted(scene.answers()) == [[(0, offset)] for offset in range(4)]
    assert not scene.coordinator.asked
    assert not scene.rig.open("t").log.state.producers.verifying


def test_confirmation_between_passes_is_answered(scene: Scene) -> None:
    scene.send(0)
    scene.rig.settle()
    scene.coordinator.answer()
    scene.rig.handler()._due.press()  # As the record of another Handler does.
    scene.rig.handler().do_work(0)
    assert len(scene.rig.processors[0].answers(settles=False)) == 1


def test_plain_and_transactional_batches_of_pass_stay_in_order(scene: Scene) -> None:
    scene.coordinator.always = ErrorCode.NONE
    scene.send(0)
    assert scene.answers() == [[(0, 0)]]
    for sequence in range(1, 4):
        scene.send_all([(0, batch(b"plain"))], name=None, connection=2)
        scene.send(sequence)
    assert sorted(scene.answers()) == [[(0, n)] for n in range(1, 7)]
    assert [value for value in scene.values() if value != b"plain"] == [b"0", b"1", b"2", b"3"]


def test_a_fast_path_smuggles_no_batch_into_a_transaction(scene: Scene) -> None:
    scene.coordinator.always = ErrorCode.NONE
    scene.send(0)
    assert scene.answers() == [[(0, 0)]]
    for _ in range(3):
        scene.send(1, flags=0, pid=8, name=None, connection=2)
    scene.answers()
    scene.send(1, name=None, connection=2)
    assert scene.answers() == [[(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)]]


# -- order ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [WITH_ABORTABLE, ADDING])
def test_batches_behind_first_one_wait_with_it(scene: Scene, version: int) -> None:
    for sequence in range(5):
        scene.send(sequence, version=version, connection=1 + sequence % 2)
        scene.rig.settle()
    assert scene.answers(version) == []
    scene.coordinator.answer()
    assert scene.answers(version) == [[(0, n)] for n in range(5)]
    assert not scene.coordinator.asked
    assert scene.values() == [b"%d" % n for n in range(5)]


def test_other_producers_and_partitions_do_not_wait(start: Start) -> None:
    scene = scene_of(start(), partitions=2)
    scene.send(0)
    scene.rig.settle()
    scene.send(0, pid=8, connection=2)
    scene.send(0, index=1, connection=3)
    scene.rig.settle()
    second, third = list(scene.coordinator.asked)[1:]
    third.answer(0)
    second.answer(0)
    assert scene.answers() == [[(0, 0)], [(0, 0)]]


@pytest.mark.parametrize("acks", [1, -1])
def test_forwarded_batches_wait_in_order_for_verification(start: Start, acks: int) -> None:
    rig = start(handlers=2)
    scene = scene_of(rig, partitions=4)
    index = next(n for n in range(4) if rig.owner("t", n) == 1)
    for sequence in range(4):
        scene.send(sequence, index=index, acks=acks)
        rig.settle()
    scene.send(4, index=index, home=1, connection=2, acks=acks)
    rig.settle()
    assert [question.handler for question in scene.coordinator.asked] == [1]
    assert scene.answers() == []
    scene.coordinator.answer()
    assert scene.answers() == [[(0, n)] for n in range(4)]
    assert scene.answers(home=1) == [[(0, 4)]]


def test_a_request_of_two_owners_is_asked_for_by_both(start: Start) -> None:
    rig = start(handlers=2)
    scene = scene_of(rig, partitions=4)
    first, second = (next(n for n in range(4) if rig.owner("t", n) == owner) for owner in (0, 1))
    record = batch(b"v", producer_id=PID, producer_epoch=0, base_sequence=0, flags=TRANSACTIONAL)
    scene.send_all([(first, record), (second, record)])
    rig.settle()
    assert sorted((each.handler, each.keys) for each in scene.coordinator.asked) == [
        (0, [("t", first)]),
        (1, [("t", second)]),
    ]
    scene.coordinator.answer()
    assert scene.answers() == []
    scene.coordinator.answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert sorted(scene.answers()) == [[(0, 0), (ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1)]]


# -- what the coordinator says -------------------------------------------------------------------------------

TOLD = {
    ErrorCode.PRODUCER_FENCED: dict.fromkeys((OLD, WITH_ABORTABLE, ADDING), ErrorCode.INVALID_PRODUCER_EPOCH),
    ErrorCode.NETWORK_EXCEPTION: dict.fromkeys((OLD, WITH_ABORTABLE, ADDING), ErrorCode.NOT_ENOUGH_REPLICAS),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: dict.fromkeys((OLD, ADDING), ErrorCode.NOT_ENOUGH_REPLICAS),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: dict.fromkeys((OLD, ADDING), ErrorCode.NOT_ENOUGH_REPLICAS),
    ErrorCode.NOT_COORDINATOR: dict.fromkeys((OLD, ADDING), ErrorCode.NOT_ENOUGH_REPLICAS),
    ErrorCode.CONCURRENT_TRANSACTIONS: {
        OLD: ErrorCode.NOT_ENOUGH_REPLICAS,
        WITH_ABORTABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
        ADDING: ErrorCode.CONCURRENT_TRANSACTIONS,
    },
    ErrorCode.TRANSACTION_ABORTABLE: {
        OLD: ErrorCode.INVALID_TXN_STATE,
        WITH_ABORTABLE: ErrorCode.TRANSACTION_ABORTABLE,
    },
    ErrorCode.INVALID_TXN_STATE: {OLD: ErrorCode.INVALID_TXN_STATE, ADDING: ErrorCode.INVALID_TXN_STATE},
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: {ADDING: ErrorCode.INVALID_PRODUCER_ID_MAPPING},
}


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [(code, version, told) for code, row in TOLD.items() for version, told in row.items()],
)
def test_waiting_batches_are_rejected_with_versions_error(
    scene: Scene, code: ErrorCode, version: int, told: ErrorCode
) -> None:
    scene.send(0, version=version)
    scene.send(1, version=version)
    scene.rig.settle()
    scene.coordinator.answer(code)
    assert scene.answers(version) == [[(told, -1)], [(told, -1)]]
    assert scene.values() == []


@pytest.mark.parametrize("version", [WITH_ABORTABLE, ADDING])
def test_retries_after_failed_verification_keep_their_order(scene: Scene, version: int) -> None:
    """The one that was on its way when the others were refused must not be the first."""
    scene.send(0, version=version)
    scene.send(1, version=version)
    scene.rig.settle()
    scene.coordinator.answer(ErrorCode.NOT_COORDINATOR)
    assert [code for ((code, _),) in scene.answers(version)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    scene.coordinator.always = ErrorCode.NONE
    scene.send(2, version=version)
    assert scene.answers(version) == [[(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]]
    for sequence in range(3):
        scene.send(sequence, version=version)
    assert scene.answers(version) == [[(0, 0)], [(0, 1)], [(0, 2)]]


@pytest.mark.parametrize(
    ("code", "remembered"), [(ErrorCode.INVALID_PRODUCER_ID_MAPPING, 0), (ErrorCode.NOT_COORDINATOR, 3)]
)
def test_tries_of_unknown_producers_leave_nothing_behind(
    scene: Scene, code: ErrorCode, remembered: int
) -> None:
    scene.coordinator.always = code
    for pid in range(1, 4):
        scene.send(0, pid=pid)
    assert len(scene.answers()) == 3
    assert len(scene.rig.open("t").log.state.producers.verifying) == remembered


def test_acks_0_producer_is_disconnected_on_rejection(scene: Scene) -> None:
    scene.send(0, acks=0)
    scene.rig.settle()
    scene.coordinator.answer(ErrorCode.PRODUCER_FENCED)
    assert [answer.kind for answer in scene.rig.processors[0].answers()] == [CLOSE]


def test_unreachable_coordinator_is_retried_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("on purpose")

    produce = parts_of(scene.rig.handler()).produce
    with monkeypatch.context() as patch:
        patch.setattr(produce._transactions, "_request_join", fails)
        scene.send(0)
        assert scene.answers() == [[(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]]
    scene.coordinator.always = ErrorCode.NONE
    scene.send(0)
    assert scene.answers() == [[(0, 0)]]


# -- producers -----------------------------------------------------------------------------------------------


def test_a_request_of_several_producers_is_refused_as_a_whole(start: Start) -> None:
    scene = scene_of(start(), partitions=2)
    mine = batch(b"v", producer_id=PID, producer_epoch=0, base_sequence=0, flags=TRANSACTIONAL)
    for more in ({"producer_id": 8, "producer_epoch": 0}, {"producer_id": PID, "producer_epoch": 1}):
        other = batch(b"v", base_sequence=0, flags=TRANSACTIONAL, **more)
        scene.send_all([(0, mine), (1, other)])
        assert scene.answers() == [[(ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1)] * 2]
    scene.send_all([(0, mine), (1, mine)], name=None)
    assert scene.answers() == [[(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)] * 2]
    assert not scene.coordinator.asked


def test_newer_producer_epoch_ends_wait_of_older_one(scene: Scene) -> None:
    scene.send(0)
    scene.send(1)
    scene.rig.settle()
    scene.send(0, epoch=1, connection=2)
    assert scene.answers() == [[(ErrorCode.INVALID_PRODUCER_EPOCH, -1)]] * 2
    scene.send(2, connection=3)
    assert scene.answers() == [[(ErrorCode.INVALID_PRODUCER_EPOCH, -1)]]
    scene.coordinator.answer()  # For the older one, which has gone.
    assert scene.answers() == []
    scene.coordinator.answer()
    assert scene.answers() == [[(0, 0)]]
    assert scene.values() == [b"0"]


def test_older_epoch_is_rejected_without_verification(scene: Scene) -> None:
    assert scene.end(5) == ErrorCode.NONE
    scene.send(0, epoch=4)
    assert scene.answers() == [[(ErrorCode.INVALID_PRODUCER_EPOCH, -1)]]
    assert not scene.coordinator.asked


def test_the_records_of_an_older_epoch_are_not_looked_at(scene: Scene) -> None:
    assert scene.end(5) == ErrorCode.NONE
    far = 2**62
    records = batch(
        b"v", timestamp_ms=far, producer_id=PID, producer_epoch=4, base_sequence=0, flags=TRANSACTIONAL
    )
    scene.send(0, records=records)
    assert scene.answers() == [[(ErrorCode.INVALID_PRODUCER_EPOCH, -1)]]


def test_damaged_batch_is_rejected_without_verification(scene: Scene) -> None:
    good = batch(b"v", producer_id=PID, producer_epoch=0, base_sequence=0, flags=TRANSACTIONAL)
    scene.send(0, records=good[:-1] + bytes([good[-1] ^ 1]))
    assert scene.answers() == [[(ErrorCode.CORRUPT_MESSAGE, -1)]]
    scene.send(0, records=good[:40])
    assert scene.answers() == [[(ErrorCode.CORRUPT_MESSAGE, -1)]]
    assert not scene.coordinator.asked


# -- what happens meanwhile ----------------------------------------------------------------------------------


def test_a_marker_meanwhile_makes_the_answer_void(scene: Scene) -> None:
    scene.send(0, version=WITH_ABORTABLE)
    scene.rig.settle()
    assert scene.end() == ErrorCode.NONE
    scene.coordinator.answer()
    assert scene.answers(WITH_ABORTABLE) == [[(ErrorCode.INVALID_TXN_STATE, -1)]]
    assert scene.rig.open("t").log.state.producers.first_open_offset is None


def test_next_transaction_is_not_blocked_behind_ended_one(scene: Scene) -> None:
    scene.send(0, version=WITH_ABORTABLE)
    scene.rig.settle()
    assert scene.end() == ErrorCode.NONE
    scene.send(0, version=WITH_ABORTABLE, connection=2)
    assert scene.answers(WITH_ABORTABLE) == [[(ErrorCode.INVALID_TXN_STATE, -1)]]
    late, asked = scene.coordinator.asked
    late.answer(0)
    assert scene.answers(WITH_ABORTABLE) == []
    asked.answer(0)
    assert scene.answers(WITH_ABORTABLE) == [[(0, 1)]]


def test_a_confirmation_is_for_what_waited_and_for_nothing_else(scene: Scene) -> None:
    """Neither for what was taken before, nor for what comes when the batch itself was refused."""
    refused = batch(
        b"v", timestamp_ms=2**60, producer_id=PID, producer_epoch=0, base_sequence=0, flags=TRANSACTIONAL
    )
    scene.send(0, version=WITH_ABORTABLE, records=refused)
    scene.rig.settle()
    owned, stray = scene.rig.open("t"), Stray()
    records = batch(b"v", producer_id=PID, producer_epoch=0, base_sequence=0, flags=TRANSACTIONAL)
    queue = parts_of(scene.rig.handler()).append_queue
    queue.enqueue(owned, memoryview(bytearray(records)), stray, TRANSACTION)
    scene.coordinator.answer()
    assert scene.answers(WITH_ABORTABLE) == [[(ErrorCode.INVALID_TIMESTAMP, -1)]]
    (late,) = owned.log.append([memoryview(bytearray(records))], TRANSACTION)
    assert [stray.code, late.error_code] == [ErrorCode.INVALID_TXN_STATE] * 2


def test_records_waiting_for_partition_are_verified_when_open(start: Start) -> None:
    rig = start(handlers=2)
    scene = scene_of(rig, partitions=0)
    rig.set_handler_count(1)
    rig.create_topic("t", partitions=4)
    rig.cluster.do("set_handler_count", count=2)
    index = next(n for n in range(4) if rig.owner("t", n) == 1)
    rig.partitions(0).get("t", parts_of(rig.handler(0)).services.image.topics_by_name["t"].partitions[index])
    rig.tell(settles=False)
    scene.send(0, index=index, home=1)
    rig.handler(1).do_work(0)  # It claims the partition, and takes the request.
    assert not scene.coordinator.asked
    rig.settle()
    (question,) = scene.coordinator.asked
    assert (question.handler, question.keys) == (1, [("t", index)])
    scene.coordinator.answer()
    assert scene.answers(home=1) == [[(0, 0)]]


@pytest.mark.parametrize("home", [0, 1, 2])
def test_unverified_batches_move_with_their_partition(start: Start, home: int) -> None:
    """From a client of the owner, of the next owner, and of a third Handler; guards stay behind."""
    rig = start(handlers=3)
    scene = scene_of(rig, partitions=0)
    rig.set_handler_count(1)
    rig.create_topic("t", partitions=6)
    rig.cluster.do("set_handler_count", count=3)
    index = next(n for n in range(6) if rig.owner("t", n) == 1)
    rig.cluster.do("set_handler_count", count=1)
    rig.tell()
    for sequence in range(3):
        scene.send(sequence, index=index, home=home)
    rig.settle()
    rig.set_handler_count(3)
    scene.send(3, index=index, home=home)
    rig.settle()
    before, *after = scene.coordinator.asked
    assert before.handler == 0
    assert [question.handler for question in after] == [1]
    before.answer(0)
    assert scene.answers(home=home) == []
    after[0].answer(0)
    assert scene.answers(home=home) == [[(0, n)] for n in range(4)]
    assert scene.values(index) == [b"%d" % n for n in range(4)]


def test_topic_deleted_during_verification_is_unknown(scene: Scene) -> None:
    scene.send(0)
    scene.send(1)
    scene.rig.settle()
    scene.rig.delete_topic("t")
    scene.rig.create_topic("t")
    scene.coordinator.answer()
    assert scene.answers() == [[(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]] * 2
    assert scene.values() == []


def test_acks_all_waits_for_the_disk_behind_the_coordinator(start: Start) -> None:
    scene = scene_of(start(settings={"kproc.flush": "group"}))
    scene.send(0, acks=-1)
    scene.rig.settle()
    scene.coordinator.answer()
    assert scene.answers() == []
    scene.rig.syncers[0].end_round()
    assert scene.answers() == [[(0, 0)]]


@pytest.mark.parametrize("was_confirmed", [False, True])
def test_dead_owner_is_retried_and_has_batch_once(
    start: Start, *, was_confirmed: bool
) -> None:
    """While it waits for the coordinator nothing is in the log; behind that, what the page cache has counts."""
    scene = scene_of(start(settings={"kproc.flush": "group"}))
    scene.send(0, acks=-1)
    scene.rig.settle()
    if was_confirmed:
        scene.coordinator.answer()
    assert scene.answers() == []
    scene.rig.kill(0)
    scene.rig.start_handler(0, is_restart=True)
    scene.introduce(0)
    scene.coordinator.asked.clear()
    scene.send(0)
    scene.rig.settle()
    assert len(scene.coordinator.asked) == (not was_confirmed)
    if not was_confirmed:
        scene.coordinator.answer()
    assert scene.answers() == [[(0, 0)]]
    if was_confirmed:  # What the page cache has is visible when it is on the disk.
        assert scene.values() == []
        scene.rig.syncers[0].end_round()
        scene.rig.settle()
    assert scene.values() == [b"0"]
