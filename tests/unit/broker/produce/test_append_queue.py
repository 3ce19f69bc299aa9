"""AppendQueue: a duty cycle reads a limited number of records, and paused batches keep their order and their bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.broker.produce import append_queue
from kproc.broker.produce.reply import Result
from kproc.broker.storage import inspection
from kproc.broker.transport.envelope import CLOSE
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.bytecodes import count_bytecodes
from tests.support.handler_rig import Answer, HandlerRig
from tests.support.raw import batch, fetch_fields, produce_fields, values_of

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)
PRODUCE = 9
RECORDS = 20


@pytest.fixture
def rig(start: Start, monkeypatch: pytest.MonkeyPatch) -> HandlerRig:
    """A Handler that reads the records of one batch of RECORDS in a duty cycle."""
    monkeypatch.setattr(inspection, "INSPECTED_MAX", RECORDS)
    rig = start()
    rig.create_topic("c", partitions=6, **{"cleanup.policy": "compact"})
    rig.partitions().inspection.renew()
    return rig


class Target:
    """Stores the results of a batch that came in no request."""

    acks, transactional_id, template = 1, None, None

    def __init__(self, results: list[Result]) -> None:
        self.decide = results.append

    def fail(self) -> None:
        raise AssertionError


def records(tag: str) -> bytes:
    return batch(*(f"{tag}{number}".encode() for number in range(RECORDS)), timestamp_ms=-1)


def send(rig: HandlerRig, *parts: tuple[int, bytes], connection: int = 1, acks: int = 1) -> None:
    fields = produce_fields([("c", NO_ID, parts)], acks=acks)
    rig.processors[0].send(ApiKey.PRODUCE, PRODUCE, fields, connection=connection)


def codes(answer: Answer) -> list[tuple[int, int]]:
    (topic,) = answer.fields(ApiKey.PRODUCE, PRODUCE)["responses"]
    return [(row["error_code"], row["base_offset"]) for row in topic["partition_responses"]]


def stored(rig: HandlerRig, partition: int = 0) -> list[bytes]:
    """The first value of each batch."""
    answer = rig.processors[0].ask(
        ApiKey.FETCH, 11, fetch_fields([("c", NO_ID, [(partition, 0)])]), connection=9
    )
    values = [value for _, value in values_of(answer["responses"][0]["partitions"][0]["records"])]
    return [value for value in values[::RECORDS] if value is not None]


def test_produce_with_many_checked_batches_takes_bounded_cycles(rig: HandlerRig) -> None:
    """Six batches cost six duty cycles, and none costs much more than one batch."""
    send(rig, *((at, records("opens the log")) for at in range(6)))
    rig.processors[0].answers()
    rig.partitions().inspection.renew()
    send(rig, (0, records("alone")), connection=2)
    alone = count_bytecodes(lambda: rig.handler().do_work(0), unless_in=__file__)
    rig.processors[0].answers()
    send(rig, *((at, records("x")) for at in range(6)))
    costs = []
    while not (answers := rig.processors[0].answers(settles=False)):
        costs.append(count_bytecodes(lambda: rig.handler().do_work(0), unless_in=__file__))
        assert len(costs) < 20
    assert len(costs) >= 6
    assert max(costs) < 3 * alone
    assert codes(answers[0]) == [(0, 2 * RECORDS), *[(0, RECORDS)] * 5]


@pytest.mark.parametrize("acks", [1, -1])
def test_paused_batches_keep_their_order_in_the_partition(rig: HandlerRig, acks: int) -> None:
    for number in range(5):
        send(rig, (0, records(f"{number}-")), connection=1 + number, acks=acks)
    answers = rig.processors[0].answers()
    assert sorted(codes(each)[0] for each in answers) == [(0, RECORDS * at) for at in range(5)]
    assert stored(rig) == [b"%d-0" % at for at in range(5)]
    assert not rig.handler()._append_queue.paused


def test_batch_queued_in_front_of_a_resume_is_appended_last(rig: HandlerRig) -> None:
    """As a request that waited for its partition or its transaction's coordinator queues one."""
    for number in range(3):
        send(rig, (0, records(f"{number}-")), connection=1 + number)
    rig.handler().do_work(0)
    queue = rig.handler()._append_queue
    results: list[Result] = []
    owned = next(iter(queue.paused))
    queue.enqueue(owned, memoryview(records("3-")), Target(results))  # type: ignore[arg-type]
    queue.resume()
    assert len(rig.processors[0].answers()) == 3
    assert [(result[1], result[2]) for result in results] == [(0, 3 * RECORDS)]
    assert stored(rig) == [b"%d-0" % at for at in range(4)]


def test_unchecked_topic_is_served_while_batches_are_paused(rig: HandlerRig) -> None:
    rig.create_topic("plain")
    send(rig, *((at, records("x")) for at in range(6)))
    rig.handler().do_work(0)
    fields = produce_fields([("plain", NO_ID, [(0, batch(b"y"))])], acks=1)
    rig.processors[0].send(ApiKey.PRODUCE, PRODUCE, fields, connection=2)
    rig.handler().do_work(0)
    assert [each.connection_id for each in rig.processors[0].answers(settles=False)] == [2]
    assert [each.connection_id for each in rig.processors[0].answers()] == [1]


def test_rejected_batch_among_paused_ones_fails_alone(rig: HandlerRig) -> None:
    bad = bytearray(records("x"))
    bad[-1] ^= 1
    send(rig, (0, records("x")), (1, bytes(bad)), (2, records("x")))
    (answer,) = rig.processors[0].answers()
    assert codes(answer) == [(0, 0), (ErrorCode.CORRUPT_MESSAGE, -1), (0, 0)]


def test_paused_batches_of_a_deleted_topic_are_failed(rig: HandlerRig) -> None:
    send(rig, *((at, records("x")) for at in range(6)))
    rig.handler().do_work(0)
    rig.delete_topic("c")
    (answer,) = rig.processors[0].answers()
    failed = [code for code, _ in codes(answer) if code]
    assert set(failed) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_more_paused_bytes_than_allowed_close_the_connection(
    rig: HandlerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_queue, "_PAUSED_BYTES_MAX", 1)
    send(rig, (0, records("x")))
    send(rig, (1, records("x")), connection=2)
    send(rig, (2, records("x")), connection=3)
    answers = {each.connection_id: each for each in rig.processors[0].answers()}
    assert answers[3].kind == CLOSE
    assert codes(answers[1]) == codes(answers[2]) == [(0, 0)]
