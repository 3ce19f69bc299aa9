"""AddPartitionsToTxn by a client and by a broker: all partitions are added or none."""

from __future__ import annotations

from kproc.broker.peers.transaction_call import TxnProducer, request_join
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import parts_of
from tests.support.handler_transactions import TOPIC, Start, begun, cluster


def test_all_partitions_join_or_none(start: Start) -> None:
    rig = cluster(start)
    producer = begun(rig)
    unknown, other = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert producer.add(0, 99, 1) == [other, unknown, other]
    assert producer.describe()["transaction_state"] == "Empty"
    producer.epoch += 5
    assert producer.add(0) == [ErrorCode.PRODUCER_FENCED]
    assert producer.add(0, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_unknown_partitions_precede_empty_transactional_id(start: Start) -> None:
    rig = cluster(start)
    producer = begun(rig)
    producer.name = ""
    assert producer.add(0, 1) == [ErrorCode.INVALID_REQUEST] * 2
    assert producer.add(0, 7) == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    codes: list[int] = []
    services, nobody = parts_of(rig.handler(0)).services, TxnProducer("", producer.producer_id, 0)
    request_join(services, nobody, [(TOPIC, 0)], adds=True, on_code=codes.append)
    assert codes == [ErrorCode.INVALID_REQUEST]


def test_brokers_add_and_verify_several_transactions(start: Start) -> None:
    rig = cluster(start)
    producers = [begun(rig, name) for name in ("a", "b")]
    producers[0].add(0)

    def ask(*, verifies: bool) -> list[list[int]]:
        answer = producers[0].ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            5,
            transactions=[
                {
                    "transactional_id": each.name,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.epoch,
                    "verify_only": verifies,
                    "topics": [{"name": TOPIC, "partitions": [0, 1]}],
                }
                for each in producers
            ],
        )
        rows = answer["results_by_transaction"]
        assert [row["transactional_id"] for row in rows] == ["a", "b"]
        results = [row["topic_results"][0]["results_by_partition"] for row in rows]
        return [[each["partition_error_code"] for each in result] for result in results]

    abortable = int(ErrorCode.TRANSACTION_ABORTABLE)
    assert ask(verifies=True) == [[0, abortable], [abortable] * 2]
    assert ask(verifies=False) == [[0, 0], [0, 0]]
    assert ask(verifies=True) == [[0, 0], [0, 0]]
